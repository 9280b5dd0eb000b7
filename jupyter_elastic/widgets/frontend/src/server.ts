// The server extension, as the page asks it: REST with Jupyter's own cookies, and one socket that heals itself.
import type { PickerActions, Policies } from './actions';
import { patched, type Patch } from './patches';
import type { EarlierRun, JobPage, KeptPage, PolicyForecast, PoolScreen, PoolStatus, Series, TimelineLook, TimelineScreen } from './screens';
import { older, VERSION } from './version';
import type { JobActions } from './view/JobView';

export interface Home {
  baseUrl: string;
  wsUrl: string;
  token: string;
}

/** Where this page's Jupyter server is; null in tools that have none in the page. */
export function findHome(): Home | null {
  const element = document.getElementById('jupyter-config-data');
  if (!element) return null;
  try {
    const config = JSON.parse(element.textContent ?? '{}');
    const baseUrl = new URL(config.baseUrl ?? '/', location.href).href;
    return { baseUrl, wsUrl: config.wsUrl || baseUrl.replace(/^http/, 'ws'), token: config.token ?? '' };
  } catch {
    return null;
  }
}

function cookie(name: string): string {
  return document.cookie.match(`\\b${name}=([^;]*)`)?.[1] ?? '';
}

const ABSENT =
  'The server extension of jupyter-elastic is not installed or not enabled where JupyterLab runs: run `pip install jupyter-elastic` there, or, if it is installed, ' +
  '`jupyter server extension enable jupyter_elastic.server_ext`; then restart the Jupyter server.';
/** A socket that broke is opened again after this at most, in ms. */
const RETRY_MS = 10_000;
/** A server without the extension, or with an old one, changes only by a restart: it is asked so often, and when somebody comes back to the page. */
const UNFIT_MS = 300_000;

/** Nothing that whoever reads this page can change: where a kernel feeds the view it is not said. */
export const NOT_OURS = 'Where this page comes from is no Jupyter server with jupyter-elastic, or it does not let this page in. The view shows what the kernel has last said.';
/** A socket that has not opened after so long is taken for closed: some proxies let it wait for ever. */
const OPENS_MS = 5_000;

/** The pool was asked and says no: to ask another way would get the same answer. */
export class Refused extends Error {}

function outdated(version: string): string {
  return (
    `The Jupyter server runs jupyter-elastic ${version}, this page is of ${VERSION}: ` +
    'run `pip install -U jupyter-elastic` where JupyterLab is installed, and restart the Jupyter server.'
  );
}

/** What was last found out about a server: several views of a page ask at the same time. */
const judged = new Map<string, { at: number; answer: Promise<string> }>();

export class Server {
  constructor(private home: Home) {}

  url(path: string): string {
    return new URL(`elastic/api/${path}`, this.home.baseUrl).href;
  }

