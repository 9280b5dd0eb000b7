// Draws a job below its cell, from our own MIME type: the server extension feeds it, so it lives without a kernel.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import type { JobActions } from '../actions';
import { Feed, type Look, noAnswer } from '../feed';
import { clock, day } from '../format';
import { findHome } from '../home';
import { ENDED } from '../phases';
import type { JobPage, KeptPage } from '../screens';
import { Server } from '../server';
import { JobView } from '../view/job/JobView';
import { NoPage } from '../view/job/NoPage';
import { SeenOutputs } from '../view/job/outputs';
import { askInLab } from './dialog';

export const MIME = 'application/vnd.jupyter-elastic.job+json';

/** The content of an output in a notebook's file. */
interface Saved {
  job: number;
  /** Name of the job's folder: it is random, and so tells equal numbers of two pools apart. */
  folder?: string;
  /** True if a cell waited for the job when this was written. */
  waits?: boolean;
  /** True if the cell has waited for the job's end: its traceback stands below, as the cell's own error. */
  failure_apart?: boolean;
  page?: JobPage;
}

const FOREIGN = 'This job is from another pool. What you see was saved with the notebook';

/** Milliseconds between requests for the page that the file keeps, while the job's phase is the same. */
const KEPT_MS = 60_000;

/** Minimum milliseconds between two such requests. */
const ASK_MS = 1000;

/** Milliseconds to the next request where the answer is missing, or older than the page. */
const ASK_AGAIN_MS = 5000;

/** The views of jobs, by the output that each draws. */
const viewOfOutput = new WeakMap<object, JobRenderer>();

/** The views in open notebooks. */
const openViews = new Set<JobRenderer>();

/** Return the view of a job below its cell; null where its notebook is not open in this page. */
export function viewOf(job: number, folder: string): Widget | null {
  return [...openViews].find(view => view.shows(job, folder)) ?? null;
}

/** Put the present page of a job into its output; called before the notebook is saved. */
export function keep(output: object): void {
  viewOfOutput.get(output)?.save();
}

export class JobRenderer extends Widget implements IRenderMime.IRenderer {
  private feed: Feed | null = null;
  private page: JobPage | null = null;
  private notice = '';
  private home = findHome();
  private job = 0;
  private saved: Saved | null = null;
  /** False if the server's job of this number is another pool's job. */
  private ours = true;
  private released = false;
  private model: IRenderMime.IMimeModel | null = null;
  private kept: KeptPage | null = null;
  private keptAt = 0;
  private asking: ReturnType<typeof setTimeout> | undefined;
  /** True once the page is the server's, and not the file's. */
  private fresh = false;
  /** The rank in sight: the server sends no other rank's lines. */
  private rank = 0;
  private seen = new SeenOutputs();

  constructor() {
    super();
    this.addClass('je-renderer');
    openViews.add(this);
    // The widget above is hidden until the server is known not to answer.
    this.toggleClass('je-live', this.home !== null);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const saved = model.data[MIME] as unknown as Saved;
    this.model = model;
    viewOfOutput.set(model, this);
    // The kernel's newer page, where no server sends one.
    if (saved.page && (!this.fresh || !this.ours)) this.page = saved.page;
    const other = this.saved?.job !== saved.job || this.saved?.folder !== saved.folder;
    this.saved = saved;
    if (other) {
      this.job = saved.job;
      this.ours = true;
      this.released = false;
      this.rank = 0;
      this.seen = new SeenOutputs();
      this.feed?.close();
      this.feed = this.home && this.follow(this.home);
    }
    if (!this.home) this.notice = 'No Jupyter server is in reach of this page.';
    this.draw();
  }

  shows(job: number, folder: string): boolean {
    return this.job === job && (!this.saved?.folder || this.saved.folder === folder) && this.node.isConnected;
  }

  dispose(): void {
    openViews.delete(this);
    clearTimeout(this.asking);
    this.feed?.close();
    render(null, this.node);
    super.dispose();
  }

  private request(): Look {
    return { jobs: [this.job], ranks: { [this.job]: this.rank } };
  }

