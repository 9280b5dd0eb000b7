// The pool in a line of the status bar, and a notification of the browser when a long job of one's own has ended.
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { duration, plural } from '../format';
import type { EndedRow, PoolStatus } from '../screens';
import { Feed, type Home } from '../server';

export class StatusItem extends Widget {
  /** Emitted when it has something to show for the first time, or no longer. */
  readonly changed = new Signal<this, void>(this);
  readonly ended = new Signal<this, EndedRow>(this);
  private feed: Feed | null = null;
  private status: PoolStatus | null = null;
  private down = false;
  /** Ends that were there when this began are no news. */
  private told: Set<number> | null = null;

  constructor(
    private home: Home,
    private open: () => void
  ) {
    super();
    this.addClass('je-status');
  }

  /** Whether the pool is known. */
  get known(): boolean {
    return this.status !== null;
  }

  /** Follow the pool, or no longer. */
  listen(on: boolean): void {
    if (!on) this.feed?.close();
    this.feed = on ? this.feed ?? this.follow() : null;
  }

  dispose(): void {
    this.feed?.close();
    render(null, this.node);
    super.dispose();
  }

  private follow(): Feed {
    return new Feed(
      this.home,
      { status: true },
      {
        status: (status, down) => this.take(status, down !== null),
        down: since => {
          this.down = since !== null;
          this.draw();
        }
      }
    );
  }

  private take(status: PoolStatus, down: boolean): void {
    const first = this.status === null;
    [this.status, this.down] = [status, down];
    const news = status.ended.filter(row => this.told && !this.told.has(row.job));
    this.told = new Set(status.ended.map(row => row.job));
    for (const row of news) this.ended.emit(row);
    this.draw();
    if (first) this.changed.emit();
  }

  private draw(): void {
    const status = this.status;
    if (this.isDisposed || !status) return;
    const unit = status.kind === 'gpu' ? 'GPU' : 'slot';
    const mine = [status.running && `${status.running} running`, status.waiting && `${status.waiting} waiting`].filter(Boolean).join(', ');
    const text = this.down ? 'Pool: no answer' : `${status.free} of ${plural(status.capacity, unit)} free`;
    const jobs = mine && !this.down ? ` · my jobs: ${mine}` : '';
    render(
      <button class="je-status-item" title="Show the Elastic Pool" onClick={this.open}>
        {text}
        {jobs}
      </button>,
      this.node
    );
  }
}

/** Tell of each end of a job that has run for longer than so many minutes; 0: of none. */
export function announceEnds(status: StatusItem, minutes: () => number, open: (job: EndedRow) => void): void {
  status.ended.connect((_, row) => {
    const ran = row.ended_at - (row.started_at ?? row.ended_at);
    if (!minutes() || ran < 60 * minutes() || typeof Notification === 'undefined') return;
    void allowed().then(yes => {
      if (!yes) return;
      const notification = new Notification(`${row.name}: ${row.outcome}`, { body: `job ${row.job}, after ${duration(ran)}`, tag: `jupyter-elastic-${row.job}` });
      notification.onclick = () => (window.focus(), open(row), notification.close());
    });
  });
}

/** Whether the browser lets us; it asks the person where that is open. */
export async function allowed(): Promise<boolean> {
  return (Notification.permission === 'default' ? await Notification.requestPermission() : Notification.permission) === 'granted';
}
