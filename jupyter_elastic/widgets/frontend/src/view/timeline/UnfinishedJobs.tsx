// The list of unfinished jobs below a timeline.
import { range } from '../../format';
import type { TimelineJob } from '../../screens';
import { JobNumber } from './JobNumber';

/** Maximum number of jobs in the list. */
const SHOWN = 30;

export function UnfinishedJobs(props: {
  jobs: TimelineJob[];
  now: number;
  colour: (job: number) => number;
  open?: (job: number) => void;
}) {
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
              {[
                job.owner,
                job.state,
                job.starts && `starts in ${away(job.starts)}`,
                job.ends && `ends in ${away(job.ends)}`
              ]
                .filter(Boolean)
                .join(' · ')}
            </span>
          </li>
        ))}
      </ul>
      {props.jobs.length > SHOWN && <p class="je-quiet">and {props.jobs.length - SHOWN} more</p>}
    </section>
  );
}
