// The view of the pool: slots, jobs, policy, shares and history.
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import type { PoolActions } from '../../actions';
import type { Ask } from '../../ask';
import { clock, palette, plural } from '../../format';
import type { PoolScreen } from '../../screens';
import { Problem } from '../Problem';
import { useRequests } from '../requests';
import { History } from './History';
import { JobTable } from './JobTable';
import { Section } from './Section';
import { Shadow } from './Shadow';
import { Shares } from './Shares';
import { SlotMap } from './SlotMap';

export function PoolView(props: {
  screen: PoolScreen;
  offset: number;
  actions: PoolActions;
  ask: Ask;
  down: number | null;
  notice?: string;
  /** True for two columns, as in a notebook. */
  wide?: boolean;
  picker?: ComponentChildren;
}) {
  const { screen, actions } = props;
  const requests = useRequests();
  const opener = useRef<HTMLButtonElement>(null);
  const picking = Boolean(props.picker);
  const picked = useRef(picking);
  // Focus is lost with the closed picker: move it to the button, before the next key.
  useLayoutEffect(() => {
    if (picked.current && !picking && document.activeElement === document.body) opener.current?.focus();
    picked.current = picking;
  }, [picking]);
  const slots = screen.hosts.flatMap(host => host.slots).filter(slot => !slot.for_servers);
  const free = slots.filter(slot => slot.state === 'free').length;
  const capacity = slots.filter(slot => slot.state !== 'out').length;
  const kind = screen.kind === 'gpu' ? 'GPU' : 'CPU slot';
  const past = screen.history.flatMap(point => Object.keys(point.leased));
  const colour = palette([
    ...screen.shares.map(share => share.user),
    ...past,
    ...slots.map(slot => slot.owner),
    ...screen.jobs.map(job => job.owner)
  ]);
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
        <SlotMap hosts={screen.hosts} colour={colour} now={screen.at} />
      </Section>
      <Section title="Jobs" aside={screen.total_jobs ? plural(screen.total_jobs, 'job') : undefined}>
        <JobTable
          screen={screen}
          colour={colour}
          offset={props.offset}
          actions={actions}
          requests={requests}
          ask={props.ask}
        />
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
              <Shadow
                key={`${row.policy}-${row.cell}`}
                row={row}
                end={actions.unshadow && (() => void requests.run('unshadow', () => actions.unshadow!(row)))}
              />
            ))}
          </ul>
        )}
        <ul class="je-notes" aria-label="what the policy did">
          {screen.notes.slice(0, 8).map(note => (
            <li key={`${note.at}-${note.job}-${note.text}`}>
              <span class="je-quiet">{clock(note.at)}</span>{' '}
              {note.job !== null && <span class="je-chip je-small">{note.job}</span>} {note.text}
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
