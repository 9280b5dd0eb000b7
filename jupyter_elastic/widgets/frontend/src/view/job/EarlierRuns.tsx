// The list of earlier runs whose metrics a person can add to the plots.
import { useState } from 'preact/hooks';
import type { EarlierActions } from '../../actions';
import { clock, day } from '../../format';
import type { EarlierRun } from '../../screens';
import { Problem } from '../Problem';
import { useRequests } from '../requests';
import type { ComparedRun } from './drawing';
import { TOGETHER } from './metrics';

/** The runs are requested when a person opens the list. */
export function EarlierRuns(props: {
  actions: EarlierActions;
  compared: ComparedRun[];
  change: (compared: ComparedRun[]) => void;
}) {
  const { actions, compared, change } = props;
  const [runs, setRuns] = useState<EarlierRun[] | null>(null);
  const requests = useRequests();
  const open = async (event: Event) => {
    if ((event.currentTarget as HTMLDetailsElement).open)
      await requests.run('runs', async () => setRuns(await actions.runs()));
  };
  const toggle = async (job: number, on: boolean) => {
    const others = compared.filter(run => run.job !== job);
    if (!on) return change(others);
    await requests.run(`run ${job}`, async () => change([...others, { job, metrics: await actions.metrics(job) }]));
  };
  return (
    <details class="je-earlier" onToggle={event => void open(event)}>
      <summary>Compare with earlier runs</summary>
      <Problem requests={requests} />
      {runs?.length === 0 && <p class="je-quiet">There is no earlier run of this name.</p>}
      {runs && runs.length > 0 && (
        <ul aria-label="earlier runs">
          {runs.map(run => {
            const on = compared.some(one => one.job === run.job);
            return (
              <li key={run.job}>
                <label>
                  <input
                    type="checkbox"
                    checked={on || requests.busy === `run ${run.job}`}
                    disabled={requests.busy !== '' || (!on && compared.length >= TOGETHER - 1)}
                    onChange={event => void toggle(run.job, event.currentTarget.checked)}
                  />{' '}
                  job {run.job}{' '}
                  <span class="je-quiet">
                    {run.phase}, {day(run.submitted_at)} {clock(run.submitted_at)}
                  </span>
                </label>
              </li>
            );
          })}
        </ul>
      )}
    </details>
  );
}
