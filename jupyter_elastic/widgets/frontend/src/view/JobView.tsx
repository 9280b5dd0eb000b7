// One job: state in words, progress, size over time with reasons, curves, the ranks' output, what one can do.
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import type { Ask } from '../ask';
import { clock, duration, figure, memory, plural } from '../format';
import type { JobScreen, ResourceUsage } from '../screens';
import { readSlots } from '../slots';
import { Problem, useCancel, useRequests, type Cancelling, type Requests } from './requests';
import { Band, changeOfSize, Plots, Speeds, UsagePlots } from './plots';

export interface JobActions {
  /** Nothing can be done to a job that nobody here knows: then the first two are missing as well. */
  cancel?: () => Promise<unknown>;
  resize?: (least: number, most: number) => Promise<unknown>;
  /** Let the notebook go on while the job runs; only where a cell waits for it. */
  background?: () => Promise<unknown>;
  script?: () => Promise<unknown>;
  /** Where the whole output of a rank can be opened; null where there is no server to ask. */
  link?: (rank: number) => string | null;
  /** This rank's lines are in sight now. */
  look?: (rank: number) => void;
}

/** A line of a rank, [stream, text], or what it displays: ['image', plain, address], ['html', plain, markup]. */
export type Line = [string, string] | [string, string, string];

/** Rank (as text) to its last lines. */
export type Outputs = Record<string, Line[]>;

export const ENDED = ['completed', 'failed', 'cancelled'];

function Progress({ screen }: { screen: JobScreen }) {
  if (ENDED.includes(screen.phase) && screen.fraction === null) return null;
  if (screen.fraction === null) {
    return screen.phase === 'running' ? (
      <div class="je-bar je-unknown" role="progressbar" aria-label={`progress of ${screen.name}`}>
        <span />
      </div>
    ) : null;
  }
  const percent = Math.round(100 * screen.fraction);
  return (
    <div class="je-bar" role="progressbar" aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100} aria-label={`progress of ${screen.name}`}>
      <span style={`width: ${(100 * screen.fraction).toFixed(2)}%`} />
    </div>
  );
}

function Figures({ screen }: { screen: JobScreen }) {
  const figures: string[] = [];
  if (screen.fraction !== null) figures.push(`${Math.round(100 * screen.fraction)} %`);
  if (screen.epoch !== null) figures.push(`epoch ${figure(screen.epoch)}${screen.epochs === null ? '' : ` of ${figure(screen.epochs)}`}`);
  if (screen.step !== null) figures.push(`step ${screen.step}`);
  if (screen.samples_per_s !== null) figures.push(`${figure(screen.samples_per_s)} samples/s`);
  if (screen.ended_at !== null && screen.started_at !== null) figures.push(`took ${duration(screen.ended_at - screen.started_at)}`);
  else if (screen.eta_s !== null && screen.eta_s >= 1) figures.push(`about ${duration(screen.eta_s)} left`);
  return figures.length ? (
    <div class="je-figures">
      {figures.map(text => (
        <span key={text.replace(/[\d.]+/g, '#')}>{text}</span>
      ))}
    </div>
  ) : null;
}

function Meter({ part, label }: { part: number; label: string }) {
  return (
    <span class="je-meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 * part)}>
      <span style={`width: ${Math.min(100, 100 * part).toFixed(0)}%`} />
    </span>
  );
}

/** What the job keeps busy of what it holds: its own GPUs, or its workers' cores where slots are cores. */
function Use({ use, slots }: { use: ResourceUsage; slots: number }) {
  return (
    <ul class="je-use je-quiet" aria-label="in use now">
      {use.gpus.map(gpu => (
        <li key={gpu.slot}>
          <span>GPU {gpu.slot}</span>
          <Meter part={gpu.busy ?? 0} label={`GPU ${gpu.slot} busy`} />
          <span>
            {gpu.busy === null ? 'use not known' : `${Math.round(100 * gpu.busy)} % busy`} · {memory(gpu.memory)} of {memory(gpu.total)}
          </span>
        </li>
      ))}
      <li>
        <span>{plural(use.workers, 'worker')}</span>
        <Meter part={use.cores / Math.max(slots, 1)} label="cores busy, of one for each slot" />
        <span>
          {use.cores.toFixed(1)} {use.cores.toFixed(1) === '1.0' ? 'core' : 'cores'} busy · {memory(use.memory)} resident
        </span>
      </li>
    </ul>
  );
}

