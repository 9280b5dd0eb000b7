// The renderer of our own MIME type: a job under its cell. It asks the server extension, so it lives without a kernel.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { clock, day } from '../format';
import type { JobPage, KeptPage } from '../screens';
import { Feed, findHome, Server, type Look } from '../server';
import { askInLab } from './dialog';
import { renderer as pool } from './pool_renderer';
import { renderer as timeline } from './timeline_renderer';
import { ENDED, JobView, type JobActions } from '../view/JobView';
import type { Outputs } from '../view/Ranks';

const MIME = 'application/vnd.jupyter-elastic.job+json';

interface Saved {
  job: number;
  /** The folder's name is random: it says which pool's number this is. */
  folder?: string;
  /** A cell waited for the job when this was written. */
  waits?: boolean;
  /** The cell has waited for the job's end: its traceback stands below, as the cell's own error. */
  failure_apart?: boolean;
  page?: JobPage;
}

const FOREIGN = 'This job is from another pool. What you see was saved with the notebook';
/** What the file is to keep is asked for anew so often, and when the job has come to another phase. */
const KEPT_MS = 60_000;
/** Minimum milliseconds between two requests for it. */
const ASK_MS = 1000;
/** Milliseconds after which it is requested again if the answer is missing, or older than the page. */
const ASK_AGAIN_MS = 5000;

/** The job's view that draws this output. */
const drawn = new WeakMap<object, JobRenderer>();

/** Those that stand in open notebooks. */
const standing = new Set<JobRenderer>();

/** The view of a job below its cell, where its notebook is open in this page. */
export function viewOf(job: number, folder: string): Widget | null {
  return [...standing].find(view => view.shows(job, folder)) ?? null;
}

/** Let an output that shows a job keep what is so now; called when its notebook is about to be saved. */
export function keep(output: object): void {
  drawn.get(output)?.save();
}

class JobRenderer extends Widget implements IRenderMime.IRenderer {
  private feed: Feed | null = null;
  private page: JobPage | null = null;
  private notice = '';
  private home = findHome();
  private job = 0;
  private saved: Saved | null = null;
  /** Whether the server's job of this number is the one that the notebook means. */
  private ours = true;
  private released = false;
  private model: IRenderMime.IMimeModel | null = null;
  private kept: KeptPage | null = null;
  private keptAt = 0;
  private asking: ReturnType<typeof setTimeout> | undefined;
  /** Whether the page is the server's, and not the file's. */
  private fresh = false;
  /** The rank in sight: the server sends its lines alone. */
  private rank = 0;
  /** The last lines of each rank that have come. */
  private seen: Outputs = {};

  constructor() {
    super();
    this.addClass('je-renderer');
    standing.add(this);
    // Until the server is known not to answer, the widget above steps back.
    this.toggleClass('je-live', this.home !== null);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const saved = model.data[MIME] as unknown as Saved;
    this.model = model;
    drawn.set(model, this);
    if (saved.page && (!this.fresh || !this.ours)) this.page = saved.page; // what the kernel renews, where no server does
    const other = this.saved?.job !== saved.job || this.saved?.folder !== saved.folder;
    this.saved = saved;
    if (other) {
      this.job = saved.job;
      this.ours = true;
      this.released = false;
      this.rank = 0;
      this.seen = {};
      this.feed?.close();
      this.feed = this.home && this.listen(this.home);
    }
    if (!this.home) this.notice = 'No Jupyter server is in reach of this page.';
    this.draw();
  }

  shows(job: number, folder: string): boolean {
    return this.job === job && (!this.saved?.folder || this.saved.folder === folder) && this.node.isConnected;
  }

  dispose(): void {
    standing.delete(this);
    clearTimeout(this.asking);
    this.feed?.close();
    render(null, this.node);
    super.dispose();
  }

  private look(): Look {
    return { jobs: [this.job], ranks: { [this.job]: this.rank } };
  }