  private follow(home: NonNullable<ReturnType<typeof findHome>>): Feed {
    return new Feed(home, this.request(), {
      job: page => {
        if (!isOfJob(this.saved, page)) return this.showSaved('');
        this.page = this.seen.complete(page);
        this.fresh = true;
        void this.requestKept(page);
        this.notice = '';
        if (!this.hasClass('je-live')) this.addClass('je-live'); // to set a class again costs a new layout
        this.draw();
      },
      missing: (_job, message) => this.showSaved(`Here ${message}.`),
      waiting: (_job, message) => {
        this.notice = message;
        this.draw();
      },
      down: (since, unfit) => {
        this.toggleClass('je-live', since === null);
        this.toggleClass('je-unfit', unfit !== '');
        this.notice = since === null ? '' : unfit || noAnswer(since);
        this.draw();
      }
    });
  }

  private async requestKept(page: JobPage): Promise<void> {
    const { phase } = page.screen;
    if (phase === this.kept?.page.screen.phase && (ENDED.includes(phase) || Date.now() - this.keptAt < KEPT_MS)) return;
    const wait = this.keptAt + ASK_MS - Date.now();
    if (wait > 0) return this.requestAgain(wait); // a request is under way, or the phase changes fast
    this.keptAt = Date.now();
    this.kept = (await new Server(this.home!).kept(this.job).catch(() => null)) ?? this.kept;
    this.seen.add(this.kept?.page.outputs ?? {}, this.rank);
    if (phase !== this.kept?.page.screen.phase) this.requestAgain(ASK_AGAIN_MS);
  }

  /** Repeat the request without news of the job: the server sends the page of its end once. */
  private requestAgain(wait: number): void {
    clearTimeout(this.asking);
    if (!this.isDisposed && this.ours)
      this.asking = setTimeout(() => this.page && void this.requestKept(this.page), wait);
  }

  /** Put the present page into the notebook if it is newer than the saved one; no kernel is needed for that. */
  save(): void {
    if (!this.page || !this.model || !this.saved || !this.fresh || !this.ours) return;
    const known = this.saved.page?.screen;
    if (known && (ENDED.includes(known.phase) || known.now >= this.page.screen.now)) return;
    const forms = this.kept && !(known && known.now >= this.kept.page.screen.now) ? this.kept.forms : {};
    this.saved = {
      ...this.saved,
      page: { ...this.page, outputs: { ...this.page.outputs, ...this.seen.all }, notice: '' }
    };
    this.model.setData({ data: { ...this.model.data, ...forms, [MIME]: this.saved as never } });
  }

  /** Show the saved page: the server does not know this job. */
  private showSaved(why: string): void {
    this.ours = false;
    this.page = this.saved?.page ?? this.page;
    const screen = this.page?.screen;
    const when = screen && !ENDED.includes(screen.phase) ? `, as of ${clock(screen.now)}, ${day(screen.now)}` : '';
    this.notice = `${FOREIGN}${when}. ${why}`.trim();
    this.feed?.close();
    this.feed = null;
    this.draw();
  }

  private draw(): void {
    if (this.isDisposed) return;
    if (!this.page) {
      render(<NoPage job={this.job} notice={this.notice} />, this.node);
      return;
    }
    const server = this.ours && this.home ? new Server(this.home) : null;
    const page = {
      ...this.page,
      notice: this.notice || this.page.notice,
      traceback: this.saved?.failure_apart ? '' : this.page.traceback
    };
    const background = async () => {
      await server?.background(this.job);
      this.released = true;
      this.draw();
    };
    const actions: JobActions = server
      ? {
          ...server.actions(this.job),
          background: this.saved?.waits && !this.released ? background : undefined,
          look: rank => {
            this.rank = rank;
            this.feed?.show(this.request());
          }
        }
      : {};
    render(<JobView page={page} actions={actions} ask={askInLab} />, this.node);
  }
}

/**
 * Return whether the page is of the saved job: a number alone may be another pool's. Notebooks without a folder's name
 * are believed.
 */
function isOfJob(saved: Saved | null, page: JobPage): boolean {
  return !saved?.folder || saved.folder === page.folder;
}
