// What another policy would change: two pictures one above the other, and the figures. One threshold decides what is coloured and said.
import { difference, duration } from '../format';
import type { PolicyForecast, TimelineJob } from '../screens';
import { TimelineChart } from './TimelineChart';
import { useWidth } from './width';

function time(seconds: number | null): string {
  return seconds === null ? '–' : duration(seconds);
}

/** What would be, and by how much that differs from what is; what is about the same is not marked. */
function Then({ then, change, trend }: { then: number | null; change: string; trend: number }) {
  return (
    <td class={trend < 0 ? 'je-better' : trend > 0 ? 'je-worse' : ''}>
      {time(then)}
      {change && <div>{change}</div>}
    </td>
  );
}

/** In words, for what is coloured. */
function changed(now: number | null | undefined, then: number | null, trend: number): string {
  return trend !== 0 && now != null && then !== null ? difference(now, then) : '';
}

type Names = Map<number, { name: string; owner: string }>;

/** Both futures on the same scale of time; a job that ends later or earlier than today says by how much. */
function Pictures({ present, chosen, names, trend }: { present: PolicyForecast; chosen: PolicyForecast; names: Names; trend: (job: number) => number }) {
  const [element, width] = useWidth(226);
  const before = new Map(present.jobs.map(job => [job.job, job.finish_s]));
  const marks = new Map<number, { text: string; trend: number }>();
  for (const { job, finish_s } of chosen.jobs) {
    const text = changed(before.get(job), finish_s, trend(job));
    if (text) marks.set(job, { text, trend: trend(job) });
  }
  const jobs = chosen.jobs.map(({ job }): TimelineJob => {
    const { name, owner } = names.get(job) ?? { name: '', owner: '' };
    return { job, name, owner, mine: false, state: '', submitted_at: 0, ended_at: null, starts: null, ends: null };
  });
  return (
    <div class="je-whatif" ref={element}>
      {[present, chosen].map(
        (one, index) =>
          one.picture && (
            <figure key={index}>
              <figcaption>{index === 0 ? `${one.policy} (now)` : one.policy}</figcaption>
              <TimelineChart
                hosts={one.picture.hosts}
                bars={[]}
                future={one.picture.bars}
                jobs={jobs}
                begin={one.picture.at}
                end={one.picture.end}
                now={one.picture.at}
                width={width}
                label={`what ${one.policy} would do with ${one.jobs.length} jobs`}
                marks={index ? marks : undefined}
              />
            </figure>
          )
      )}
    </div>
  );
}

const SHOWN = 12;

/** `age`: seconds since the forecasts were made. */
export function WhatIf(props: { present: PolicyForecast; chosen: PolicyForecast; age: number; names: Names }) {
  const { present, chosen, age, names } = props;
  if (!chosen.jobs.length) return <p class="je-quiet">No jobs to predict for.</p>;
  const before = new Map(present.jobs.map(job => [job.job, job]));
  const shown = chosen.jobs.slice(0, SHOWN);
  const left = (finish: number | null | undefined) => (finish === null || finish === undefined ? null : finish - age);
  const trend = (job: number) => (chosen.losers.includes(job) ? 1 : chosen.winners.includes(job) ? -1 : 0);
  return (
    <>
      <Pictures present={present} chosen={chosen} names={names} trend={trend} />
      <table class="je-table" aria-label="what the policy would change">
        <thead>
          <tr>
            <th scope="col">predicted</th>
            <th scope="col">{present.policy}</th>
            <th scope="col">{chosen.policy}</th>
          </tr>
        </thead>
        <tbody>
          <tr>
            <td>average completion time</td>
            <td>{time(present.avg_jct_s)}</td>
            <Then then={chosen.avg_jct_s} change={changed(present.avg_jct_s, chosen.avg_jct_s, chosen.avg_jct_trend)} trend={chosen.avg_jct_trend} />
          </tr>
          <tr>
            <td>all finish in</td>
            <td>{time(present.makespan_s)}</td>
            <Then then={chosen.makespan_s} change={changed(present.makespan_s, chosen.makespan_s, chosen.makespan_trend)} trend={chosen.makespan_trend} />
          </tr>
          {shown.map(job => {
            const now = before.get(job.job)?.finish_s;
            return (
              <tr key={job.job}>
                <td>
                  job {job.job} ends in
                  <div class="je-quiet">{names.get(job.job)?.name}</div>
                </td>
                <td>{time(left(now))}</td>
                <Then then={left(job.finish_s)} change={changed(now, job.finish_s, trend(job.job))} trend={trend(job.job)} />
              </tr>
            );
          })}
        </tbody>
      </table>
      {chosen.jobs.length > shown.length && <p class="je-quiet">and {chosen.jobs.length - shown.length} more jobs</p>}
      <p class="je-quiet">
        {chosen.losers.length ? `Later than now: ${chosen.losers.slice(0, 10).map(job => `job ${job}`).join(', ')}.` : 'No job would end later.'}
      </p>
    </>
  );
}
