// The pool in a notebook: the server's socket feeds it where the page has a server, else the kernel.
import { render } from 'preact';
import type { PickerActions, Policies } from './actions';
import { ask } from './ask';
import { Comm, type Model } from './comm';
import { Feed } from './feed';
import { clock } from './format';
import { findHome } from './home';
import type { PolicyForecast, PoolScreen, ShadowRow } from './screens';
import { Server } from './server';
import { StaticForm } from './static_form';
import { PolicyPicker } from './view/policy/PolicyPicker';
import { PoolView } from './view/pool/PoolView';

class PoolComm extends Comm implements PickerActions {
  policies = () => this.ask<Policies>({ type: 'policies' });
  forecast = (policy: string, options: Record<string, unknown>) =>
    this.ask<PolicyForecast[]>({ type: 'forecast', policy, options });
  use = (policy: string, options: Record<string, unknown>, reason: string) =>
    this.ask<void>({ type: 'use', policy, options, reason });
  shadow = (policy: string, options: Record<string, unknown>) => this.ask<void>({ type: 'shadow', policy, options });
  unshadow = (policy: string) => this.ask<void>({ type: 'unshadow', policy });
  window = (offset: number, limit: number) => this.ask<void>({ type: 'window', offset, limit });
  cancel = (job: number) => this.ask<void>({ type: 'cancel', job });
}

function start({ model, el }: { model: Model; el: HTMLElement }) {
  const home = findHome();
  const server = home && new Server(home);
  const comm = new PoolComm(model);
  let served = false;
  let screen: PoolScreen | null = null;
  let offset = 0;
  let down: number | null = null;
  let notice = '';
  let picking = Boolean(model.get('picking'));

  /** Draw the kernel's screen, unless the server sends screens. */
  const fromKernel = () => {
    if (served) return draw();
    const text = model.get('screen') as string;
    if (text) screen = JSON.parse(text);
    offset = model.get('offset') as number;
    down = model.get('down_since') as number | null;
    draw();
  };
  /** Return the shadows of this notebook's cells: its kernel asks them, whoever serves the rest. */
  const ownShadows = (): ShadowRow[] => {
    const text = model.get('screen') as string;
    return text ? (JSON.parse(text) as PoolScreen).shadows.filter(row => row.cell) : [];
  };
  const feed =
    home &&
    new Feed(
      home,
      { pool: [0, 60] },
      {
        pool: (next, first, since) => {
          served = true;
          [screen, offset, down, notice] = [next, first, since, ''];
          draw();
        },
        down: (since, unfit) => {
          if (since === null) return;
          served = false;
          notice =
            unfit || `The Jupyter server has not answered since ${clock(since)}; this page reconnects by itself.`;
          fromKernel();
        }
      }
    );
  const draw = () => {
    if (!screen) {
      render(<div class="je-root je-pool je-section">{notice || 'Asking the pool…'}</div>, el);
      return;
    }
    const shown = { ...screen, shadows: [...screen.shadows, ...(served ? ownShadows() : [])] };
    const close = () => ((picking = false), draw());
    const chooser = served && server ? server.picker(() => shown.policy) : comm;
    render(
      <PoolView
        screen={shown}
        offset={offset}
        down={down}
        notice={notice}
        wide
        ask={ask}
        actions={{
          cancel: job => (served && server ? server : comm).cancel(job),
          unshadow: row =>
            (served && server && !row.cell ? server.picker(() => shown.policy) : comm).unshadow(row.policy),
          openPicker: () => ((picking = !picking), draw()),
          window: (first, limit) => {
            if (served) feed?.show({ pool: [first, Math.min(limit, 500)] });
            else comm.window(first, limit).catch(() => undefined); // the next scroll asks again
          }
        }}
        picker={picking && <PolicyPicker screen={shown} actions={chooser} close={close} />}
      />,
      el
    );
  };
  const changes = ['change:screen', 'change:offset', 'change:down_since'];
  for (const change of changes) model.on(change, fromKernel);
  fromKernel();
  const staticForm = new StaticForm();
  staticForm.hide(String(model.get('kept')));
  return () => {
    staticForm.show();
    feed?.close();
    for (const change of changes) model.off(change, fromKernel);
    comm.close();
    render(null, el);
  };
}

export default { render: start };
