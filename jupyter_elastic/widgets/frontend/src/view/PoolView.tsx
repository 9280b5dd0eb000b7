// The pool: who holds what, who waits, how it has been, what the policy does and why.
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import type { Ask } from '../ask';
import { aboutHost, clock, duration, palette, plural, range } from '../format';
import type { HistoryPoint, HostBox, JobRow, PoolScreen, ShadowRow, ShareRow } from '../screens';
import { Problem, useCancel, useRequests, type Cancelling, type Requests } from './requests';

/** Of a table that is shown in windows; rows of a short one are as high as they need. */
const ROW_HEIGHT = 56;

export interface PoolActions {
  /** What is missing can't be done here. */
  cancel?(job: number): Promise<unknown>;
  /** Show a job by itself, where there is room for that. */
  open?(job: number): void;
  openPicker?(): void;
  /** Ask this shadow no longer. */
  unshadow?(row: ShadowRow): Promise<unknown>;
  /** Ask for another window of the job table. */
  window(offset: number, limit: number): void;
}

function Section(props: { title: string; aside?: string; children: ComponentChildren }) {
  return (
    <section class="je-section">
      <h3>
        {props.title}
        {props.aside && <span class="je-aside">{props.aside}</span>}
      </h3>
      {props.children}
    </section>
  );
}

type Colour = ReturnType<typeof palette>;

function Map({ hosts, colour, now }: { hosts: HostBox[]; colour: Colour; now: number }) {
  return (
    <div class="je-map">
      {hosts.map(host => (
        <div class="je-host" key={host.name}>
          <span class="je-host-name" title={host.name}>
            {host.name}
          </span>
          <span class="je-slots" role="list" aria-label={`slots of ${host.name}`}>
            {host.slots.map(slot => {
              const name = `${slot.slot}${slot.for_servers ? ' (for servers)' : ''}`;
              const label =
                slot.state === 'free'
                  ? `${name}: free`
                  : `${name}: ${slot.state}${slot.job === null ? '' : `, job ${slot.job} of ${slot.owner}`}${slot.reason ? `, ${slot.reason}` : ''}`;
              return (
                <span
                  key={slot.slot}
                  role="listitem"
                  class={`je-slot je-${slot.state}${slot.for_servers ? ' je-for-servers' : ''}`}
                  style={slot.job === null ? '' : colour(slot.owner, slot.job)}
                  title={label}
                  aria-label={label}
                >
                  {slot.job ?? ''}
                </span>
              );
            })}
          </span>
          {aboutHost(host, now) && <span class="je-host-about">{aboutHost(host, now)}</span>}
        </div>
      ))}
    </div>
  );
}

function state(row: JobRow): string {
  if (row.position === null) {
    if (row.phase === 'running' && row.fraction !== null) return `${Math.round(row.fraction * 100)} %`;
    return row.phase;
  }
  if (row.wait_s) return `starts in ${range(row.wait_s[0], row.wait_s[1])}`;
  return row.reason || 'waiting';
}

function RowCancel(props: Cancelling) {
  const [asked, click] = useCancel(props);
  const title = `${asked ? 'Cancelling' : 'Cancel'} job ${props.job.job}`;
  return (
    <button class="je-icon" title={title} aria-label={title} disabled={asked} onClick={() => void click()}>
      {asked ? '…' : '✕'}
    </button>
  );
}

function Row(props: { row: JobRow; colour: Colour; mine: boolean; cancel: () => Promise<unknown>; open?: () => void; now: number; requests: Requests; ask: Ask }) {
  const { row } = props;
  const wants = row.min_slots === row.max_slots ? `${row.max_slots}` : `${row.min_slots}:${row.max_slots}`;
  // What one looks for comes first: in a narrow panel the end may be cut off.
  const line = [state(row), row.position === null ? '' : `#${row.position} in the queue`, row.owner].filter(Boolean).join(' · ');
  return (
    <li class="je-row" style={props.colour(row.owner, row.job)} aria-label={`job ${row.job} ${row.name} of ${row.owner}`}>
      <span class={`je-chip ${row.position === null ? 'je-leased' : 'je-queued'}`}>{row.job}</span>
      <span class="je-row-main">
        {props.open ? (
          <button class="je-row-name" title={row.name} aria-label={`Open job ${row.job}, ${row.name}`} onClick={props.open}>
            {row.name}
          </button>
        ) : (
          <span class="je-row-name" title={row.name}>
            {row.name}
          </span>
        )}
        <span class="je-quiet je-row-state" title={line}>
          {line}
        </span>
      </span>
      <span class="je-held" title="slots held / wanted">
        {row.held}/{wants}
      </span>
      {props.mine ? <RowCancel {...props} job={row} /> : <span class="je-icon" />}
    </li>
  );
}

