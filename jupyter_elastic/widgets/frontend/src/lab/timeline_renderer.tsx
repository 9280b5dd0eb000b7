// The renderer of the timeline below a cell: a MIME type of our own, so it lives without a kernel.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import type { TimelineLook, TimelineScreen } from '../screens';
import { findHome } from '../server';
import { FIRST } from '../timeline';
import { TimelineHome } from '../timeline_home';
import { jobs } from './jobs';

const MIME = 'application/vnd.jupyter-elastic.timeline+json';

/** Below a cell: what was saved at first, and live while it is in sight. */
class TimelineRenderer extends Widget implements IRenderMime.IRenderer {
  private timeline: TimelineHome | null = null;
  private observer: IntersectionObserver | null = null;

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const saved = model.data[MIME] as unknown as { look?: Partial<TimelineLook>; screen?: TimelineScreen };
    this.timeline?.dispose();
    this.observer?.disconnect();
    const timeline = new TimelineHome(this.node, findHome(), job => jobs.open?.(job), { ...FIRST, ...saved.look }, saved.screen ?? null);
    this.timeline = timeline;
    this.observer = new IntersectionObserver(seen => (seen[seen.length - 1].isIntersecting ? timeline.start() : timeline.stop()));
    this.observer.observe(this.node);
    return Promise.resolve();
  }

  dispose(): void {
    this.observer?.disconnect();
    this.timeline?.dispose();
    super.dispose();
  }
}

export const renderer: IRenderMime.IExtension = {
  id: 'jupyter-elastic:timeline-renderer',
  rendererFactory: { safe: true, mimeTypes: [MIME], defaultRank: 0, createRenderer: () => new TimelineRenderer() },
  rank: 0,
  dataType: 'json'
};
