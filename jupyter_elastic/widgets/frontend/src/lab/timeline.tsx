// The timeline in JupyterLab: a tab of the main area, in Notebook 7 below the notebook.
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { ILauncher } from '@jupyterlab/launcher';
import { LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import type { Home } from '../server';
import { TimelineHome } from '../timeline_home';
import { jobs } from './jobs';

const COMMAND = 'jupyter-elastic:open-timeline';

const icon = new LabIcon({
  name: 'jupyter-elastic:timeline',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16">
    <g class="jp-icon3" fill="#616161"><rect x="1" y="2" width="8" height="3" rx="1"/><rect x="4" y="6.5" width="7" height="3" rx="1"/>
    <rect x="8" y="11" width="7" height="3" rx="1" opacity=".45"/></g></svg>`
});

class TimelinePanel extends Widget {
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

export const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-elastic:timeline',
  description: 'The past and the likely future of the shared pool, slot by slot.',
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, ILauncher],
  activate: (app: JupyterFrontEnd, palette: ICommandPalette | null, restorer: ILayoutRestorer | null, launcher: ILauncher | null) => {
    const { baseUrl, wsUrl, token } = app.serviceManager.serverSettings;
    const home = { baseUrl: new URL(baseUrl, location.href).href, wsUrl, token };
    // Notebook 7 says which of its pages this is; its main area has room for the document alone.
    const area = PageConfig.getOption('notebookPage') ? 'down' : 'main';
    const tracker = new WidgetTracker<TimelinePanel>({ namespace: 'jupyter-elastic-timeline' });
    let panel: TimelinePanel | null = null;
    app.commands.addCommand(COMMAND, {
      label: args => (args.isLauncher ? 'Elastic timeline' : 'Show the Elastic Timeline'),
      caption: 'Who held which slots of the pool, and who will most likely hold them',
      icon: args => (args.isPalette ? undefined : icon),
      execute: () => {
        if (!panel || panel.isDisposed) {
          panel = new TimelinePanel(home);
          panel.id = 'jupyter-elastic-timeline';
          panel.title.label = 'Elastic timeline';
          panel.title.icon = icon;
          panel.title.closable = true;
        }
        if (!panel.isAttached) app.shell.add(panel, area);
        if (!tracker.has(panel)) void tracker.add(panel);
        app.shell.activateById(panel.id);
      }
    });
    palette?.addItem({ command: COMMAND, category: 'Elastic pool', args: { isPalette: true } });
    launcher?.add({ command: COMMAND, category: 'Other', rank: 101, args: { isLauncher: true } });
    void restorer?.restore(tracker, { command: COMMAND, name: () => 'timeline' });
  }
};
