// The JupyterLab plugin: the pool in the left side bar, jobs in tabs, and the commands to both: palette, View menu
// (schema/pool.json), launcher, status bar. In Notebook 7 the parts that it lacks are left out.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { LabIcon } from '@jupyterlab/ui-components';
import { homeOf } from '../home';
import type { JobPage } from '../screens';
import { keep, viewOf } from './JobRenderer';
import { JobTab } from './JobTab';
import { PoolPanel } from './PoolPanel';
import { StatusItem } from './StatusItem';
import { jobs } from './jobs';
import { allowed, announceEnds } from './notifications';
import { plugin as timeline } from './timeline_plugin';

/** The part of a notebook's model that leads to its outputs. */
interface Listed<T> {
  length: number;
  get(index: number): T;
}

interface Notebook {
  cells?: Listed<{ outputs?: Listed<object> }>;
}

function* outputs({ cells }: Notebook): Generator<object> {
  for (let cell = 0; cell < (cells?.length ?? 0); cell++) {
    const found = cells!.get(cell).outputs;
    for (let index = 0; index < (found?.length ?? 0); index++) yield found!.get(index);
  }
}

const icon = new LabIcon({
  name: 'jupyter-elastic:pool',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16">
    <g class="jp-icon3" fill="#616161"><rect x="1" y="1" width="6" height="6" rx="1"/><rect x="9" y="1" width="6" height="6" rx="1" opacity=".45"/>
    <rect x="1" y="9" width="6" height="6" rx="1" opacity=".45"/><rect x="9" y="9" width="6" height="6" rx="1"/></g></svg>`
});

const OPEN_POOL = 'jupyter-elastic:open-pool';
const OPEN_JOB = 'jupyter-elastic:open-job';
const JOB_TAB = 'jupyter-elastic-job-';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-elastic:pool',
  description: 'The shared GPU pool: who holds what, who waits, and which policy decides.',
  autoStart: true,
  optional: [ISettingRegistry, ICommandPalette, ILauncher, IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    statusBar: IStatusBar | null
  ) => {
    const home = homeOf(app.serviceManager.serverSettings);
    const { commands, shell } = app;

    const panel = new PoolPanel(home, job => void commands.execute(OPEN_JOB, { job }));
    panel.id = 'jupyter-elastic-pool';
    panel.title.icon = icon;
    panel.title.caption = 'Elastic pool';
    shell.add(panel, 'left', { rank: 650 });
    commands.addCommand(OPEN_POOL, {
      label: args => (args.isLauncher ? 'Elastic pool' : 'Show the Elastic Pool'),
      caption: 'Who holds the slots of the shared pool, who waits, and why',
      icon: args => (args.isPalette ? undefined : icon),
      execute: () => shell.activateById(panel.id)
    });

    /** Return the function that scrolls to a job's view below its cell; undefined where its notebook is not open. */
    const cell = ({ screen, folder }: JobPage) => {
      const view = viewOf(screen.job, folder);
      if (!view) return undefined;
      return () => {
        for (let widget = view.parent; widget; widget = widget.parent)
          if (widget.id && widget.hasClass('jp-NotebookPanel')) shell.activateById(widget.id);
        view.node.scrollIntoView({ block: 'center' });
      };
    };
    commands.addCommand(OPEN_JOB, {
      label: args => `Open Job ${args.job}`,
      execute: args => {
        const job = Number(args.job);
        const id = `${JOB_TAB}${job}`;
        const open = [...shell.widgets('main'), ...shell.widgets('right')].filter(widget =>
          widget.id.startsWith(JOB_TAB)
        );
        if (!open.some(widget => widget.id === id)) {
          const tab = new MainAreaWidget({ content: new JobTab(home, job, cell) });
          tab.id = id;
          tab.title.label = `Job ${job}`;
          tab.title.icon = icon;
          tab.title.closable = true;
          // The first tab of a job stands below the tab that it was opened from, so that both are seen; the next ones
          // beside it.
          const below = open.length
            ? { ref: open[0].id, mode: 'tab-after' as const }
            : { ref: String(args.below), mode: 'split-bottom' as const };
          shell.add(tab, 'main', args.below ? below : undefined);
          if (!tab.isAttached) shell.add(tab, 'right'); // Notebook 7 has room for one document alone
        }
        shell.activateById(id);
      }
    });
    jobs.open = (job, below) => void commands.execute(OPEN_JOB, { job, below });
    palette?.addItem({ command: OPEN_POOL, category: 'Elastic pool', args: { isPalette: true } });
    launcher?.add({ command: OPEN_POOL, category: 'Other', rank: 100, args: { isLauncher: true } });

    const status = new StatusItem(home, () => void commands.execute(OPEN_POOL));
    statusBar?.registerStatusItem('jupyter-elastic:status', {
      item: status,
      align: 'left',
      rank: 20,
      isActive: () => status.known,
      activeStateChanged: status.changed
    });
    void registry?.load('jupyter-elastic:pool').then(settings => {
      if (settings.get('openAtStart').composite) void app.restored.then(() => shell.activateById(panel.id));
      const minutes = () => Number(settings.get('notifyAfterMinutes').composite ?? 0);
      announceEnds(status, minutes, job => void commands.execute(OPEN_JOB, { job: job.job }));
      const follow = () => status.listen(statusBar !== null || minutes() > 0);
      follow();
      settings.changed.connect(() => {
        follow();
        // Ask when the setting is switched on, not when a job ends unseen.
        if (minutes() > 0 && typeof Notification !== 'undefined') void allowed();
      });
    });

    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (_panel, context) => {
        context.saveState.connect((_, state) => {
          if (state === 'started') for (const output of outputs(context.model as Notebook)) keep(output);
        });
      }
    });
  }
};

export default [plugin, timeline];
