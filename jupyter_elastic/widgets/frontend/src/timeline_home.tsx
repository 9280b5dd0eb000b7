// A timeline in some place of a page: follows the pool while it is in sight, and shows a job that is opened.
import { render } from 'preact';
import type { Ask } from './ask';
import { FIRST } from './timeline';
import type { PoolScreen, TimelineLook, TimelineScreen } from './screens';
import { Feed, Server, type Home, type Look } from './server';
import { PolicyPicker } from './view/PolicyPicker';
import { JobView, type JobActions, type JobPage } from './view/JobView';
import type { Outputs } from './view/Ranks';
import { Timeline } from './view/Timeline';

/** What is looked at is asked for when a movement is over. */
const SETTLED_MS = 150;

/** Jobs whose names the what-if can say. */
const POOL_JOBS = 300;

export class TimelineHome {
  private feed: Feed | null = null;
  private came = 0;
  private down: number | null = null;
  private notice = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private opened: number | null = null;
  private page: JobPage | null = null;
  private script: string | null = null;
  private rank = 0;
  private seen: Outputs = {};
  private toFocus = false;
  private picking = false;
  private pool: PoolScreen | null = null;

  constructor(
    private node: HTMLElement,
    private home: Home | null,
    private ask: Ask,
    private look: TimelineLook = FIRST,
    private screen: TimelineScreen | null = null
  ) {
    this.came = performance.now();
    this.draw();
  }

  /** It is in sight. */
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
      job: page => {
        if (page.screen.job !== this.opened) return;
        for (const [rank, lines] of Object.entries(page.outputs)) if (lines.length) this.seen[rank] = lines;
        const ranks = Object.keys(page.outputs);
        this.page = { ...page, outputs: Object.fromEntries(ranks.map(rank => [rank, this.seen[rank] ?? []])) };
        this.draw();
      },
      missing: (_job, message) => {
        this.notice = message;
        this.draw();
      },
      down: (since, unfit) => {
        this.down = since;
        this.notice = unfit;
        this.draw();
      }
    });
  }

  /** Whoever comes by a command goes on by keyboard, as soon as there is a picture. */
  focus(): void {
    const chart = this.node.querySelector<HTMLElement>('.je-window');
    this.toFocus = !chart;
    chart?.focus();
  }

  /** It is no longer in sight: nothing is sent for it. */
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
    const jobs = this.opened === null ? {} : { jobs: [this.opened], ranks: { [this.opened]: this.rank } };
    return { timeline: this.look, ...jobs, ...(this.picking ? { pool: [0, POOL_JOBS] as [number, number] } : {}) };
  }

  private show(look: TimelineLook): void {
    this.look = look;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.feed?.show(this.wanted()), SETTLED_MS);
    this.draw();
  }

  private open(job: number | null): void {
    this.opened = job;
    this.page = null;
    this.script = null;
    this.rank = 0;
    this.seen = {};
    this.feed?.show(this.wanted());
    this.draw();
    if (job !== null) requestAnimationFrame(() => this.node.querySelector<HTMLElement>('.je-opened')?.focus());
    else this.node.querySelector<HTMLElement>('.je-window')?.focus();
  }

  /** Open or close the choice of a policy, with the futures of both. */
  private pick(): void {
    this.picking = !this.picking;
    this.feed?.show(this.wanted());
    this.draw();
    if (!this.picking) this.node.querySelector<HTMLElement>('.je-policy-change')?.focus();
  }

  private async cell(server: Server, job: number): Promise<void> {
    this.script = this.script === null ? await server.script(job).catch(problem => String(problem.message ?? problem)) : null;
    this.draw();
  }

  private draw(): void {
    if (!this.screen) {
      render(<div class="je-root je-timeline">{this.notice || (this.home ? 'Asking the pool…' : 'No Jupyter server is in reach of this page.')}</div>, this.node);
      return;
    }
    const actions = { look: (look: TimelineLook) => this.show(look), open: this.home ? (job: number) => this.open(job) : undefined, pick: this.home ? () => this.pick() : undefined };
    const picker = this.picking && this.pool && this.home && (
      <PolicyPicker screen={this.pool} actions={new Server(this.home).picker(() => this.pool!.policy)} close={() => this.pick()} />
    );
    render(
      <>
        <Timeline screen={this.screen} came={this.came} look={this.look} actions={actions} down={this.down} notice={this.notice} selected={this.opened ?? undefined} picker={picker} picking={this.picking} />
        {this.opened !== null && this.home && this.drawJob(this.opened, new Server(this.home))}
      </>,
      this.node
    );
    if (this.toFocus) this.focus();
  }

  private drawJob(job: number, server: Server) {
    const actions: JobActions = {
      ...server.actions(job),
      look: rank => {
        this.rank = rank;
        this.feed?.show(this.wanted());
      }
    };
    return (
      <section class="je-root je-opened" tabIndex={-1} aria-label={`job ${job}`}>
        <div class="je-bar-line">
          <h3>Job {job}</h3>
          <span class="je-buttons">
            <button aria-expanded={this.script !== null} onClick={() => void this.cell(server, job)}>
              Cell
            </button>
            <button onClick={() => this.open(null)}>Close</button>
          </span>
        </div>
        {this.script !== null && (
          <pre class="je-cell" tabIndex={0} role="region" aria-label="the cell">
            {this.script}
          </pre>
        )}
        {this.page ? <JobView page={this.page} actions={actions} ask={this.ask} /> : <p class="je-quiet">Asking the pool…</p>}
      </section>
    );
  }
}
