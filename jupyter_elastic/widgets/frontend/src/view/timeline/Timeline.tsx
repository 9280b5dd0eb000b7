// The timeline: past and likely future of the pool's slots, and the lists below it.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { clock, plural } from '../../format';
import type { TimelineLook, TimelineScreen } from '../../screens';
import { following, gutter, jobColour, moved, PALETTE, zoomed } from '../../timeline';
import { useWidth } from '../width';
import { Fairness } from './Fairness';
import { FinishedJobs } from './FinishedJobs';
import { TimelineChart } from './TimelineChart';
import { UnfinishedJobs } from './UnfinishedJobs';

interface TimelineActions {
  /** Show this window from now on. */
  look(look: TimelineLook): void;
  /** Show a job; missing where the page can't. */
  open?: (job: number) => void;
  /** Open or close the policy picker. */
  pick?: () => void;
}

interface TimelineProps {
  screen: TimelineScreen;
  /** Arrival of the screen by `performance.now()`: the pool's clock has gone on since. */
  came: number;
  look: TimelineLook;
  actions: TimelineActions;
  /** Time since which nothing new comes, in seconds; null while screens come. */
  down: number | null;
  notice?: string;
  /** The policy picker, while it is open. */
  picker?: ComponentChildren;
  picking?: boolean;
}

export function Timeline(props: TimelineProps) {
  const { screen, came, look, actions, down } = props;
  const [element, width] = useWidth(800);
  const [byUser, setByUser] = useState(false);
  const [, drawAgain] = useState(0);
  const now = screen.at + (down === null ? (performance.now() - came) / 1000 : 0);
  const span = look.past_s + look.ahead_s;
  useEffect(() => {
    // Draw again when now has moved by a pixel, but at most once a second.
    const timer = setInterval(
      () => document.hidden || drawAgain(count => count + 1),
      Math.max(1000, (1000 * span) / 800)
    );
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
      zoom(
        Math.exp(Math.min(Math.max(event.deltaY, -100), 100) / 200),
        Math.min(Math.max((event.clientX - edge - left) / (width - left), 0), 1)
      );
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
          {props.notice ||
            `The pool has not answered since ${clock(down!)}. Jobs go on; this picture reconnects automatically.`}
        </div>
      )}
      <div class="je-bar-line">
        <strong>Policy {screen.policy}</strong>
        {actions.pick && (
          <button class="je-policy-change" aria-expanded={props.picking ?? false} onClick={actions.pick}>
            What if…
          </button>
        )}
        <span class="je-quiet">
          {screen.predicted_at !== null ? `future predicted at ${clock(screen.predicted_at)}` : screen.note}
        </span>
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
          <select
            aria-label="colours of"
            value={byUser ? 'user' : 'job'}
            onChange={event => setByUser(event.currentTarget.value === 'user')}
          >
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
            label={`${plural(
              screen.hosts.reduce((sum, host) => sum + host.slots.length, 0),
              'slot'
            )} from ${clock(begin)} to ${clock(end)}: ${plural(screen.jobs.length, 'job')}`}
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
      <UnfinishedJobs jobs={going} now={now} colour={colour} open={actions.open} />
      <Fairness
        rows={screen.fairness}
        place={place}
        begin={begin}
        end={end}
        until={Math.min(now, end)}
        width={width}
        left={left}
      />
      <FinishedJobs screen={screen} look={look} look_at={actions.look} colour={colour} open={actions.open} />
    </div>
  );
}
