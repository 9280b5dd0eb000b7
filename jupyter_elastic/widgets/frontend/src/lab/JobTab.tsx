// A job in a tab of its own, from the side bar and the timeline, also without the notebook that it comes from.
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { Feed, noAnswer } from '../feed';
import type { Home } from '../home';
import type { JobPage } from '../screens';
import { Server } from '../server';
import { JobView } from '../view/job/JobView';
import { NoPage } from '../view/job/NoPage';
import { SeenOutputs } from '../view/job/outputs';
import { askInLab } from './dialog';

/** Name of the folder in the page of another user's job. */
const OTHERS = "another-user's";

export class JobTab extends Widget {
  private feed: Feed;
  private server: Server;
  private page: JobPage | null = null;
  private notice = '';
  private rank = 0;
  private seen = new SeenOutputs();

  /** `cell` returns the function that shows the cell of this job; undefined where its notebook is not open. */
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
        this.page = this.seen.complete(page);
        this.title.label = this.title.caption = `${page.screen.name} (job ${job})`;
        this.setNotice('');
      },
      missing: (_job, message) => this.setNotice(`Here ${message}.`),
      waiting: (_job, message) => this.setNotice(message),
      down: (since, unfit) => this.setNotice(since === null ? '' : unfit || noAnswer(since))
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

  private setNotice(notice: string): void {
    this.notice = notice;
    this.draw();
  }

  private draw(): void {
    if (this.isDisposed) return;
    const page = this.page;
    if (!page) {
      render(<NoPage job={this.job} notice={this.notice} />, this.node);
      return;
    }
    const look = (rank: number) => {
      this.rank = rank;
      this.feed.show(this.look());
    };
    const code = async () => (await this.server.script(this.job)).script;
    const actions =
      page.folder === OTHERS ? {} : { ...this.server.actions(this.job), look, cell: this.cell(page), code };
    render(
      <JobView page={{ ...page, notice: this.notice || page.notice }} actions={actions} ask={askInLab} whole />,
      this.node
    );
  }
}
