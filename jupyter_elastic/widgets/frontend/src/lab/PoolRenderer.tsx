// Draws the pool below a cell, from our own MIME type, so it lives without a kernel. The widget above is hidden when
// its kernel is dead, and this view is hidden while the kernel lives (style/index.css).
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { findHome } from '../home';
import type { PoolScreen } from '../screens';
import { PoolPanel } from './PoolPanel';
import { whileInSight } from './in_sight';
import { jobs } from './jobs';

export const MIME = 'application/vnd.jupyter-elastic.pool+json';

export class PoolRenderer extends Widget implements IRenderMime.IRenderer {
  private pool: PoolPanel | null = null;
  private observer: IntersectionObserver | null = null;

  constructor() {
    super();
    this.addClass('je-kept-pool');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.clear();
    const home = findHome();
    if (!home) return Promise.resolve(); // the file's static form remains
    const { screen } = model.data[MIME] as unknown as { screen: PoolScreen };
    const pool = new PoolPanel(home, job => jobs.open?.(job), screen);
    this.pool = pool;
    this.node.appendChild(pool.node);
    this.observer = whileInSight(this.node, pool);
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
