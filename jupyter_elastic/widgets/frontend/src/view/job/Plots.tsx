// The plots of a job's metrics, with axis, scale and smoothing to choose.
import { useState } from 'preact/hooks';
import type { EarlierActions } from '../../actions';
import { download } from '../../format';
import type { JobScreen } from '../../screens';
import { EarlierRuns } from './EarlierRuns';
import { Plot } from './Plot';
import type { ComparedRun, PlotSettings } from './drawing';
import { type Axis, csv, groups, places } from './metrics';

export function Plots({ screen, earlier }: { screen: JobScreen; earlier?: EarlierActions }) {
  const [shown, setShown] = useState<PlotSettings>({ axis: 'step', log: false, smoothing: 0 });
  const [compared, setCompared] = useState<ComparedRun[]>([]);
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
            <select
              value={shown.axis}
              onChange={event => setShown({ ...shown, axis: event.currentTarget.value as Axis })}
            >
              {axes.map(axis => (
                <option key={axis}>{axis}</option>
              ))}
            </select>
          </label>
          <label>
            <input
              type="checkbox"
              checked={shown.log}
              onChange={event => setShown({ ...shown, log: event.currentTarget.checked })}
            />{' '}
            log scale
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
