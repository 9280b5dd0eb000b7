// The renderer of our own MIME type: a job under its cell. It asks the server extension, so it lives without a kernel.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { render } from 'preact';
import { Feed, findHome, Server } from '../server';
import { JobView, type JobPage } from '../view/JobView';

const MIME = 'application/vnd.jupyter-elastic.job+json';

interface Saved {
  job: number;
  page?: JobPage;
}

class JobRenderer extends Widget implements IRenderMime.IRenderer {
  private feed: Feed | null = null;
  private page: JobPage | null = null;
  private notice = '';
  private home = findHome();
  private job = 0;

  constructor() {
    super();
    this.addClass('je-renderer');
    // Until the server is known not to answer, the widget above steps back.
    this.toggleClass('je-live', this.home !== null);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const saved = model.data[MIME] as unknown as Saved;
    if (saved.page && !this.page) this.page = saved.page;
    if (this.job !== saved.job) {
      this.job = saved.job;
      this.feed?.close();
      this.feed = this.home && this.listen(this.home, saved.job);
    }
    if (!this.home) this.notice = 'No Jupyter server is in reach of this page.';
    this.draw();
  }

  dispose(): void {
    this.feed?.close();
    render(null, this.node);
    super.dispose();
  }

  private listen(home: NonNullable<ReturnType<typeof findHome>>, job: number): Feed {
    return new Feed(
      home,
      { jobs: [job] },
      {
        job: page => {
          this.page = page;
          this.notice = '';
          this.addClass('je-live');
          this.draw();
        },
        missing: (_job, message) => {
          this.notice = message;
          this.draw();
        },
        down: since => {
          this.toggleClass('je-live', since === null);
          if (since === null) this.notice = '';
          else this.notice = `The Jupyter server has not answered since ${new Date(since * 1000).toLocaleTimeString()}. The job goes on; this view comes back by itself.`;
          this.draw();
        }
      }
    );
  }

  private draw(): void {
    if (this.isDisposed) return;
    if (!this.page) {
      render(<div class="je-root je-job">{this.notice || `job ${this.job}: asking the server…`}</div>, this.node);
      return;
    }
    const server = this.home && new Server(this.home);
    const tell = (error: Error) => {
      this.notice = error.message;
      this.draw();
    };
    const page = this.notice ? { ...this.page, notice: this.notice } : this.page;
    const actions = {
      cancel: () => void server?.cancel(this.job).catch(tell),
      resize: (least: number, most: number) => void server?.resize(this.job, least, most).catch(tell),
      script: () => void server?.script(this.job).then(text => navigator.clipboard.writeText(text)).catch(tell),
      link: (rank: number) => server?.output(this.job, rank) ?? null
    };
    render(<JobView page={page} actions={actions} />, this.node);
  }
}

const extension: IRenderMime.IExtension = {
  id: 'jupyter-elastic:job-renderer',
  rendererFactory: { safe: true, mimeTypes: [MIME], defaultRank: 0, createRenderer: () => new JobRenderer() },
  rank: 0,
  dataType: 'json'
};

export default extension;
