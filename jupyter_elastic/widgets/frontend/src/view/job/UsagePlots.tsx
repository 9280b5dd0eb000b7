// Plots of the use of cores, memory and GPUs over time.
import { useState } from 'preact/hooks';
import type { JobScreen } from '../../screens';
import { Plot } from './Plot';
import type { PlotSettings } from './drawing';
import { TOGETHER } from './metrics';

const OVER_TIME: PlotSettings = { axis: 'time', log: false, smoothing: 0 };

/** The plots are drawn when a person opens them. */
export function UsagePlots({ screen }: { screen: JobScreen }) {
  const [open, setOpen] = useState(false);
  const usage = screen.usage ?? [];
  if (!usage.length) return null;
  const timed = usage.map(series => ({ ...series, times: series.points.map(point => point[0]) }));
  const quantities = [...new Set(timed.map(series => series.name.split(':')[0]))];
  const plots = quantities.flatMap(quantity => {
    const all = timed.filter(series => series.name.startsWith(`${quantity}:`));
    return Array.from({ length: Math.ceil(all.length / TOGETHER) }, (_, part) =>
      all.slice(part * TOGETHER, (part + 1) * TOGETHER)
    );
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