function Sizes({ screen }: { screen: JobScreen }) {
  if (screen.sizes.length < 1) return null;
  const end = screen.ended_at ?? screen.now;
  const changes = screen.sizes.map((point, index) => ({ point, before: index ? screen.sizes[index - 1].slots : 0 })).filter(({ point }) => !ENDED.includes(point.reason)).slice(-3);
  return (
    <div class="je-sizes">
      <Band points={screen.sizes} end={end} most={screen.max_slots} />
      <ul class="je-notes">
        {changes.map(({ point, before }) => (
          <li key={point.at}>
            <span class="je-quiet">{clock(point.at)}</span> {changeOfSize(point, before)}
          </li>
        ))}
      </ul>
    </div>
  );
}

const FRAME =
  '<style>body{margin:4px;font:13px/1.4 sans-serif;background:#fff;color:#212121}table{border-collapse:collapse}' +
  'td,th{padding:2px 8px;text-align:right}</style>';

/** HTML stands in a frame that runs no script and can't tell its height: that goes by its rows. */
function Shown({ line: [stream, plain, content] }: { line: Line }) {
  if (stream === 'image') return <img class="je-image" src={content} alt={plain} />;
  if (stream === 'html' && content !== undefined) {
    const rows = content.split(/<tr|<p/).length;
    return <iframe class="je-html" sandbox="" srcdoc={FRAME + content} title={plain.slice(0, 200)} height={Math.min(320, Math.max(60, 28 * rows))} />;
  }
  return (
    <span class={`je-${stream}`}>
      {plain}
      {'\n'}
    </span>
  );
}

/** How many of the lines before are gone, where the rest of them are the first now; the last one may have grown. */
function gone(before: Line[], now: Line[]): number {
  const same = (a: Line, b: Line) => a[0] === b[0] && a[1] === b[1];
  for (let drop = 0; drop < before.length; drop++) {
    const common = Math.min(before.length - drop, now.length) - 1;
    let run = 0;
    while (run < common && same(before[drop + run], now[run])) run++;
    if (run >= common) return drop;
  }
  return before.length;
}

function Output(props: { rank: string; lines: Line[]; link?: string | null }) {
  const { lines, link } = props;
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  // By their own numbers, so that what is selected stays selected when lines above it go.
  const known = useRef({ lines, first: 0 });
  if (known.current.lines !== lines) known.current = { lines, first: known.current.first + gone(known.current.lines, lines) };
  const { first } = known.current;
  useEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = () => {
    const pre = box.current;
    if (pre) follows.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 20;
  };
  return (
    <>
      <pre class="je-output" ref={box} onScroll={scrolled} tabIndex={0} role="group" aria-label={`output of rank ${props.rank}`}>
        {lines.length ? (
          lines.map((line, index) => <Shown key={first + index} line={line} />)
        ) : (
          <span class="je-quiet">nothing printed yet</span>
        )}
      </pre>
      {link && lines.length > 0 && (
        <p class="je-quiet">
          the last lines; <a href={link} target="_blank" rel="noreferrer">open the whole output</a>
        </p>
      )}
    </>
  );
}

