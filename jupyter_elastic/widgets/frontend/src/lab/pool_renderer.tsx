// The renderer of the pool below a cell: a MIME type of our own, so that it lives without a kernel. The widget above it steps back when that is dead, and
// this does while that lives (style/index.css).
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import type { PoolScreen } from '../screens';
import { findHome } from '../server';
import { jobs } from './jobs';
import { PoolPanel } from './panel';

const MIME = 'application/vnd.jupyter-elastic.pool+json';

class PoolRenderer extends Widget implements IRenderMime.IRenderer {
  private pool: PoolPanel | null = null;
  private observer: IntersectionObserver | null = null;

  constructor() {
    super();
    this.addClass('je-kept-pool');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.clear();
    const home = findHome();
    if (!home) return Promise.resolve(); // which has the form for other readers
    const { screen } = model.data[MIME] as unknown as { screen: PoolScreen };
    const pool = new PoolPanel(home, job => jobs.open?.(job), screen);
    this.pool = pool;
    this.node.appendChild(pool.node);
    this.observer = new IntersectionObserver(seen => (seen[seen.length - 1].isIntersecting ? pool.start() : pool.stop()));
    this.observer.observe(this.node);
    return Promise.resolve();
  }

  dispose(): void {
    this.clear();
    super.dispose();
  }

  private clear(): void {
    this.observer?.disconnect();
    this.pool?.dispose();
    this.pool = null;
  }
}

export const renderer: IRenderMime.IExtension = {
  id: 'jupyter-elastic:pool-renderer',
  rendererFactory: { safe: true, mimeTypes: [MIME], defaultRank: 0, createRenderer: () => new PoolRenderer() },
  rank: 0,
  dataType: 'json'
};