/** Only the rows in sight are in the page: the server sends a window, the rest is height. */
function Jobs(props: { screen: PoolScreen; colour: Colour; offset: number; actions: PoolActions; requests: Requests; ask: Ask }) {
  const { screen, offset, actions, requests, ask } = props;
  const long = screen.total_jobs > screen.jobs.length;
  const scrolled = (event: Event) => {
    const box = event.currentTarget as HTMLElement;
    const first = Math.floor(box.scrollTop / ROW_HEIGHT);
    const shown = Math.ceil(box.clientHeight / ROW_HEIGHT);
    if (first < offset || first + shown > offset + screen.jobs.length) {
      actions.window(Math.max(0, first - shown), 4 * shown);
    }
  };
  if (!screen.total_jobs) return <p class="je-quiet">No jobs</p>;
  return (
    <div class={`je-jobs${long || offset ? ' je-window' : ''}`} onScroll={long || offset ? scrolled : undefined} tabIndex={0} role="group" aria-label="jobs">
      <div style={long || offset ? `height: ${screen.total_jobs * ROW_HEIGHT}px` : ''}>
        <ol style={`transform: translateY(${offset * ROW_HEIGHT}px)`}>
          {screen.jobs.map(row => (
            <Row
              key={row.job}
              row={row}
              colour={props.colour}
              mine={row.mine && actions.cancel !== undefined}
              cancel={() => actions.cancel!(row.job)}
              open={actions.open && (() => actions.open!(row.job))}
              now={screen.at}
              requests={requests}
              ask={ask}
            />
          ))}
        </ol>
      </div>
    </div>
  );
}

/** A policy that is asked and not obeyed: where it would do something else than the one that decides. */
function Shadow({ row, end }: { row: ShadowRow; end?: () => void }) {
  const given = Object.entries(row.options).map(([name, value]) => `${name}=${String(value)}`);
  return (
    <li class="je-shadow" aria-label={`shadow ${row.policy}`}>
      <div class="je-policy-line">
        <span>
          <strong>{row.policy}</strong> {given.length > 0 && <span class="je-quiet">{given.join(', ')}</span>}
        </span>
        {end && (
          <button class="je-icon" title={`Stop the shadow ${row.policy}`} aria-label={`Stop the shadow ${row.policy}`} onClick={end}>
            ✕
          </button>
        )}
      </div>
      {row.problem ? <p class="je-bad">{row.problem}</p> : <p>{difference(row)}</p>}
      <p class="je-quiet">
        Asked {row.cell && 'by this notebook '}since {clock(row.since)}
        {row.asked > 0 && `; differed ${row.differed} of ${plural(row.asked, 'time')}`}.
      </p>
      {row.differences.length > 0 && (
        <ul class="je-notes" aria-label={`what ${row.policy} would do otherwise`}>
          <li class="je-policy-line je-quiet">
            <span>slots held</span> <span>now → by {row.policy}</span>
          </li>
          {row.differences.map(job => (
            <li class="je-policy-line" key={job.job}>
              <span>
                <span class="je-chip je-small">{job.job}</span> {job.name} <span class="je-quiet">{job.owner}</span>
              </span>
              <strong class="je-change">
                {job.holds} → {job.shadow}
              </strong>
            </li>
          ))}
        </ul>
      )}
      {row.total_differences > row.differences.length && <p class="je-quiet">and {row.total_differences - row.differences.length} more jobs</p>}
    </li>
  );
}

function difference(row: ShadowRow): string {
  if (!row.asked) return 'Not asked yet.';
  if (row.differs_since === null) return row.jobs ? `Agrees about ${row.jobs === 1 ? 'the one job' : `all ${row.jobs} jobs`} now.` : 'No job to decide about now.';
  return `Differs now for ${row.total_differences} of ${plural(row.jobs, 'job')}, since ${clock(row.differs_since)}.`;
}

function Shares({ shares, capacity, colour }: { shares: ShareRow[]; capacity: number; colour: Colour }) {
  const scale = (slots: number) => `${(100 * slots) / Math.max(capacity, 1)}%`;
  return (
    <ul class="je-shares">
      {shares.map(share => (
        <li key={share.user} style={colour(share.user)}>
          <span class="je-share-name">{share.user}</span>
          <span
            class="je-share-bar"
            role="img"
            aria-label={`${share.user} holds ${share.held} slots; an equal share is ${share.entitled.toFixed(1)}`}
          >
            <span class="je-share-held" style={`width: ${scale(share.held)}`} />
            <span class="je-share-due" style={`left: ${scale(share.entitled)}`} title="an equal share" />
          </span>
          <span class="je-quiet">
            {share.held} / {Number(share.entitled.toFixed(1))}
          </span>
        </li>
      ))}
    </ul>
  );
}

