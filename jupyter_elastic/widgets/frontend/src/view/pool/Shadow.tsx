// A shadow: a policy whose plans the pool compares and does not carry out.
import { clock, plural } from '../../format';
import type { ShadowRow } from '../../screens';

function difference(row: ShadowRow): string {
  if (!row.asked) return 'Not asked yet.';
  if (row.differs_since === null)
    return row.jobs
      ? `Agrees about ${row.jobs === 1 ? 'the one job' : `all ${row.jobs} jobs`} now.`
      : 'No job to decide about now.';
  return `Differs now for ${row.total_differences} of ${plural(row.jobs, 'job')}, since ${clock(row.differs_since)}.`;
}

export function Shadow({ row, end }: { row: ShadowRow; end?: () => void }) {
  const given = Object.entries(row.options).map(([name, value]) => `${name}=${String(value)}`);
  return (
    <li class="je-shadow" aria-label={`shadow ${row.policy}`}>
      <div class="je-policy-line">
        <span>
          <strong>{row.policy}</strong> {given.length > 0 && <span class="je-quiet">{given.join(', ')}</span>}
        </span>
        {end && (
          <button
            class="je-icon"
            title={`Stop the shadow ${row.policy}`}
            aria-label={`Stop the shadow ${row.policy}`}
            onClick={end}
          >
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
      {row.total_differences > row.differences.length && (
        <p class="je-quiet">and {row.total_differences - row.differences.length} more jobs</p>
      )}
    </li>
  );
}
