// The JupyterLab plugin: puts the panel into the left side bar and the commands into the palette's reach.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { LabIcon } from '@jupyterlab/ui-components';
import { PoolPanel } from './panel';

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
  optional: [ISettingRegistry],
  activate: (app: JupyterFrontEnd, registry: ISettingRegistry | null) => {
    const { baseUrl, wsUrl, token } = app.serviceManager.serverSettings;
    const panel = new PoolPanel({ baseUrl: new URL(baseUrl, location.href).href, wsUrl, token });
    panel.id = 'jupyter-elastic-pool';
    panel.title.icon = icon;
    panel.title.caption = 'Elastic pool';
    app.shell.add(panel, 'left', { rank: 650 });
    void registry?.load('jupyter-elastic:pool').then(settings => {
      if (settings.get('openAtStart').composite) void app.restored.then(() => app.shell.activateById(panel.id));
    });
    app.commands.addCommand('jupyter-elastic:open-pool', {
      label: 'Show the Elastic Pool',
      execute: () => app.shell.activateById(panel.id)
    });
  }
};

export default plugin;
