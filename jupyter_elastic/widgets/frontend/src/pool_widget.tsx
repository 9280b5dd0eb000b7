// The pool in a notebook: by the server's socket where the page has one, else by what the kernel sends.
import { render } from 'preact';
import type { Forecast, PickerActions, Policies } from './actions';
import type { PoolScreen } from './screens';
import { Feed, findHome, Server } from './server';
import { PolicyPicker } from './view/PolicyPicker';
import { PoolView } from './view/PoolView';

interface Model {
  get(name: string): unknown;
  on(event: string, handler: (content: unknown) => void): void;
  off(event: string, handler: (content: unknown) => void): void;
  send(content: unknown): void;
}

/** Asks over the comm, each answer matched by its number. */
class Comm implements PickerActions {
  private waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  private next = 1;

  constructor(private model: Model) {}

  heard = (content: unknown) => {
    const { id, value, error } = content as { id: number; value: never; error?: string };
    const waits = this.waiting.get(id);
    this.waiting.delete(id);
    if (error) waits?.reject(new Error(error));
    else waits?.resolve(value);
  };

  private ask<T>(content: Record<string, unknown>): Promise<T> {
    const id = this.next++;
    this.model.send({ id, ...content });
    return new Promise<T>((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  policies = () => this.ask<Policies>({ type: 'policies' });
  forecast = (policy: string, options: Record<string, unknown>) => this.ask<Forecast[]>({ type: 'forecast', policy, options });
  use = (policy: string, options: Record<string, unknown>, reason: string) => this.ask<void>({ type: 'use', policy, options, reason });
  cancel = (job: number) => this.ask<void>({ type: 'cancel', job });
}

function start({ model, el }: { model: Model; el: HTMLElement }) {
  const home = findHome();
  const server = home && new Server(home);
  const comm = new Comm(model);
  let screen = model.get('screen') as PoolScreen;
  let offset = 0;
  let down: number | null = null;
  let picking = Boolean(model.get('picking'));
  const draw = () => {
    if (!screen?.hosts) return;
    const close = () => ((picking = false), draw());
    render(
      <PoolView
        screen={screen}
        offset={offset}
        down={down}
        actions={{
          cancel: job => void (server ? server.cancel(job).catch(() => comm.cancel(job)) : comm.cancel(job)),
          openPicker: () => ((picking = !picking), draw()),
          window: (first, limit) => feed?.show({ pool: [first, Math.min(limit, 500)] })
        }}
        picker={picking && <PolicyPicker active={screen.policy} at={screen.at} actions={server ? server.picker(() => screen.policy) : comm} close={close} />}
      />,
      el
    );
  };
  const feed =
    home &&
    new Feed(home, { pool: [0, 60] }, {
      pool: (next, first, since) => ((screen = next), (offset = first), (down = since), draw()),
      down: since => ((down = since), draw())
    });
  const changed = () => {
    if (offset === 0) screen = model.get('screen') as PoolScreen;
    draw();
  };
  model.on('change:screen', changed);
  model.on('msg:custom', comm.heard);
  draw();
  return () => {
    feed?.close();
    model.off('change:screen', changed);
    model.off('msg:custom', comm.heard);
    render(null, el);
  };
}

export default { render: start };
