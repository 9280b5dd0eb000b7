// Plots of a job: its metrics with what one can do to them, and what its workers use.
import { useState } from 'preact/hooks';
import { clock, day, download } from '../format';
import type { JobScreen, EarlierRun, Series } from '../screens';
import { csv, groups, places, TOGETHER, type Axis } from './metrics';
import { Plot, type Compared, type Shown } from './Plot';
import { Problem, useRequests } from './requests';

/** How earlier runs of the same name are asked for. */
export interface Earlier {
  runs(): Promise<EarlierRun[]>;
  metrics(job: number): Promise<Series[]>;
}

/** Earlier runs of this name, to be drawn beside this one; they are asked for when somebody looks for them. */
function EarlierRuns(props: { actions: Earlier; compared: Compared[]; change: (compared: Compared[]) => void }) {
  const { actions, compared, change } = props;
  const [runs, setRuns] = useState<EarlierRun[] | null>(null);
  const requests = useRequests();
  const open = async (event: Event) => {
    if ((event.currentTarget as HTMLDetailsElement).open) await requests.run('runs', async () => setRuns(await actions.runs()));
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
                  <input type="checkbox" checked={on || requests.busy === `run ${run.job}`} disabled={requests.busy !== '' || (!on && compared.length >= TOGETHER - 1)} onChange={event => void toggle(run.job, event.currentTarget.checked)} />{' '}
                  job {run.job} <span class="je-quiet">{run.phase}, {day(run.submitted_at)} {clock(run.submitted_at)}</span>
                </label>
              </li>
            );
          })}
        </ul>
      )}
    </details>
  );
}

const NONE: Compared[] = [];

export function Plots({ screen, earlier }: { screen: JobScreen; earlier?: Earlier }) {
  const [shown, setShown] = useState<Shown>({ axis: 'step', log: false, smoothing: 0 });
  const [compared, setCompared] = useState(NONE);
  const drawn = screen.metrics.filter(series => series.points.length > 1);
  const others = screen.metrics.filter(series => series.points.length <= 1);
  const axes = (['step', 'epoch', 'time'] as const).filter(axis => drawn.some(series => places(series, axis)));
  const save = () => download(new Blob([csv(screen.metrics)], { type: 'text/csv' }), `job-${screen.job}.csv`);
  return (
    <div class="je-plots" role="group" aria-label="metrics">
      {drawn.length > 0 && (
        <div class="je-plot-tools" data-lm-suppress-shortcuts="true">
          <label>
            over{' '}
            <select value={shown.axis} onChange={event => setShown({ ...shown, axis: event.currentTarget.value as Axis })}>
              {axes.map(axis => (
                <option key={axis}>{axis}</option>
              ))}
            </select>
          </label>
          <label>
            <input type="checkbox" checked={shown.log} onChange={event => setShown({ ...shown, log: event.currentTarget.checked })} /> log scale
          </label>
          <label>
            smoothing{' '}
            <input
              type="range"
              min={0}
              max={0.99}
              step={0.01}
              value={shown.smoothing}
              onInput={event => setShown({ ...shown, smoothing: Number(event.currentTarget.value) })}
            />
          </label>
          <button onClick={save}>Save as CSV</button>
          {earlier && <EarlierRuns actions={earlier} compared={compared} change={setCompared} />}
        </div>
      )}
      {groups(drawn.filter(series => places(series, shown.axis))).map(group => (
        <Plot key={group[0].name} group={group} shown={shown} screen={screen} compared={compared} />
      ))}
      {others.map(series => (
        <figure class="je-curve" key={series.name}>
          <figcaption>
            <span>
              {series.name} <strong>{series.last}</strong>
            </span>
          </figcaption>
        </figure>
      ))}
    </div>
  );
}

const OVER_TIME: Shown = { axis: 'time', log: false, smoothing: 0 };

/** What the workers and GPUs used over time; drawn when somebody opens it. */
export function UsagePlots({ screen }: { screen: JobScreen }) {
  const [open, setOpen] = useState(false);
  const usage = screen.usage ?? [];
  if (!usage.length) return null;
  const timed = usage.map(series => ({ ...series, times: series.points.map(point => point[0]) }));
  const quantities = [...new Set(timed.map(series => series.name.split(':')[0]))];
  const plots = quantities.flatMap(quantity => {
    const all = timed.filter(series => series.name.startsWith(`${quantity}:`));
    return Array.from({ length: Math.ceil(all.length / TOGETHER) }, (_, part) => all.slice(part * TOGETHER, (part + 1) * TOGETHER));
  });
  return (
    <details class="je-usage" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>Resource use over time</summary>
      {open && (
        <div class="je-plots" role="group" aria-label="resource use over time">
          {plots.map(group => (
            <Plot key={group[0].name} group={group} shown={OVER_TIME} screen={screen} />
          ))}
        </div>
      )}
    </details>
  );
}
