// Asks before a person does what can't be undone. JupyterLab has a dialog of its own (lab/dialog.ts); this one is for
// other pages.
import { duration } from './format';

interface Question {
  title: string;
  body: string;
  accept: string;
  refuse: string;
}

export type Ask = (question: Question) => Promise<boolean>;

/** Seconds after which a running job is not cancelled without a question. */
const LONG_S = 60;

/** Return the question before a job is cancelled; null for a job that has nothing to lose yet. */
export function beforeCancel(
  job: { job: number; name: string; started_at: number | null },
  now: number
): Question | null {
  if (job.started_at === null || now - job.started_at < LONG_S) return null;
  return {
    title: `Cancel job ${job.job}?`,
    body: `“${job.name}” has run for ${duration(now - job.started_at)}. It can't be resumed afterwards.`,
    accept: 'Cancel job',
    refuse: 'Keep running'
  };
}

/** Ask in the browser's own dialog: focus stays in the dialog, Escape refuses. */
export function ask({ title, body, accept, refuse }: Question): Promise<boolean> {
  const dialog = document.createElement('dialog');
  dialog.className = 'je-root je-dialog';
  const add = (parent: HTMLElement, tag: string, text: string) => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    return element;
  };
  dialog.setAttribute('aria-label', title);
  add(dialog, 'strong', title);
  add(dialog, 'p', body);
  const buttons = add(dialog, 'div', '');
  buttons.className = 'je-buttons';
  add(buttons, 'button', refuse).onclick = () => dialog.close('');
  add(buttons, 'button', accept).onclick = () => dialog.close('yes');
  (buttons.lastElementChild as HTMLElement).className = 'je-main';
  (buttons.lastElementChild as HTMLElement).autofocus = true;
  document.body.appendChild(dialog);
  dialog.showModal();
  return new Promise(resolve => {
    dialog.onclose = () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    };
  });
}