function Ranks({ outputs, actions }: { outputs: Outputs; actions: JobActions }) {
  const [chosen, setChosen] = useState('');
  const id = useId();
  const tabs = useRef<HTMLDivElement>(null);
  const ranks = Object.keys(outputs).sort((a, b) => Number(a) - Number(b));
  if (!ranks.length) return null;
  const rank = ranks.includes(chosen) ? chosen : ranks[0];
  const many = ranks.length > 8;
  const choose = (one: string) => {
    setChosen(one);
    actions.look?.(Number(one));
  };
  const keys = (event: KeyboardEvent) => {
    const at = ranks.indexOf(rank);
    const places: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ranks.length - 1 };
    const next = places[event.key];
    if (ranks[next] === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab's own keys
    choose(ranks[next]);
    tabs.current?.querySelectorAll<HTMLElement>('[role=tab]')[next].focus();
  };
  return (
    <div>
      <div class={`je-tabs${many ? ' je-many' : ''}`} role="tablist" aria-label="ranks" ref={tabs} onKeyDown={keys}>
        {many && (
          <span class="je-quiet" role="presentation">
            rank
          </span>
        )}
        {ranks.map(one => (
          <button
            key={one}
            id={`${id}-${one}`}
            role="tab"
            aria-label={`rank ${one}`}
            aria-selected={one === rank}
            aria-controls={one === rank ? id : undefined}
            tabIndex={one === rank ? 0 : -1}
            onClick={() => choose(one)}
          >
            {many ? one : `rank ${one}`}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={id} aria-labelledby={`${id}-${rank}`}>
        <Output key={rank} rank={rank} lines={outputs[rank]} link={actions.link?.(Number(rank))} />
      </div>
    </div>
  );
}

function Resize({ screen, actions, requests }: { screen: JobScreen; actions: JobActions; requests: Requests }) {
  const [open, setOpen] = useState(false);
  const [range, setRange] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const opened = useRef(false);
  // Focus goes where the next key belongs: else it falls to the page, with the button that was pressed.
  useEffect(() => {
    if (open) field.current?.select();
    else if (opened.current) opener.current?.focus();
    opened.current = open;
  }, [open]);
  if (!open) {
    return (
      <button ref={opener} onClick={() => (setRange(`${screen.min_slots}:${screen.max_slots}`), setOpen(true))}>
        Resize…
      </button>
    );
  }
  const busy = requests.busy === 'resize';
  const request = async () => {
    const slots = readSlots(range);
    if (typeof slots === 'string') throw new Error(slots);
    await actions.resize!(...slots);
  };
  const apply = async () => {
    if (!busy && (await requests.run('resize', request))) setOpen(false);
  };
  // Not a form: below a cell the browser does not submit one by Enter.
  const keys = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' && event.key !== 'Escape') return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === 'Enter') void apply();
    else setOpen(false);
  };
  return (
    <span class="je-resize">
      <input ref={field} size={6} value={range} aria-label="slots, MIN:MAX" onInput={e => setRange(e.currentTarget.value)} onKeyDown={keys} />
      <button disabled={busy} onClick={() => void apply()}>
        {busy ? 'Applying…' : 'Apply'}
      </button>
      <button class="je-icon" title="Close" aria-label="Close the resize field" onClick={() => setOpen(false)}>
        ✕
      </button>
    </span>
  );
}

function Cancel(props: Cancelling) {
  const [asked, click] = useCancel(props);
  return (
    <button onClick={() => void click()} disabled={asked} aria-label={`${asked ? 'Cancelling' : 'Cancel'} job ${props.job.job}`}>
      {asked ? 'Cancelling…' : 'Cancel'}
    </button>
  );
}

export interface JobPage {
  screen: JobScreen;
  outputs: Outputs;
  /** The first failing rank's, or empty. */
  traceback: string;
  /** Something to say above all: the pool does not answer, the view is from the file. */
  notice: string;
  /** Name of the job's folder, which no other pool's job has. */
  folder: string;
}

export function JobView(props: { page: JobPage; actions: JobActions; ask: Ask }) {
  const { page } = props;
  const { screen } = page;
  const { actions } = props;
  const requests = useRequests();
  const over = ENDED.includes(screen.phase);
  const told = screen.state.split(';')[0]; // read aloud when it changes; what is behind it counts the seconds
  const noted = screen.sizes.length ? screen.sizes[screen.sizes.length - 1].reason : '';
  const wants = screen.min_slots === screen.max_slots ? `${screen.max_slots}` : `${screen.min_slots}:${screen.max_slots}`;
  return (
    <div class="je-root je-job" role="group" aria-label={`job ${screen.job}, ${screen.name}`}>
      {page.notice && (
        <p class="je-banner" role="alert">
          {page.notice}
        </p>
      )}
      <div class="je-head">
        <strong>{screen.name}</strong>
        <span class="je-quiet">
          job {screen.job} · {screen.engine} · {over ? '' : `${screen.slots.length} of `}
          {wants} {screen.unit}
          {wants === '1' ? '' : 's'}
        </span>
        <span class="je-buttons">
          {!over && actions.background && (
            <button disabled={requests.busy === 'background'} onClick={() => void requests.run('background', actions.background!)}>
              Send to background
            </button>
          )}
          {!over && actions.resize && <Resize screen={screen} actions={actions} requests={requests} />}
          {actions.script && <button onClick={() => void requests.run('script', actions.script!)}>Copy as script</button>}
          {!over && actions.cancel && <Cancel job={screen} now={screen.now} cancel={actions.cancel} requests={requests} ask={props.ask} />}
        </span>
      </div>
      <Problem requests={requests} />
      <div class={`je-state je-is-${screen.phase}`}>
        <span>
          <span role="status">{told}</span>
          {screen.state.slice(told.length)}
        </span>
      </div>
      {screen.detail && screen.detail !== noted && <p class="je-quiet">{screen.detail}</p>}
      {screen.use?.waits && (
        <p class="je-banner" role="status">
          {screen.use.waits}
        </p>
      )}
      {page.traceback && <pre class="je-output je-traceback">{page.traceback}</pre>}
      <Progress screen={screen} />
      <Figures screen={screen} />
      {screen.use && <Use use={screen.use} slots={screen.slots.length} />}
      <Sizes screen={screen} />
      {screen.metrics.length > 0 && <Plots screen={screen} />}
      <Speeds fit={screen.speeds} />
      <UsagePlots screen={screen} />
      <Ranks outputs={page.outputs} actions={actions} />
    </div>
  );
}
