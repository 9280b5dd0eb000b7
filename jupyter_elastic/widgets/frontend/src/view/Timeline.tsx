// The timeline: past and likely future of the pool's slots, whoever shows it. What it looks at is asked for, the rest is drawn.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { clock, duration, plural, range } from '../format';
import type { FairRow, FinishedRow, TimelineJob, TimelineLook, TimelineScreen } from '../screens';
import { following, jobColour, moved, PALETTE, zoomed } from '../timeline';
import { gutter, TimelineChart } from './TimelineChart';
import { useWidth } from './width';

export interface TimelineActions {
  /** Show this part from now on. */
  look(look: TimelineLook): void;
  /** Show a job; left out where the page can't. */
  open?: (job: number) => void;
  /** Open or close the choice of a policy. */
  pick?: () => void;
}

export interface TimelineProps {
  screen: TimelineScreen;
  /** When it came, by `performance.now()`: how far the pool's clock has gone on since. */
  came: number;
  look: TimelineLook;
  actions: TimelineActions;
  /** Since when nothing new comes, in seconds; null while it does. */
  down: number | null;
  notice?: string;
  /** The choice of a policy, while it is open. */
  picker?: ComponentChildren;
  picking?: boolean;
}

const SPANS: [string, number][] = [
  ['1 min', 60],
  ['10 min', 600],
  ['1 hour', 3600],
  ['6 hours', 21600],
  ['1 day', 86400],
  ['1 week', 604800],
  ['30 days', 2592000]
];

