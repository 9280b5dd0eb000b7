// What a person asked for: under way, or refused. A refusal stays until it is closed or something else is asked for.
import { useState } from 'preact/hooks';
import { beforeCancel, type Ask } from '../ask';

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

export interface Cancelling {
  job: { job: number; name: string; started_at: number | null };
  /** Seconds since the epoch. */
  now: number;
  cancel: () => Promise<unknown>;
  requests: Requests;
  ask: Ask;
}

/** Whether a job is being cancelled, and what a click does: it ends the job, after a question if that has run for long, and once. */
export function useCancel({ job, now, cancel, requests, ask }: Cancelling): [boolean, () => Promise<void>] {
  const [asked, setAsked] = useState(false);
  const click = async () => {
    const question = beforeCancel(job, now);
    if (question && !(await ask(question))) return;
    setAsked(true);
    if (!(await requests.run('cancel', cancel))) setAsked(false);
  };
  return [asked, click];
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
