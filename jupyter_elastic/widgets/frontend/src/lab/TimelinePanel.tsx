// The timeline in JupyterLab: a tab of the main area, in Notebook 7 below the notebook.
import { Widget } from '@lumino/widgets';
import { TimelineHome } from '../TimelineHome';
import type { Home } from '../home';
import { jobs } from './jobs';

export class TimelinePanel extends Widget {
  private timeline: TimelineHome;

  constructor(home: Home) {
    super();
    this.addClass('je-timeline-tab');
    this.node.tabIndex = -1;
    this.timeline = new TimelineHome(this.node, home, job => jobs.open?.(job, this.id));
  }

  protected onAfterShow(): void {
    this.timeline.start();
  }

  protected onAfterAttach(): void {
    if (this.isVisible) this.timeline.start();
  }

  protected onAfterHide(): void {
    this.timeline.stop();
  }

  protected onBeforeDetach(): void {
    this.timeline.stop();
  }

  protected onActivateRequest(): void {
    this.timeline.focus();
  }

  dispose(): void {
    if (!this.isDisposed) this.timeline.dispose();
    super.dispose();
  }
}
