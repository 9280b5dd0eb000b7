// One job: state in words, progress, size over time with reasons, curves, the ranks' output, what one can do.
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Ask } from '../ask';
import { clock, duration, figure, memory, plural } from '../format';
import type { JobPage, JobScreen, ResourceUsage } from '../screens';
import { readSlots } from '../slots';
import { Problem, useCancel, useRequests, type Cancelling, type Requests } from './requests';
import { Plots, UsagePlots, type Earlier } from './plots';
import { Ranks, type RankActions } from './Ranks';
import { changeOfSize, SizeBand } from './SizeBand';
import { Speeds } from './Speeds';
import { Traceback } from './Traceback';

export interface JobActions extends RankActions {
  /** Nothing can be done to a job that nobody here knows: then the first two are missing as well. */
  cancel?: () => Promise<unknown>;
  resize?: (least: number, most: number) => Promise<unknown>;
  /** Let the notebook go on while the job runs; only where a cell waits for it. */
  background?: () => Promise<unknown>;
  script?: () => Promise<unknown>;
  /** Show the cell below which the job stands, where it is open in this page. */
  cell?: () => void;
  /** What was submitted, for who has no notebook of it here. */
  code?: () => Promise<string>;
  /** Where to ask for earlier runs of the same name. */
  earlier?: Earlier;
}

export const ENDED = ['completed', 'failed', 'cancelled'];
const SPEED = 'samples/s';

function Progress({ screen }: { screen: JobScreen }) {
  if (screen.phase === 'completed' || (ENDED.includes(screen.phase) && screen.fraction === null)) return null;
  if (screen.fraction === null) {
    return screen.phase === 'running' ? (
      <div class="je-bar je-unknown" role="progressbar" aria-label={`progress of ${screen.name}`}>
        <span />
      </div>
    ) : null;
  }
  const percent = Math.round(100 * screen.fraction);
  return (
    <div class={`je-bar je-is-${screen.phase}`} role="progressbar" aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100} aria-label={`progress of ${screen.name}`}>
      <span style={`width: ${(100 * screen.fraction).toFixed(2)}%`} />
    </div>
  );
}

