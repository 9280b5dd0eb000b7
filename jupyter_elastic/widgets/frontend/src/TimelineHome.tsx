// A timeline in some place of a page; it follows the pool while it is in sight.
import { render } from 'preact';
import { Feed, type Look } from './feed';
import type { Home } from './home';
import type { PoolScreen, TimelineLook, TimelineScreen } from './screens';
import { Server } from './server';
import { FIRST } from './timeline';
import { PolicyPicker } from './view/policy/PolicyPicker';
import { Timeline } from './view/timeline/Timeline';

/** Milliseconds after the last movement until the server is asked for the window. */
const SETTLED_MS = 150;

/** Maximum number of jobs whose names the what-if shows. */
const POOL_JOBS = 300;

export class TimelineHome {
  private feed: Feed | null = null;
  private came = 0;
  private down: number | null = null;
  private notice = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private toFocus = false;
  private picking = false;
  private pool: PoolScreen | null = null;

  constructor(
    private node: HTMLElement,
    private home: Home | null,
    private open: (job: number) => void,
    private look: TimelineLook = FIRST,
    private screen: TimelineScreen | null = null
  ) {
    this.came = performance.now();
    this.draw();
  }

  /** Follow the pool: the timeline is in sight. */
  start(): void {
    if (this.feed || !this.home) return;
    this.feed = new Feed(this.home, this.wanted(), {
      timeline: (screen, down) => {
        this.screen = screen;
        this.came = performance.now();
        this.down = down;
        this.notice = '';
        this.draw();
      },
      pool: screen => {
        this.pool = screen;
        this.draw();
      },
      down: (since, unfit) => {
        this.down = since;
        this.notice = unfit;
        this.draw();
      }
    });
  }

  /** Focus the picture as soon as there is one: a person who opens the timeline by a command goes on by keyboard. */
  focus(): void {
    const chart = this.node.querySelector<HTMLElement>('.je-window');
    this.toFocus = !chart;
    chart?.focus();
  }

  /** Close the socket: the timeline is no longer in sight, and the server sends nothing for it. */
  stop(): void {
    clearTimeout(this.timer);
    this.feed?.close();
    this.feed = null;
  }

  dispose(): void {
    this.stop();
    render(null, this.node);
  }

  private wanted(): Look {
    return { timeline: this.look, ...(this.picking ? { pool: [0, POOL_JOBS] as [number, number] } : {}) };
  }

  private show(look: TimelineLook): void {
    this.look = look;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.feed?.show(this.wanted()), SETTLED_MS);
    this.draw();
  }

  /** Open or close the policy picker, which shows the futures under both policies. */
  private pick(): void {
    this.picking = !this.picking;
    this.feed?.show(this.wanted());
    this.draw();
    if (!this.picking) this.node.querySelector<HTMLElement>('.je-policy-change')?.focus();
  }

  private draw(): void {
    if (!this.screen) {
      render(
        <div class="je-root je-timeline">
          {this.notice || (this.home ? 'Asking the pool…' : 'No Jupyter server is in reach of this page.')}
        </div>,
        this.node
      );
      return;
    }
    const actions = {
      look: (look: TimelineLook) => this.show(look),
      open: this.home ? this.open : undefined,
      pick: this.home ? () => this.pick() : undefined
    };
    const picker = this.picking && this.pool && this.home && (
      <PolicyPicker
        screen={this.pool}
        actions={new Server(this.home).picker(() => this.pool!.policy)}
        close={() => this.pick()}
      />
    );
    render(
      <Timeline
        screen={this.screen}
        came={this.came}
        look={this.look}
        actions={actions}
        down={this.down}
        notice={this.notice}
        picker={picker}
        picking={this.picking}
      />,
      this.node
    );
    if (this.toFocus) this.focus();
  }
}
