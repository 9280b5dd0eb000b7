// The what-if: two pictures one above the other, and the figures. One threshold decides what is coloured and listed.
import type { PolicyForecast } from '../../screens';
import { PredictedTime } from './PredictedTime';
import { type Names, WhatIfPictures } from './WhatIfPictures';
import { changed, time } from './changes';

/** Maximum number of jobs in the table. */
const SHOWN = 12;
/** The figures of all jobs together: name, field, and the field that says whether a change of it counts. */
const FIGURES = [
  ['average completion time', 'avg_jct_s', 'avg_jct_trend'],
  ['all finish in', 'makespan_s', 'makespan_trend']
] as const;

/** `age` is the number of seconds since the forecasts were made. */
export function WhatIf(props: { present: PolicyForecast; chosen: PolicyForecast; age: number; names: Names }) {
  const { present, chosen, age, names } = props;
  if (!chosen.jobs.length) return <p class="je-quiet">No jobs to predict for.</p>;
  const before = new Map(present.jobs.map(job => [job.job, job]));
  const shown = chosen.jobs.slice(0, SHOWN);
  const left = (finish: number | null | undefined) => (finish === null || finish === undefined ? null : finish - age);
  const trend = (job: number) => (chosen.losers.includes(job) ? 1 : chosen.winners.includes(job) ? -1 : 0);
  return (
    <>
      <WhatIfPictures present={present} chosen={chosen} names={names} trend={trend} />
      <table class="je-table" aria-label="what the policy would change">
        <thead>
          <tr>
            <th scope="col">predicted</th>
            <th scope="col">{present.policy}</th>
            <th scope="col">{chosen.policy}</th>
          </tr>
        </thead>
        <tbody>
          {FIGURES.map(([name, figure, trend]) => (
            <tr key={name}>
              <td>{name}</td>
              <td>{time(present[figure])}</td>
              <PredictedTime
                then={chosen[figure]}
                change={changed(present[figure], chosen[figure], chosen[trend])}
                trend={chosen[trend]}
              />
            </tr>
          ))}
          {shown.map(job => {
            const now = before.get(job.job)?.finish_s;
            return (
              <tr key={job.job}>
                <td>
                  job {job.job} ends in
                  <div class="je-quiet">{names.get(job.job)?.name}</div>
                </td>
                <td>{time(left(now))}</td>
                <PredictedTime
                  then={left(job.finish_s)}
                  change={changed(now, job.finish_s, trend(job.job))}
                  trend={trend(job.job)}
                />
              </tr>
            );
          })}
        </tbody>
      </table>
      {chosen.jobs.length > shown.length && <p class="je-quiet">and {chosen.jobs.length - shown.length} more jobs</p>}
      <p class="je-quiet">
        {chosen.losers.length
          ? `Later than now: ${chosen.losers
              .slice(0, 10)
              .map(job => `job ${job}`)
              .join(', ')}.`
          : 'No job would end later.'}
      </p>
    </>
  );
}