export function Timeline(props: TimelineProps) {
  const { screen, came, look, actions, down } = props;
  const [element, width] = useWidth(800);
  const [byUser, setByUser] = useState(false);
  const [, tock] = useState(0);
  const now = screen.at + (down === null ? (performance.now() - came) / 1000 : 0);
  const span = look.past_s + look.ahead_s;
  useEffect(() => {
    // As often as now moves by a pixel, but no more than once a second.
    const timer = setInterval(() => document.hidden || tock(count => count + 1), Math.max(1000, (1000 * span) / 800));
    return () => clearInterval(timer);
  }, [span]);

  const left = gutter(width);
  const at = look.at ?? now;
  const [begin, end] = [at - look.past_s, at + look.ahead_s];
  const change = (next: TimelineLook) => actions.look({ ...next, offset: 0 });
  const zoom = (factor: number, part = 0.5) => change(zoomed(look, factor, part, now));
  const move = (part: number) => change(moved(look, part * span, now));
  const keys = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'ArrowLeft') move(-0.2);
    else if (event.key === 'ArrowRight') move(0.2);
    else if (event.key === '+' || event.key === '=') zoom(1 / 1.5);
    else if (event.key === '-') zoom(1.5);
    else if (event.key === 'Home' || event.key === '0') change(following(look));
    else return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab's own keys
  };
  const box = useRef<HTMLDivElement>(null);
  const wheel = useRef<(event: WheelEvent) => void>();
  wheel.current = event => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      const { left: edge } = box.current!.getBoundingClientRect();
      zoom(Math.exp(Math.min(Math.max(event.deltaY, -100), 100) / 200), Math.min(Math.max((event.clientX - edge - left) / (width - left), 0), 1));
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) move(sideways / (width - left));
    else return;
    event.preventDefault();
  };
  useEffect(() => {
    const listen = (event: WheelEvent) => wheel.current?.(event);
    box.current?.addEventListener('wheel', listen, { passive: false });
    return () => box.current?.removeEventListener('wheel', listen);
  }, []);
  const dragged = useRef<{ x: number; from: TimelineLook; moved: boolean } | null>(null);
  const grab = (event: PointerEvent) => {
    if (event.button === 0) dragged.current = { x: event.clientX, from: look, moved: false };
  };
  const drag = (event: PointerEvent) => {
    const drag = dragged.current;
    if (!drag || !(event.buttons & 1)) return;
    const by = event.clientX - drag.x;
    if (Math.abs(by) < 4 && !drag.moved) return;
    drag.moved = true;
    change(moved(drag.from, (-by * span) / (width - left), now));
  };
  const open = (job: number) => {
    if (!dragged.current?.moved) actions.open?.(job);
  };

  const place = new Map(screen.users.map((user, index) => [user, index % PALETTE.length]));
  const owners = new Map(screen.jobs.map(job => [job.job, job.owner]));
  const colour = byUser ? (job: number) => place.get(owners.get(job) ?? '') ?? 0 : jobColour;
  const going = screen.jobs.filter(job => job.ended_at === null);
  return (
    <div class="je-root je-timeline">
      {(down !== null || props.notice) && (
        <div class="je-banner" role="status">
          {props.notice || `The pool has not answered since ${clock(down!)}. Jobs go on; this picture reconnects automatically.`}
        </div>
      )}
      <div class="je-bar-line">
        <strong>Policy {screen.policy}</strong>
        {actions.pick && (
          <button class="je-policy-change" aria-expanded={props.picking ?? false} onClick={actions.pick}>
            What if…
          </button>
        )}
        <span class="je-quiet">{screen.predicted_at !== null ? `future predicted at ${clock(screen.predicted_at)}` : screen.note}</span>
        {screen.predicted_at !== null && screen.note && <span class="je-quiet">{screen.note}</span>}
        {!screen.loaded && <span class="je-quiet">reading the past…</span>}
        <span class="je-buttons">
          <button aria-label="Earlier" title="Earlier (left arrow)" onClick={() => move(-0.5)}>
            ‹
          </button>
          <button aria-label="Later" title="Later (right arrow)" onClick={() => move(0.5)}>
            ›
          </button>
          <button aria-label="Zoom in" title="Zoom in (+, or Ctrl and the wheel)" onClick={() => zoom(1 / 1.5)}>
            +
          </button>
          <button aria-label="Zoom out" title="Zoom out (−)" onClick={() => zoom(1.5)}>
            −
          </button>
          <button aria-pressed={look.at === null} title="Follow now (Home)" onClick={() => change(following(look))}>
            Now
          </button>
          <select aria-label="colours of" value={byUser ? 'user' : 'job'} onChange={event => setByUser(event.currentTarget.value === 'user')}>
            <option value="job">colour by job</option>
            <option value="user">colour by user</option>
          </select>
        </span>
      </div>
      {props.picker}
      <div
        class="je-window"
        ref={box}
        tabIndex={0}
        role="group"
        aria-label="Timeline: arrow keys move it, plus and minus zoom, Home goes to now"
        data-lm-suppress-shortcuts="true"
        onKeyDown={keys}
        onPointerDown={grab}
        onPointerMove={drag}
      >
        <div ref={element}>
          <TimelineChart
            hosts={screen.hosts}
            bars={screen.bars}
            future={screen.future}
            jobs={screen.jobs}
            switches={screen.switches}
            begin={begin}
            end={end}
            now={now}
            width={width}
            colour={colour}
            label={`${plural(screen.hosts.reduce((sum, host) => sum + host.slots.length, 0), 'slot')} from ${clock(begin)} to ${clock(end)}: ${plural(screen.jobs.length, 'job')}`}
            open={actions.open && open}
          />
        </div>
      </div>
      {byUser && (
        <ul class="je-legend" aria-label="users">
          {screen.users.slice(0, 30).map(user => (
            <li key={user}>
              <i style={{ background: PALETTE[place.get(user)!] }} />
              {user}
            </li>
          ))}
        </ul>
      )}
      <Going jobs={going} now={now} colour={colour} open={actions.open} />
      <Fairness rows={screen.fairness} place={place} begin={begin} end={end} until={Math.min(now, end)} width={width} left={left} />
      <Finished screen={screen} look={look} look_at={actions.look} colour={colour} open={actions.open} />
    </div>
  );
}

