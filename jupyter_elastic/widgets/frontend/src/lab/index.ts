// The JupyterLab plugin: puts the panel into the left side bar and its command into the palette.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { LabIcon } from '@jupyterlab/ui-components';
import { PoolPanel } from './panel';
import { keep } from './renderer';

/** What of a notebook's model is needed to come to its outputs. */
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

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-elastic:pool',
  description: 'The shared GPU pool: who holds what, who waits, and which policy decides.',
  autoStart: true,
  optional: [ISettingRegistry, ICommandPalette],
  activate: (app: JupyterFrontEnd, registry: ISettingRegistry | null, palette: ICommandPalette | null) => {
    const { baseUrl, wsUrl, token } = app.serviceManager.serverSettings;
    const panel = new PoolPanel({ baseUrl: new URL(baseUrl, location.href).href, wsUrl, token });
    panel.id = 'jupyter-elastic-pool';
    panel.title.icon = icon;
    panel.title.caption = 'Elastic pool';
    app.shell.add(panel, 'left', { rank: 650 });
    void registry?.load('jupyter-elastic:pool').then(settings => {
      if (settings.get('openAtStart').composite) void app.restored.then(() => app.shell.activateById(panel.id));
    });
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (_panel, context) => {
        context.saveState.connect((_, state) => {
          if (state === 'started') for (const output of outputs(context.model as Notebook)) keep(output);
        });
      }
    });
    app.commands.addCommand('jupyter-elastic:open-pool', {
      label: 'Show the Elastic Pool',
      execute: () => app.shell.activateById(panel.id)
    });
    palette?.addItem({ command: 'jupyter-elastic:open-pool', category: 'Elastic pool' });
  }
};

export default plugin;
