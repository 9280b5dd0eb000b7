// A line of the table of unfinished jobs.
import type { Ask } from '../../ask';
import { type Colour, range, slotRange } from '../../format';
import type { JobRow } from '../../screens';
import type { Requests } from '../requests';
import { RowCancel } from './RowCancel';

function state(row: JobRow): string {
  if (row.position === null) {
    if (row.phase === 'running' && row.fraction !== null) return `${Math.round(row.fraction * 100)} %`;
    return row.phase;
  }
  if (row.wait_s) return `starts in ${range(row.wait_s[0], row.wait_s[1])}`;
  return row.reason || 'waiting';
}

export function JobLine(props: {
  row: JobRow;
  colour: Colour;
  mine: boolean;
  cancel: () => Promise<unknown>;
  open?: () => void;
  now: number;
  requests: Requests;
  ask: Ask;
}) {
  const { row } = props;
  // The state comes first: in a narrow panel the end may be cut off.
  const line = [state(row), row.position === null ? '' : `#${row.position} in the queue`, row.owner]
    .filter(Boolean)
    .join(' · ');
  return (
    <li
      class="je-row"
      style={props.colour(row.owner, row.job)}
      aria-label={`job ${row.job} ${row.name} of ${row.owner}`}
    >
      <span class={`je-chip ${row.position === null ? 'je-leased' : 'je-queued'}`}>{row.job}</span>
      <span class="je-row-main">
        {props.open ? (
          <button
            class="je-row-name"
            title={row.name}
            aria-label={`Open job ${row.job}, ${row.name}`}
            onClick={props.open}
          >
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
        {row.held}/{slotRange(row)}
      </span>
      {props.mine ? <RowCancel {...props} job={row} /> : <span class="je-icon" />}
    </li>
  );
}
