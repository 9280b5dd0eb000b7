// The side bar's pool, live with or without a kernel; it also stands below a cell whose kernel is gone.
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { Feed } from '../feed';
import { clock, day } from '../format';
import type { Home } from '../home';
import type { PoolScreen, ShadowRow } from '../screens';
import { Server } from '../server';
import { PolicyPicker } from '../view/policy/PolicyPicker';
import { PoolView } from '../view/pool/PoolView';
import { askInLab } from './dialog';

/** Number of jobs in the first window of the table. */
const FIRST_JOBS = 60;

export class PoolPanel extends Widget {
  private feed: Feed | null = null;
  private server: Server;
  private screen: PoolScreen | null;
  /** True while the screen is the file's, and not the server's. */
  private kept: boolean;
  private readonly wide: boolean;
  private offset = 0;
  private poolDown: number | null = null;
  private serverDown: number | null = null;
  private unfit = '';
  private picking = false;

  /**
   * `open` shows a job in a tab. `screen` is the one of a notebook's file, shown until the server answers; below a cell
   * the view is wide.
   */
  constructor(
    private home: Home,
    private open: (job: number) => void,
    screen: PoolScreen | null = null
  ) {
    super();
    this.screen = screen;
    this.kept = this.wide = screen !== null;
    this.server = new Server(home);
    this.toggleClass('je-panel', !this.wide);
    this.node.tabIndex = -1;
    if (this.wide) this.draw();
  }

  /** Take the focus: a person who opens the panel by a command goes on by keyboard. */
  protected onActivateRequest(): void {
    this.node.focus();
  }

  protected onAfterShow(): void {
    this.start();
  }

  protected onAfterHide(): void {
    this.stop();
  }

  /** Follow the pool: the panel is in sight. */
  start(): void {
    this.feed ??= new Feed(
      this.home,
      { pool: [0, FIRST_JOBS] },
      {
        pool: (screen, offset, down) => {
          this.screen = screen;
          this.kept = false;
          this.offset = offset;
          this.poolDown = down;
          this.draw();
        },
        down: (since, unfit) => {
          this.serverDown = since;
          this.unfit = unfit;
          this.draw();
        }
      }
    );
    this.draw();
  }

  /** Close the socket: the panel is no longer in sight, and the server sends nothing for it. */
  stop(): void {
    this.feed?.close();
    this.feed = null;
  }

  dispose(): void {
    this.feed?.close();
    render(null, this.node);
    super.dispose();
  }

  private draw(): void {
    if (this.isDisposed) return;
    if (!this.screen) {
      const text =
        this.unfit ||
        (this.serverDown === null
          ? 'Asking the pool…'
          : 'The server extension of jupyter-elastic does not answer; trying again.');
      render(<div class="je-root je-pool je-section">{text}</div>, this.node);
      return;
    }
    const close = () => {
      this.picking = false;
      this.draw();
    };
    const screen = this.screen;
    const picker = this.server.picker(() => screen.policy);
    const actions = {
      cancel: (job: number) => this.server.cancel(job),
      open: this.open,
      unshadow: (row: ShadowRow) => picker.unshadow(row.policy),
      openPicker: () => ((this.picking = !this.picking), this.draw())
    };
    render(
      <PoolView
        screen={screen}
        offset={this.offset}
        down={this.kept ? null : (this.serverDown ?? this.poolDown)}
        notice={[this.kept && `As of ${clock(screen.at)}, ${day(screen.at)}: saved with the notebook.`, this.unfit]
          .filter(Boolean)
          .join(' ')}
        wide={this.wide}
        ask={askInLab}
        actions={{
          ...(this.kept ? {} : actions),
          window: (offset, limit) => this.feed?.show({ pool: [offset, Math.min(Math.max(limit, FIRST_JOBS), 500)] })
        }}
        picker={this.picking && <PolicyPicker screen={screen} actions={picker} close={close} />}
      />,
      this.node
    );
  }
}
