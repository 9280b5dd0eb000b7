// Draws the timeline below a cell, from our own MIME type, so it lives without a kernel.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { TimelineHome } from '../TimelineHome';
import { findHome } from '../home';
import type { TimelineLook, TimelineScreen } from '../screens';
import { FIRST } from '../timeline';
import { whileInSight } from './in_sight';
import { jobs } from './jobs';

export const MIME = 'application/vnd.jupyter-elastic.timeline+json';

/** Draws what was saved at first, and follows the pool while it is in sight. */
export class TimelineRenderer extends Widget implements IRenderMime.IRenderer {
  private timeline: TimelineHome | null = null;
  private observer: IntersectionObserver | null = null;

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const saved = model.data[MIME] as unknown as { look?: Partial<TimelineLook>; screen?: TimelineScreen };
    this.timeline?.dispose();
    this.observer?.disconnect();
    const timeline = new TimelineHome(
      this.node,
      findHome(),
      job => jobs.open?.(job),
      { ...FIRST, ...saved.look },
      saved.screen ?? null
    );
    this.timeline = timeline;
    this.observer = whileInSight(this.node, timeline);
    return Promise.resolve();
  }

  dispose(): void {
    this.observer?.disconnect();
    this.timeline?.dispose();
    super.dispose();
  }
}
