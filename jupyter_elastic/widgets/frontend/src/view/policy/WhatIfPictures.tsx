// The futures under the present policy and under another, on the same scale of time.
import type { PolicyForecast, TimelineJob } from '../../screens';
import { TimelineChart } from '../timeline/TimelineChart';
import { useWidth } from '../width';
import { changed } from './changes';

export type Names = Map<number, { name: string; owner: string }>;

/** A job that would end later or earlier is marked with the difference. */
export function WhatIfPictures({
  present,
  chosen,
  names,
  trend
}: {
  present: PolicyForecast;
  chosen: PolicyForecast;
  names: Names;
  trend: (job: number) => number;
}) {
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
