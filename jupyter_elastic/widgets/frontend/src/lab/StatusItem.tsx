// The pool in a line of the status bar.
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { Feed } from '../feed';
import { plural } from '../format';
import type { Home } from '../home';
import type { EndedRow, PoolStatus } from '../screens';

export class StatusItem extends Widget {
  /** Emitted when the pool is known for the first time. */
  readonly changed = new Signal<this, void>(this);
  readonly ended = new Signal<this, EndedRow>(this);
  private feed: Feed | null = null;
  private status: PoolStatus | null = null;
  private down = false;
  /** Ended jobs that were announced; null before the first message, whose ended jobs are no news. */
  private announced: Set<number> | null = null;

  constructor(
    private home: Home,
    private open: () => void
  ) {
    super();
    this.addClass('je-status');
  }

  /** True once the pool is known. */
  get known(): boolean {
    return this.status !== null;
  }

  /** Follow the pool, or stop. */
  listen(on: boolean): void {
    if (!on) this.feed?.close();
    this.feed = on ? (this.feed ?? this.follow()) : null;
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
    const news = status.ended.filter(row => this.announced && !this.announced.has(row.job));
    this.announced = new Set(status.ended.map(row => row.job));
    for (const row of news) this.ended.emit(row);
    this.draw();
    if (first) this.changed.emit();
  }

  private draw(): void {
    const status = this.status;
    if (this.isDisposed || !status) return;
    const unit = status.kind === 'gpu' ? 'GPU' : 'slot';
    const mine = [status.running && `${status.running} running`, status.waiting && `${status.waiting} waiting`]
      .filter(Boolean)
      .join(', ');
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