function JobNumber(props: { job: number; colour: number; open?: (job: number) => void; name: string }) {
  const inside = <span style={{ background: PALETTE[props.colour] }}>{props.job}</span>;
  if (!props.open) return <span class="je-number">{inside}</span>;
  return (
    <button class="je-number" aria-label={`Open job ${props.job} ${props.name}`} title="Output, plots and story" onClick={() => props.open!(props.job)}>
      {inside}
    </button>
  );
}

const SHOWN = 30;

function Going(props: { jobs: TimelineJob[]; now: number; colour: (job: number) => number; open?: (job: number) => void }) {
  if (!props.jobs.length) return <p class="je-quiet">No unfinished jobs.</p>;
  const away = (times: [number, number]) => range(times[0] - props.now, times[1] - props.now);
  return (
    <section aria-label="unfinished jobs">
      <h3>Now and next</h3>
      <ul class="je-going">
        {props.jobs.slice(0, SHOWN).map(job => (
          <li key={job.job}>
            <JobNumber job={job.job} colour={props.colour(job.job)} open={props.open} name={job.name} /> {job.name}{' '}
            <span class="je-quiet">
              {[job.owner, job.state, job.starts && `starts in ${away(job.starts)}`, job.ends && `ends in ${away(job.ends)}`].filter(Boolean).join(' · ')}
            </span>
          </li>
        ))}
      </ul>
      {props.jobs.length > SHOWN && <p class="je-quiet">and {props.jobs.length - SHOWN} more</p>}
    </section>
  );
}

interface FairnessProps {
  rows: FairRow[];
  place: Map<string, number>;
  begin: number;
  end: number;
  until: number;
  width: number;
  left: number;
}

/** Slots that each user has used, as an area, against the fair share, as a line; the time is that of the chart above. */
function Fairness({ rows, place, begin, end, until, width, left }: FairnessProps) {
  if (!rows.length) return null;
  const [high, gap] = [34, 18];
  const most = Math.max(1, ...rows.flatMap(row => row.points.flatMap(([, used, share]) => [used, share])));
  const x = (at: number) => left + (Math.min(Math.max(at, begin), end) - begin) * ((width - left) / (end - begin));
  const y = (slots: number) => high - (slots / most) * high;
  const steps = (row: FairRow, pick: 1 | 2) =>
    row.points.map((point, index) => `${index ? 'L' : 'M'}${x(point[0]).toFixed(1)} ${y(point[pick]).toFixed(1)}H${x(row.points[index + 1]?.[0] ?? until).toFixed(1)}`).join('');
  /** While the user was there. */
  const mean = (row: FairRow, pick: 1 | 2) => {
    const there = row.points.filter(point => point[1] || point[2]);
    return there.reduce((sum, point) => sum + point[pick], 0) / Math.max(1, there.length);
  };
  return (
    <section aria-label="fairness">
      <h3>
        Slots used against the fair share <span class="je-quiet">(area and dashed line)</span>
      </h3>
      <svg
        class="je-chart"
        role="img"
        width={width}
        height={rows.length * (high + gap)}
        aria-label={rows.map(row => `${row.user}: ${mean(row, 1).toFixed(1)} slots used, fair share ${mean(row, 2).toFixed(1)}`).join('; ')}
      >
        {rows.map((row, index) => (
          <g key={row.user} transform={`translate(0 ${index * (high + gap) + gap})`}>
            <text class="je-label je-strong" x={left} y={-5}>
              {row.user}: {mean(row, 1).toFixed(1)} used, fair share {mean(row, 2).toFixed(1)}
            </text>
            <text class="je-label" x={0} y={10}>
              {most.toFixed(most < 10 ? 1 : 0)}
            </text>
            <path d={`${steps(row, 1)}V${high}H${x(row.points[0][0])}Z`} fill={PALETTE[place.get(row.user) ?? 0]} fill-opacity="0.75" />
            <path class="je-share" d={steps(row, 2)} />
            <line class="je-grid" x1={left} x2={width} y1={high} y2={high} />
          </g>
        ))}
      </svg>
    </section>
  );
}

