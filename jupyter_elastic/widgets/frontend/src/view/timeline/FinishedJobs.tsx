// The table of finished jobs below a timeline, with its filters.
import { clock, duration, plural } from '../../format';
import type { FinishedRow, TimelineLook, TimelineScreen } from '../../screens';
import { JobNumber } from './JobNumber';

/** Spans of time to choose, in seconds. */
const SPANS: [string, number][] = [
  ['1 min', 60],
  ['10 min', 600],
  ['1 hour', 3600],
  ['6 hours', 21600],
  ['1 day', 86400],
  ['1 week', 604800],
  ['30 days', 2592000]
];

interface FinishedProps {
  screen: TimelineScreen;
  look: TimelineLook;
  look_at: (look: TimelineLook) => void;
  colour: (job: number) => number;
  open?: (job: number) => void;
}

export function FinishedJobs({ screen, look, look_at, colour, open }: FinishedProps) {
  const pick = (change: Partial<TimelineLook>) => look_at({ ...look, offset: 0, ...change });
  const last = Math.min(look.offset + screen.finished.length, screen.total_finished);
  const took = (row: FinishedRow) => (row.started_at === null ? '–' : duration(row.ended_at - row.started_at));
  const span =
    SPANS.find(([, seconds]) => look.at === null && Math.abs(seconds - look.past_s) < 0.01 * seconds)?.[1] ?? '';
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
        <input
          type="search"
          aria-label="name"
          placeholder="name"
          value={look.name}
          onInput={event => pick({ name: event.currentTarget.value.slice(0, 200) })}
        />
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
          <button
            disabled={look.offset === 0}
            onClick={() => look_at({ ...look, offset: Math.max(0, look.offset - look.limit) })}
          >
            Newer
          </button>
          <button
            disabled={last >= screen.total_finished}
            onClick={() => look_at({ ...look, offset: look.offset + look.limit })}
          >
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