  private listen(home: NonNullable<ReturnType<typeof findHome>>): Feed {
    return new Feed(
      home,
      this.look(),
      {
        job: page => {
          if (!same(this.saved, page)) return this.stay('');
          this.page = this.withSeen(page);
          this.fresh = true;
          void this.askWhatToKeep(page);
          this.notice = '';
          if (!this.hasClass('je-live')) this.addClass('je-live'); // a class that is set again is styled again
          this.draw();
        },
        missing: (_job, message) => this.stay(`Here ${message}.`),
        waiting: (_job, message) => {
          this.notice = message;
          this.draw();
        },
        down: (since, unfit) => {
          this.toggleClass('je-live', since === null);
          this.toggleClass('je-unfit', unfit !== '');
          if (since === null) this.notice = '';
          else if (unfit) this.notice = unfit;
          else this.notice = `The Jupyter server has not answered since ${clock(since)}. The job goes on; this view reconnects by itself.`;
          this.draw();
        }
      }
    );
  }

  private withSeen(page: JobPage): JobPage {
    for (const [rank, lines] of Object.entries(page.outputs)) if (lines.length) this.seen[rank] = lines;
    const ranks = Object.keys(page.outputs);
    return { ...page, outputs: Object.fromEntries(ranks.map(rank => [rank, this.seen[rank] ?? []])) };
  }

  private async askWhatToKeep(page: JobPage): Promise<void> {
    const { phase } = page.screen;
    if (phase === this.kept?.page.screen.phase && (ENDED.includes(phase) || Date.now() - this.keptAt < KEPT_MS)) return;
    const wait = this.keptAt + ASK_MS - Date.now();
    if (wait > 0) return this.askAgain(wait); // a request is under way, or the phase changes fast
    this.keptAt = Date.now();
    this.kept = (await new Server(this.home!).kept(this.job).catch(() => null)) ?? this.kept;
    for (const [rank, lines] of Object.entries(this.kept?.page.outputs ?? {})) if (Number(rank) !== this.rank) this.seen[rank] = lines;
    if (phase !== this.kept?.page.screen.phase) this.askAgain(ASK_AGAIN_MS);
  }

  /** Ask without news of the job: the server sends the page of its end once. */
  private askAgain(wait: number): void {
    clearTimeout(this.asking);
    if (!this.isDisposed) this.asking = setTimeout(() => this.page && void this.askWhatToKeep(this.page), wait);
  }

  /** Put into the notebook what is so now, where that is newer than what it has: no kernel need be there for that. */
  save(): void {
    if (!this.page || !this.model || !this.saved || !this.fresh || !this.ours) return;
    const known = this.saved.page?.screen;
    if (known && (ENDED.includes(known.phase) || known.now >= this.page.screen.now)) return;
    const forms = this.kept && !(known && known.now >= this.kept.page.screen.now) ? this.kept.forms : {};
    this.saved = { ...this.saved, page: { ...this.page, outputs: { ...this.page.outputs, ...this.seen }, notice: '' } };
    this.model.setData({ data: { ...this.model.data, ...forms, [MIME]: this.saved as never } });
  }

  /** Show what was saved: the server knows nothing of this job. */
  private stay(why: string): void {
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
      render(<div class="je-root je-job">{this.notice || `job ${this.job}: asking the server…`}</div>, this.node);
      return;
    }
    const server = this.ours && this.home ? new Server(this.home) : null;
    const page = { ...this.page, notice: this.notice || this.page.notice, traceback: this.saved?.failure_apart ? '' : this.page.traceback };
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
            this.feed?.show(this.look());
          }
        }
      : {};
    render(<JobView page={page} actions={actions} ask={askInLab} />, this.node);
  }
}

/** A number alone may be another pool's job. Notebooks from before the folder was saved are believed. */
function same(saved: Saved | null, page: JobPage): boolean {
  return !saved?.folder || saved.folder === page.folder;
}

const extension: IRenderMime.IExtension = {
  id: 'jupyter-elastic:job-renderer',
  rendererFactory: { safe: true, mimeTypes: [MIME], defaultRank: 0, createRenderer: () => new JobRenderer() },
  rank: 0,
  dataType: 'json'
};

export default [extension, pool, timeline];
