// Sends requests to the server extension by REST, with Jupyter's own cookies.
import type { JobActions, PickerActions, Policies } from './actions';
import type { Home } from './home';
import type { EarlierRun, KeptPage, PolicyForecast, Series } from './screens';
import { older, VERSION } from './version';

function cookie(name: string): string {
  return document.cookie.match(`\\b${name}=([^;]*)`)?.[1] ?? '';
}

const ABSENT =
  'The server extension of jupyter-elastic is not installed or not enabled where JupyterLab runs: ' +
  'run `pip install jupyter-elastic` there, or, if it is installed, ' +
  '`jupyter server extension enable jupyter_elastic.server_ext`; then restart the Jupyter server.';
/** Maximum milliseconds until a broken socket is opened again. */

export const RETRY_MS = 10_000;

/** Notice on a server that the reader of the page can't change; views that a kernel feeds don't show it. */
export const NOT_OURS =
  'Where this page comes from is no Jupyter server with jupyter-elastic, or it does not let this page in. ' +
  'The view shows what the kernel has last said.';

/** A refusal of the pool: to ask over the comm would get the same answer. */
export class Refused extends Error {}

function outdated(version: string): string {
  return (
    `The Jupyter server runs jupyter-elastic ${version}, this page is of ${VERSION}: ` +
    'run `pip install -U jupyter-elastic` where JupyterLab is installed, and restart the Jupyter server.'
  );
}

/** The last check of each server: several views of a page ask at the same time. */
const checks = new Map<string, { at: number; answer: Promise<string> }>();

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

  /**
   * Return why this page can't rely on the server's extension, and what to do; empty where it can, or where nothing
   * answers.
   */
  async unfit(): Promise<string> {
    const known = checks.get(this.home.baseUrl);
    if (known && Date.now() - known.at < RETRY_MS) return known.answer;
    const answer = this.check();
    checks.set(this.home.baseUrl, { at: Date.now(), answer });
    return answer;
  }

  private async check(): Promise<string> {
    const response = await this.fetch('GET', 'health').catch(() => null);
    if (!response || response.status >= 500) return ''; // no server answers, or a proxy says so: it may come back
    const found = await response.json().catch(() => null);
    if (response.ok && typeof found?.version === 'string')
      return older(found.version, VERSION) ? outdated(found.version) : '';
    return response.status === 404 ? ABSENT : NOT_OURS;
  }

  cancel = (job: number) => this.ask<void>('DELETE', `jobs/${job}`);
  resize = (job: number, min_slots: number, max_slots: number) =>
    this.ask<void>('PATCH', `jobs/${job}`, { min_slots, max_slots });
  background = (job: number) => this.ask<void>('POST', `jobs/${job}/background`);
  script = (job: number) => this.ask<{ script: string; header: string }>('GET', `jobs/${job}/script`);
  earlier = (job: number) => this.ask<EarlierRun[]>('GET', `jobs/${job}/earlier`);
  metrics = (job: number) => this.ask<Series[]>('GET', `jobs/${job}/metrics`);
  kept = (job: number) => this.ask<KeptPage>('GET', `jobs/${job}/kept`);
  output = (job: number, rank: number) => this.url(`jobs/${job}/outputs/${rank}/stdout`);

  /** Return the actions of a job's view. */
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
        this.ask<PolicyForecast[]>('POST', 'forecasts', {
          policies: name === active() ? [name] : [active(), name],
          options
        }),
      use: (name, options, reason) => this.ask<void>('PUT', 'policy', { name, options, reason }),
      shadow: (name, options) => this.ask<void>('PUT', `shadows/${encodeURIComponent(name)}`, { options }),
      unshadow: name => this.ask<void>('DELETE', `shadows/${encodeURIComponent(name)}`)
    };
  }
}