interface FinishedProps {
  screen: TimelineScreen;
  look: TimelineLook;
  look_at: (look: TimelineLook) => void;
  colour: (job: number) => number;
  open?: (job: number) => void;
}

function Finished({ screen, look, look_at, colour, open }: FinishedProps) {
  const pick = (change: Partial<TimelineLook>) => look_at({ ...look, offset: 0, ...change });
  const last = Math.min(look.offset + screen.finished.length, screen.total_finished);
  const took = (row: FinishedRow) => (row.started_at === null ? '–' : duration(row.ended_at - row.started_at));
  const span = SPANS.find(([, seconds]) => look.at === null && Math.abs(seconds - look.past_s) < 0.01 * seconds)?.[1] ?? '';
  return (
    <section aria-label="finished jobs">
      <h3>Finished</h3>
      <div class="je-bar-line" data-lm-suppress-shortcuts="true">
        <select aria-label="user" value={look.user} onChange={event => pick({ user: event.currentTarget.value })}>
          <option value="">every user</option>
          {[...new Set([...screen.users, ...(look.user ? [look.user] : [])])].map(user => (
            <option key={user}>{user}</option>
          ))}
        </select>
        <select aria-label="outcome" value={look.state} onChange={event => pick({ state: event.currentTarget.value })}>
          <option value="">every outcome</option>
          <option>completed</option>
          <option>failed</option>
          <option>cancelled</option>
        </select>
        <input type="search" aria-label="name" placeholder="name" value={look.name} onInput={event => pick({ name: event.currentTarget.value.slice(0, 200) })} />
        <select
          aria-label="time"
          value={String(span)}
          onChange={event => {
            const past = parseFloat(event.currentTarget.value);
            if (past) pick({ at: null, past_s: past, ahead_s: past / 2 });
          }}
        >
          <option value="">the time above</option>
          {SPANS.map(([text, seconds]) => (
            <option key={seconds} value={String(seconds)}>
              last {text}
            </option>
          ))}
        </select>
        <span class="je-quiet" role="status">
          {plural(screen.total_finished, 'job')}
        </span>
      </div>
      {screen.finished.length > 0 && (
        <div class="je-scroll" tabIndex={0} role="group" aria-label="table of finished jobs">
          <table class="je-table je-list">
            <thead>
              <tr>
                <th scope="col">job</th>
                <th scope="col">name</th>
                <th scope="col">user</th>
                <th scope="col">outcome</th>
                <th scope="col">ended</th>
                <th scope="col">took</th>
                <th scope="col">slots</th>
              </tr>
            </thead>
            <tbody>
              {screen.finished.map(row => (
                <tr key={row.job}>
                  <td>
                    <JobNumber job={row.job} colour={colour(row.job)} open={open} name={row.name} />
                  </td>
                  <td>{row.name}</td>
                  <td>{row.owner}</td>
                  <td class={row.outcome === 'failed' ? 'je-bad' : ''} title={row.reason}>
                    {row.outcome}
                  </td>
                  <td>{ended(row.ended_at, screen.at)}</td>
                  <td>{took(row)}</td>
                  <td>{row.most}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {screen.total_finished > look.limit && (
        <div class="je-bar-line">
          <button disabled={look.offset === 0} onClick={() => look_at({ ...look, offset: Math.max(0, look.offset - look.limit) })}>
            Newer
          </button>
          <button disabled={last >= screen.total_finished} onClick={() => look_at({ ...look, offset: look.offset + look.limit })}>
            Older
          </button>
          <span class="je-quiet">
            {look.offset + 1} to {last} of {screen.total_finished}
          </span>
        </div>
      )}
    </section>
  );
}

function ended(at: number, now: number): string {
  const day = new Date(at * 1000).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  return now - at > 12 * 3600 ? `${day}, ${clock(at)}` : clock(at);
}

