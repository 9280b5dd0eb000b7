// What a person asked for: under way, or refused. A refusal stays until it is closed or something else is asked for.
import { useState } from 'preact/hooks';

export interface Requests {
  /** What is under way; empty when nothing is. */
  busy: string;
  problem: string;
  close(): void;
  /** Ask for it; whether it was granted. */
  run(what: string, request: () => Promise<unknown>): Promise<boolean>;
}

export function useRequests(): Requests {
  const [busy, setBusy] = useState('');
  const [problem, setProblem] = useState('');
  const run = async (what: string, request: () => Promise<unknown>) => {
    setProblem('');
    setBusy(what);
    try {
      await request();
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

export function Problem({ requests }: { requests: Requests }) {
  if (!requests.problem) return null;
  return (
    <div class="je-banner je-error" role="alert">
      <span>{requests.problem}</span>
      <button class="je-icon" title="Close" aria-label="Close" onClick={requests.close}>
        ✕
      </button>
    </div>
  );
}
