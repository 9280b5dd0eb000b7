// Notifies the user, by the browser, when a long job has ended.
import { duration } from '../format';
import type { EndedRow } from '../screens';
import { StatusItem } from './StatusItem';

/** Notify of each end of a job that has run for longer than `minutes()`; 0: of none. */
export function announceEnds(status: StatusItem, minutes: () => number, open: (job: EndedRow) => void): void {
  status.ended.connect((_, row) => {
    const ran = row.ended_at - (row.started_at ?? row.ended_at);
    if (!minutes() || ran < 60 * minutes() || typeof Notification === 'undefined') return;
    void allowed().then(yes => {
      if (!yes) return;
      const notification = new Notification(`${row.name}: ${row.outcome}`, {
        body: `job ${row.job}, after ${duration(ran)}`,
        tag: `jupyter-elastic-${row.job}`
      });
      notification.onclick = () => (window.focus(), open(row), notification.close());
    });
  });
}

/** Return whether the browser allows notifications; it asks the person if that is not decided. */
export async function allowed(): Promise<boolean> {
  return (
    (Notification.permission === 'default' ? await Notification.requestPermission() : Notification.permission) ===
    'granted'
  );
}
