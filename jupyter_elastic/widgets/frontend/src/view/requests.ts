// Follows a person's requests: under way, or refused. A refusal remains until the person closes it or sends another
// request.
import { useState } from 'preact/hooks';
import { type Ask, beforeCancel } from '../ask';
import { messageOf } from '../format';

export interface Requests {
  /** Name of the request under way; empty without one. */
  busy: string;
  problem: string;
  close(): void;
  /** Send a request; return whether it was granted. */
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
      setProblem(messageOf(error));
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

/**
 * Return whether the job is being cancelled, and the click's handler, which cancels the job once, after a question for
 * a job that has run for long.
 */
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
