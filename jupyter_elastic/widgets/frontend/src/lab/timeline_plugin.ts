// The plugin of the timeline: its command in palette, launcher and View menu.
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { ILauncher } from '@jupyterlab/launcher';
import { LabIcon } from '@jupyterlab/ui-components';
import { homeOf } from '../home';
import { TimelinePanel } from './TimelinePanel';

const COMMAND = 'jupyter-elastic:open-timeline';

const icon = new LabIcon({
  name: 'jupyter-elastic:timeline',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16">
    <g class="jp-icon3" fill="#616161"><rect x="1" y="2" width="8" height="3" rx="1"/><rect x="4" y="6.5" width="7" height="3" rx="1"/>
    <rect x="8" y="11" width="7" height="3" rx="1" opacity=".45"/></g></svg>`
});

export const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-elastic:timeline',
  description: 'The past and the likely future of the shared pool, slot by slot.',
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, ILauncher],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null
  ) => {
    const home = homeOf(app.serviceManager.serverSettings);
    // Notebook 7 names its pages in this option; its main area has room for the document alone.
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
