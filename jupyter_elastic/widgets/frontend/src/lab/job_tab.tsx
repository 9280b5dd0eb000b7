// One job in a tab of its own: from the panel and the timeline, also without the notebook that it comes from.
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { clock } from '../format';
import type { JobPage } from '../screens';
import { Feed, Server, type Home } from '../server';
import { JobView } from '../view/JobView';
import type { Outputs } from '../view/Ranks';
import { askInLab } from './dialog';

/** Stands for the folder of somebody else's job. */
const OTHERS = "another-user's";

export class JobTab extends Widget {
  private feed: Feed;
  private server: Server;
  private page: JobPage | null = null;
  private notice = '';
  private rank = 0;
  private seen: Outputs = {};

  /** `cell`: what shows the cell of this job, where its notebook is open. */
  constructor(
    home: Home,
    readonly job: number,
    private cell: (page: JobPage) => (() => void) | undefined
  ) {
    super();
    this.addClass('je-job-tab');
    this.node.tabIndex = -1;
    this.server = new Server(home);
    this.feed = new Feed(home, this.look(), {
      job: page => {
        for (const [rank, lines] of Object.entries(page.outputs)) if (lines.length) this.seen[rank] = lines;
        const ranks = Object.keys(page.outputs);
        this.page = { ...page, outputs: Object.fromEntries(ranks.map(rank => [rank, this.seen[rank] ?? []])) };
        this.title.label = this.title.caption = `${page.screen.name} (job ${job})`;
        this.say('');
      },
      missing: (_job, message) => this.say(`Here ${message}.`),
      waiting: (_job, message) => this.say(message),
      down: (since, unfit) =>
        this.say(since === null ? '' : unfit || `The Jupyter server has not answered since ${clock(since)}. The job goes on; this view reconnects by itself.`)
    });
    this.draw();
  }

  protected onActivateRequest(): void {
    this.node.focus();
  }

  dispose(): void {
    this.feed.close();
    render(null, this.node);
    super.dispose();
  }

  private look() {
    return { jobs: [this.job], ranks: { [this.job]: this.rank } };
  }

  private say(notice: string): void {
    this.notice = notice;
    this.draw();
  }

  private draw(): void {
    if (this.isDisposed) return;
    const page = this.page;
    if (!page) {
      render(<div class="je-root je-job">{this.notice || `job ${this.job}: asking the server…`}</div>, this.node);
      return;
    }
    const look = (rank: number) => {
      this.rank = rank;
      this.feed.show(this.look());
    };
    const code = async () => (await this.server.script(this.job)).script;
    const actions = page.folder === OTHERS ? {} : { ...this.server.actions(this.job), look, cell: this.cell(page), code };
    render(<JobView page={{ ...page, notice: this.notice || page.notice }} actions={actions} ask={askInLab} whole />, this.node);
  }
}
