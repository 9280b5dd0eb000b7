// What a person asked for: under way, or refused. A refusal stays until it is closed or something else is asked for.
import { useState } from 'preact/hooks';

export interface Deeds {
  /** What is under way; empty when nothing is. */
  busy: string;
  problem: string;
  close(): void;
  /** Ask for it; whether it was granted. */
  run(what: string, deed: () => Promise<unknown>): Promise<boolean>;
}

export function useDeeds(): Deeds {
  const [busy, setBusy] = useState('');
  const [problem, setProblem] = useState('');
  const run = async (what: string, deed: () => Promise<unknown>) => {
    setProblem('');
    setBusy(what);
    try {
      await deed();
      return true;
    } catch (error) {
      setProblem(String((error as Error).message ?? error));
      return false;
    } finally {
      setBusy('');
    }
  };
  return { busy, problem, close: () => setProblem(''), run };
}

export function Problem({ deeds }: { deeds: Deeds }) {
  if (!deeds.problem) return null;
  return (
    <div class="je-banner je-error" role="alert">
      <span>{deeds.problem}</span>
      <button class="je-icon" title="Close" aria-label="Close" onClick={deeds.close}>
        ✕
      </button>
    </div>
  );
}