function Figures({ screen }: { screen: JobScreen }) {
  const figures: string[] = screen.training > 1 ? [`training ${screen.training}`] : [];
  if (screen.fraction !== null && screen.phase !== 'completed') figures.push(`${Math.round(100 * screen.fraction)} %`);
  if (screen.epoch !== null) figures.push(`epoch ${figure(screen.epoch)}${screen.epochs === null ? '' : ` of ${figure(screen.epochs)}`}`);
  if (screen.step !== null) figures.push(`step ${screen.step}`);
  if (screen.samples_per_s !== null) figures.push(`${figure(screen.samples_per_s)} samples/s`);
  if (screen.ended_at === null && screen.eta_s !== null && screen.eta_s >= 1) figures.push(`about ${duration(screen.eta_s)} left`);
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
        <Meter part={use.cores / Math.max(slots, 1)} label="CPU use" />
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
  const same = screen.ended_at !== null && new Set(screen.sizes.map(point => point.slots).filter(Boolean)).size < 2;
  return (
    <div class="je-sizes">
      {same ? null : <SizeBand points={screen.sizes} end={end} most={screen.max_slots} unit={screen.unit} />}
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

function Resize({ screen, actions, requests }: { screen: JobScreen; actions: JobActions; requests: Requests }) {
  const [open, setOpen] = useState(false);
  const [range, setRange] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const opened = useRef(false);
  // Focus goes where the next key belongs, before that can come: else it falls to the page, with the button that was pressed.
  useLayoutEffect(() => {
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

/** Says for a moment that it has copied: nothing else on the page would. */
function CopyScript({ copy, requests }: { copy: () => Promise<unknown>; requests: Requests }) {
  const [copied, setCopied] = useState(false);
  const click = async () => {
    if (!(await requests.run('script', copy))) return;
    setCopied(true);
    setTimeout(setCopied, 3000, false);
  };
  const label = copied ? 'Copied' : 'Copy as script';
  return (
    // A status gives the button around it no name.
    <button aria-label={label} onClick={() => void click()}>
      <span role="status">{label}</span>
    </button>
  );
}

/** Of a job that is over: its last figures, in a line. */
function Summary({ screen }: { screen: JobScreen }) {
  const last = screen.metrics.filter(series => series.name !== SPEED).slice(0, 3);
  if (!last.length) return null;
  return (
    <span class="je-summary">
      {last.map(series => (
        <span key={series.name}>
          {series.name} <strong>{series.last}</strong>
        </span>
      ))}
    </span>
  );
}

/** Whether all of a job is in sight. One that is over folds to a line, unless it failed or somebody is busy with it. */
function useFold(screen: JobScreen, whole: boolean): [boolean, (open: boolean) => void, { current: HTMLDivElement | null }] {
  const over = ENDED.includes(screen.phase);
  const stays = whole || !over || screen.phase === 'failed';
  const [open, setOpen] = useState(stays);
  const root = useRef<HTMLDivElement>(null);
  const drawn = useRef(false);
  useEffect(() => {
    const view = root.current!;
    if (drawn.current) setOpen(stays || view.matches(':hover') || view.contains(document.activeElement));
    drawn.current = true;
  }, [over]);
  return [open, setOpen, root];
}

/** `whole`: it stays open when the job is over. */
export function JobView(props: { page: JobPage; actions: JobActions; ask: Ask; whole?: boolean }) {
  const { page } = props;
  const { screen } = page;
  const { actions } = props;
  const requests = useRequests();
  const id = useId();
  const [code, setCode] = useState('');
  const [open, setOpen, root] = useFold(screen, props.whole ?? false);
  const showCode = async () => {
    if (code) setCode('');
    else await requests.run('code', async () => setCode(await actions.code!()));
  };
  const over = ENDED.includes(screen.phase);
  const told = screen.state.split(';')[0]; // read aloud when it changes; what is behind it counts the seconds
  const noted = screen.sizes.length ? screen.sizes[screen.sizes.length - 1].reason : '';
  const wants = screen.min_slots === screen.max_slots ? `${screen.max_slots}` : `${screen.min_slots}:${screen.max_slots}`;
  return (
    <div class={`je-root je-job${open ? '' : ' je-folded'}${page.notice && !over ? ' je-stale' : ''}`} role="group" aria-label={`job ${screen.job}, ${screen.name}`} ref={root}>
      {page.notice && (
        <p class="je-banner" role="alert">
          {page.notice}
        </p>
      )}
      <div class="je-head">
        <strong>{screen.name}</strong>
        <span class="je-quiet">
          job {screen.job}
          {open && ` · ${screen.engine} · ${over ? '' : `${screen.slots.length} of `}${wants} ${screen.unit}${wants === '1' ? '' : 's'}`}
        </span>
        <span class="je-buttons">
          {!over && actions.background && (
            <button disabled={requests.busy === 'background'} onClick={() => void requests.run('background', actions.background!)}>
              Send to background
            </button>
          )}
          {actions.cell && <button onClick={actions.cell}>Show the cell</button>}
          {!actions.cell && actions.code && (
            <button aria-expanded={code !== ''} onClick={() => void showCode()}>
              {code ? 'Hide the code' : 'Show the code'}
            </button>
          )}
          {!over && actions.resize && <Resize screen={screen} actions={actions} requests={requests} />}
          {open && actions.script && <CopyScript copy={actions.script} requests={requests} />}
          {!over && actions.cancel && <Cancel job={screen} now={screen.now} cancel={actions.cancel} requests={requests} ask={props.ask} />}
          {over && (
            <button aria-expanded={open} aria-controls={open ? id : undefined} aria-label={`${open ? 'Less' : 'Plots and output'} of job ${screen.job}`} onClick={() => setOpen(!open)}>
              {open ? 'Less' : 'Plots and output'}
            </button>
          )}
        </span>
      </div>
      <Problem requests={requests} />
      {code && (
        <pre class="je-cell" tabIndex={0} role="region" aria-label={`code of job ${screen.job}`}>
          {code}
        </pre>
      )}
      <div class={`je-state je-is-${screen.phase}`}>
        <span>
          <span role="status">{told}</span>
          {screen.state.slice(told.length)}
        </span>
        {!open && <Summary screen={screen} />}
      </div>
      {screen.warning && <p class="je-banner">{screen.warning}</p>}
      {screen.detail && screen.detail !== noted && <p class="je-quiet">{screen.detail}</p>}
      {open && (
        <div class="je-details" id={id}>
          {screen.use?.waits && (
            <p class="je-banner" role="status">
              {screen.use.waits}
            </p>
          )}
          <Traceback text={page.traceback} />
          <Progress screen={screen} />
          <Figures screen={screen} />
          {screen.use && <Use use={screen.use} slots={screen.slots.length} />}
          <Sizes screen={screen} />
          {screen.metrics.length > 0 && <Plots screen={screen} earlier={actions.earlier} />}
          <Speeds fit={screen.speeds} />
          <UsagePlots screen={screen} />
          <Ranks outputs={page.outputs} failed={page.failed_rank} over={over} actions={actions} />
        </div>
      )}
    </div>
  );
}