function History({ points, now, colour }: { points: HistoryPoint[]; now: number; colour: Colour }) {
  if (!points.length) return null;
  const begin = points[0].at;
  const span = Math.max(now - begin, 1);
  const capacity = Math.max(...points.map(p => p.capacity), 1);
  const owners = [...new Set(points.flatMap(p => Object.keys(p.leased)))].sort();
  return (
    <>
      <svg class="je-history" viewBox="0 0 300 60" preserveAspectRatio="none" role="img" aria-label="slots leased over time, by user">
        {points.map((point, index) => {
          const until = index + 1 < points.length ? points[index + 1].at : now;
          const x = ((point.at - begin) / span) * 300;
          const width = ((until - point.at) / span) * 300;
          let y = 60;
          return owners.map(owner => {
            const height = ((point.leased[owner] ?? 0) / capacity) * 60;
            y -= height;
            return height > 0 && <rect key={owner} x={x} y={y} width={width} height={height} style={colour(owner)} />;
          });
        })}
      </svg>
      <div class="je-range">
        <span>{duration(span)} ago</span>
        <span>now</span>
      </div>
    </>
  );
}

export function PoolView(props: {
  screen: PoolScreen;
  offset: number;
  actions: PoolActions;
  ask: Ask;
  down: number | null;
  notice?: string;
  /** In a notebook there is room for two columns. */
  wide?: boolean;
  picker?: ComponentChildren;
}) {
  const { screen, actions } = props;
  const requests = useRequests();
  const opener = useRef<HTMLButtonElement>(null);
  const picking = Boolean(props.picker);
  const picked = useRef(picking);
  // The picker that closes takes the focus with it; the next key may come before anything is painted.
  useLayoutEffect(() => {
    if (picked.current && !picking && document.activeElement === document.body) opener.current?.focus();
    picked.current = picking;
  }, [picking]);
  const slots = screen.hosts.flatMap(host => host.slots).filter(slot => !slot.for_servers);
  const free = slots.filter(slot => slot.state === 'free').length;
  const capacity = slots.filter(slot => slot.state !== 'out').length;
  const kind = screen.kind === 'gpu' ? 'GPU' : 'CPU slot';
  const past = screen.history.flatMap(point => Object.keys(point.leased));
  const colour = palette([...screen.shares.map(share => share.user), ...past, ...slots.map(slot => slot.owner), ...screen.jobs.map(job => job.owner)]);
  return (
    <div class={`je-root je-pool${props.wide ? ' je-wide' : ''}${props.down === null ? '' : ' je-stale'}`}>
      {props.notice && (
        <p class="je-banner" role="alert">
          {props.notice}
        </p>
      )}
      {props.down !== null && (
        <p class="je-banner" role="alert">
          The pool has not answered since {clock(props.down)}. Jobs go on; this page reconnects by itself.
        </p>
      )}
      {screen.problem && (
        <p class="je-banner je-error" role="alert">
          {screen.problem}
        </p>
      )}
      {screen.maintenance && (
        <p class="je-banner" role="status">
          {screen.maintenance}
        </p>
      )}
      <Problem requests={requests} />
      <Section title="Pool" aside={`${free} of ${plural(capacity, kind)} free`}>
        <Map hosts={screen.hosts} colour={colour} now={screen.at} />
      </Section>
      <Section title="Jobs" aside={screen.total_jobs ? plural(screen.total_jobs, 'job') : undefined}>
        <Jobs screen={screen} colour={colour} offset={props.offset} actions={actions} requests={requests} ask={props.ask} />
      </Section>
      <Section title="Policy">
        <div class="je-policy-line">
          <strong>{screen.policy}</strong>
          {actions.openPicker && (
            <button ref={opener} aria-expanded={picking} onClick={() => actions.openPicker!()}>
              {props.picker ? 'Close' : 'Change…'}
            </button>
          )}
        </div>
        {props.picker}
        {screen.shadows.length > 0 && (
          <ul aria-label="shadows">
            {screen.shadows.map(row => (
              <Shadow key={`${row.policy}-${row.cell}`} row={row} end={actions.unshadow && (() => void requests.run('unshadow', () => actions.unshadow!(row)))} />
            ))}
          </ul>
        )}
        <ul class="je-notes" aria-label="what the policy did">
          {screen.notes.slice(0, 8).map(note => (
            <li key={`${note.at}-${note.job}-${note.text}`}>
              <span class="je-quiet">{clock(note.at)}</span> {note.job !== null && <span class="je-chip je-small">{note.job}</span>}{' '}
              {note.text}
            </li>
          ))}
        </ul>
      </Section>
      {screen.shares.length > 0 && (
        <Section title="Shares" aside="in use / fair share">
          <Shares shares={screen.shares} capacity={capacity} colour={colour} />
        </Section>
      )}
      {screen.history.length > 0 && (
        <Section title="History">
          <History points={screen.history} now={screen.at} colour={colour} />
        </Section>
      )}
      {screen.switches.length > 0 && (
        <Section title="Policy changes">
          <ul class="je-notes">
            {screen.switches.slice(0, 6).map(row => (
              <li key={row.at}>
                <span class="je-quiet">{clock(row.at)}</span> {row.previous ? `${row.previous} → ` : ''}
                <strong>{row.name}</strong> by {row.by}
                {row.reason && `: ${row.reason}`}
              </li>
            ))}
          </ul>
        </Section>
      )}
    </div>
  );
}
