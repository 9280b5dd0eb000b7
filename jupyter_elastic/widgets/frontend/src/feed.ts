// The socket that sends screens to this page.
import { clock } from './format';
import type { Home } from './home';
import { type Patch, patched } from './patches';
import type { JobPage, PoolScreen, PoolStatus, TimelineLook, TimelineScreen } from './screens';
import { RETRY_MS, Server } from './server';

/**
 * Maximum milliseconds between checks of a server without the extension, or with an old one: only a restart changes
 * that.
 */
const UNFIT_MS = 300_000;

/** Milliseconds after which a socket that has not opened counts as closed: some proxies let it wait for ever. */
const OPENS_MS = 5_000;

/** The screens that a page requests. */
export interface Look {
  pool?: [number, number];
  /** True for the figures of a status bar. */
  status?: boolean;
  jobs?: number[];
  timeline?: TimelineLook;
  /** By job, the rank whose lines are in sight; the server sends no other rank's lines. */
  ranks?: Record<number, number>;
}

/** The functions that a page gives for each kind of screen. */
interface Screens {
  pool?: (screen: PoolScreen, offset: number, downSince: number | null) => void;
  status?: (status: PoolStatus, downSince: number | null) => void;
  job?: (page: JobPage) => void;
  timeline?: (screen: TimelineScreen, downSince: number | null) => void;
  /** Called for a job that the pool does not know. */
  missing?: (job: number, message: string) => void;
  /** Called while the server can't answer yet. */
  waiting?: (job: number, message: string) => void;
  /**
   * Called when the socket breaks (with the time in seconds) or opens (null); `unfit`: the problem with the server's
   * extension.
   */
  down?: (since: number | null, unfit: string) => void;
}

/** Return the notice of a job's view while the server does not answer. */
export function noAnswer(since: number): string {
  return `The Jupyter server has not answered since ${clock(since)}. The job goes on; this view reconnects by itself.`;
}

/**
 * Follows the server: it sends each screen as a change of the one before. After a break the feed connects again, and
 * the server begins with whole screens.
 */
export class Feed {
  private socket: WebSocket | null = null;
  private closed = false;
  private wait = 500;
  private since: number | null = null;
  /** Seconds that the browser's clock is ahead of the pool's; screens show times of the pool. */
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
      document.removeEventListener('visibilitychange', onVisible);
      if (!this.closed) void this.connect();
    };
    const onVisible = () => document.visibilityState === 'visible' && again();
    const timer = setTimeout(again, this.wait);
    if (unfit) document.addEventListener('visibilitychange', onVisible);
    this.wait = Math.min(this.wait * 1.6, unfit ? UNFIT_MS : RETRY_MS);
  }
}
