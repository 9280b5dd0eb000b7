// The side panel: the pool, live as long as the page, with or without a kernel; also what stands below a cell whose kernel is gone.
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { clock, day } from '../format';
import type { PoolScreen, ShadowRow } from '../screens';
import { Feed, Server, type Home } from '../server';
import { askInLab } from './dialog';
import { PolicyPicker } from '../view/PolicyPicker';
import { PoolView } from '../view/PoolView';

const FIRST = 60;

export class PoolPanel extends Widget {
  private feed: Feed | null = null;
  private server: Server;
  private screen: PoolScreen | null;
  /** Whether the screen is the file's, and not the server's. */
  private kept: boolean;
  private readonly wide: boolean;
  private offset = 0;
  private poolDown: number | null = null;
  private serverDown: number | null = null;
  private unfit = '';
  private picking = false;

  /** `open`: what shows a job in a tab. `screen`: what a notebook's file keeps, which stands in its width until the server answers. */
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

  /** Whoever opens it by a command goes on in it by keyboard. */
  protected onActivateRequest(): void {
    this.node.focus();
  }

  protected onAfterShow(): void {
    this.start();
  }

  protected onAfterHide(): void {
    this.stop();
  }

  /** It is in sight. */
  start(): void {
    this.feed ??= new Feed(
      this.home,
      { pool: [0, FIRST] },
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

  /** It is no longer in sight: nothing is sent for it. */
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
      const text = this.unfit || (this.serverDown === null ? 'Asking the pool…' : 'The server extension of jupyter-elastic does not answer; trying again.');
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
        down={this.kept ? null : this.serverDown ?? this.poolDown}
        notice={[this.kept && `As of ${clock(screen.at)}, ${day(screen.at)}: saved with the notebook.`, this.unfit].filter(Boolean).join(' ')}
        wide={this.wide}
        ask={askInLab}
        actions={{ ...(this.kept ? {} : actions), window: (offset, limit) => this.feed?.show({ pool: [offset, Math.min(Math.max(limit, FIRST), 500)] }) }}
        picker={this.picking && <PolicyPicker screen={screen} actions={picker} close={close} />}
      />,
      this.node
    );
  }
}