  private fetch(method: string, path: string, body?: unknown): Promise<Response> {
    const headers: Record<string, string> = { 'X-XSRFToken': cookie('_xsrf') };
    if (this.home.token) headers.Authorization = `token ${this.home.token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    return fetch(this.url(path), {
      method,
      headers,
      credentials: 'same-origin',
      cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body)
    });
  }

  async ask<T>(method: string, path: string, body?: unknown): Promise<T> {
    const response = await this.fetch(method, path, body);
    if (response.ok) return (response.status === 204 ? undefined : await response.json()) as T;
    const problem = await response.json().catch(() => ({}));
    const message = problem.message ?? `the server answered ${response.status}`;
    throw response.status < 500 ? new Refused(message) : new Error(message);
  }

  /** Why this page can't rely on the server's extension and what to do; empty where it can, or where nothing answers. */
  async unfit(): Promise<string> {
    const known = judged.get(this.home.baseUrl);
    if (known && Date.now() - known.at < RETRY_MS) return known.answer;
    const answer = this.judge();
    judged.set(this.home.baseUrl, { at: Date.now(), answer });
    return answer;
  }

  private async judge(): Promise<string> {
    const response = await this.fetch('GET', 'health').catch(() => null);
    if (!response || response.status >= 500) return ''; // nobody answers, or a proxy says so: it may come back
    const found = await response.json().catch(() => null);
    if (response.ok && typeof found?.version === 'string') return older(found.version, VERSION) ? outdated(found.version) : '';
    return response.status === 404 ? ABSENT : NOT_OURS;
  }

  cancel = (job: number) => this.ask<void>('DELETE', `jobs/${job}`);
  resize = (job: number, min_slots: number, max_slots: number) => this.ask<void>('PATCH', `jobs/${job}`, { min_slots, max_slots });
  background = (job: number) => this.ask<void>('POST', `jobs/${job}/background`);
  script = (job: number) => this.ask<{ script: string; header: string }>('GET', `jobs/${job}/script`);
  earlier = (job: number) => this.ask<EarlierRun[]>('GET', `jobs/${job}/earlier`);
  metrics = (job: number) => this.ask<Series[]>('GET', `jobs/${job}/metrics`);
  kept = (job: number) => this.ask<KeptPage>('GET', `jobs/${job}/kept`);
  output = (job: number, rank: number) => this.url(`jobs/${job}/outputs/${rank}/stdout`);

  /** What one can do to a job, and ask about it. */
  actions(job: number): JobActions {
    return {
      cancel: () => this.cancel(job),
      resize: (least, most) => this.resize(job, least, most),
      script: () => this.script(job).then(({ script, header }) => navigator.clipboard.writeText(header + script)),
      link: rank => this.output(job, rank),
      earlier: { runs: () => this.earlier(job), metrics: this.metrics }
    };
  }

  picker(active: () => string): PickerActions {
    return {
      policies: () => this.ask<Policies>('GET', 'policies'),
      forecast: (name, options) =>
        this.ask<PolicyForecast[]>('POST', 'forecasts', { policies: name === active() ? [name] : [active(), name], options }),
      use: (name, options, reason) => this.ask<void>('PUT', 'policy', { name, options, reason }),
      shadow: (name, options) => this.ask<void>('PUT', `shadows/${encodeURIComponent(name)}`, { options }),
      unshadow: name => this.ask<void>('DELETE', `shadows/${encodeURIComponent(name)}`)
    };
  }
}

export interface Look {
  pool?: [number, number];
  /** The few figures of a status bar. */
  status?: boolean;
  jobs?: number[];
  timeline?: TimelineLook;
  /** By job, the rank whose lines are in sight: those of the others are not sent. */
  ranks?: Record<number, number>;
}

export interface Screens {
  pool?: (screen: PoolScreen, offset: number, downSince: number | null) => void;
  status?: (status: PoolStatus, downSince: number | null) => void;
  job?: (page: JobPage) => void;
  timeline?: (screen: TimelineScreen, downSince: number | null) => void;
  /** There is no such job here. */
  missing?: (job: number, message: string) => void;
  /** The server can't say yet. */
  waiting?: (job: number, message: string) => void;
  /** The socket is down since this time (seconds), or up again (null); `unfit`: what is wrong with the server's extension. */
  down?: (since: number | null, unfit: string) => void;
}

/** A socket that sends screens, each as what has changed of the one before. It connects again for as long as the page lives, and then begins with whole ones. */
export class Feed {
  private socket: WebSocket | null = null;
  private closed = false;
  private wait = 500;
  private since: number | null = null;
  /** How far the browser's clock is ahead of the pool's, whose times all screens show, in seconds. */
  private ahead = 0;
  private known = new Map<string, unknown>();

  constructor(
    private home: Home,
    private look: Look,
    private screens: Screens
  ) {
    void this.connect();
  }

  show(look: Look): void {
    this.look = look;
    if (this.socket?.readyState === WebSocket.OPEN) this.ask();
  }

  private ask(): void {
    this.socket?.send(JSON.stringify({ ...this.look, patches: true }));
  }

  close(): void {
    this.closed = true;
    this.socket?.close();
  }

  private async connect(): Promise<void> {
    const unfit = await new Server(this.home).unfit(); // a socket that can't be opened does not say why
    if (this.closed) return;
    if (unfit) return this.retry(unfit);
    const url = new URL('elastic/api/screens', this.home.wsUrl.replace(/\/?$/, '/'));
    if (this.home.token) url.searchParams.set('token', this.home.token);
    const socket = new WebSocket(url.href);
    this.socket = socket;
    const late = setTimeout(() => socket.close(), OPENS_MS);
    socket.onopen = () => {
      clearTimeout(late);
      this.wait = 500;
      this.since = null;
      this.screens.down?.(null, '');
      this.ask();
    };
    socket.onmessage = event => {
      let message = JSON.parse(event.data);
      if (message.patch) {
        const { key, patch } = message as { key: string; patch: Patch };
        this.known.set(key, (message = patched(this.known.get(key), patch)));
      }
      const at = message.pool?.at ?? message.job?.screen.now ?? message.timeline?.at;
      if (at !== undefined) this.ahead = Date.now() / 1000 - at;
      if (message.pool) this.screens.pool?.(message.pool, message.offset, message.down_since);
      else if (message.status) this.screens.status?.(message.status, message.down_since);
      else if (message.job) this.screens.job?.(message.job);
      else if (message.timeline) this.screens.timeline?.(message.timeline, message.down_since);
      else if (message.missing) this.screens.missing?.(message.missing, message.message);
      else if (message.waiting) this.screens.waiting?.(message.waiting, message.message);
    };
    socket.onclose = () => {
      clearTimeout(late);
      this.retry('');
    };
  }

  private retry(unfit: string): void {
    if (this.closed) return;
    this.since ??= Date.now() / 1000 - this.ahead;
    this.screens.down?.(this.since, unfit);
    this.wait = unfit ? Math.max(this.wait, 3 * RETRY_MS) : this.wait;
    const again = () => {
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', looked);
      if (!this.closed) void this.connect();
    };
    const looked = () => document.visibilityState === 'visible' && again();
    const timer = setTimeout(again, this.wait);
    if (unfit) document.addEventListener('visibilitychange', looked);
    this.wait = Math.min(this.wait * 1.6, unfit ? UNFIT_MS : RETRY_MS);
  }
}
