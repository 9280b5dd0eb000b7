// What each size of a job is worth: speed over workers, measured and predicted.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { figure, plural } from '../format';
import type { SizeSpeed, SpeedFit } from '../screens';
import { TOGETHER } from './metrics';
import { colour } from './Plot';

function words(size: SizeSpeed): string {
  return plural(size.workers, 'worker') + (size.servers ? ` and ${plural(size.servers, 'server')}` : '');
}

/** Speed over workers, a line for each number of parameter servers: predicted as lines, measured as points. */
function SpeedPlot({ fit }: { fit: SpeedFit }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current!;
    const servers = [...new Set(fit.sizes.map(size => size.servers))].slice(0, TOGETHER);
    const xs = [...new Set(fit.sizes.map(size => size.workers))].sort((a, b) => a - b);
    const column = (count: number, of: (size: SizeSpeed) => number | null) =>
      xs.map(x => fit.sizes.filter(size => size.workers === x && size.servers === count).map(of)[0] ?? null);
    const line = (index: number) => () => colour(element, `--je-plot-${index + 1}`);
    const behind = (count: number) => (count ? `, ${plural(count, 'server')}` : '');
    const value = (_: uPlot, y: number | null) => (y === null ? '–' : figure(y));
    const axis = { stroke: () => colour(element, '--je-text'), grid: { stroke: () => colour(element, '--je-line'), width: 0.5 }, ticks: { show: false } };
    const plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 120),
        height: 190,
        scales: { x: { time: false, range: (_, least, most) => [least - 0.2, most + 0.2] }, y: { range: (_, __, most) => [0, 1.1 * most] } },
        axes: [
          { ...axis, size: 28, label: 'workers', labelSize: 18, incrs: [1, 2, 4, 8, 16] },
          { ...axis, size: 62, label: 'samples/s', labelSize: 18, values: (_, ticks) => ticks.map(figure) }
        ],
        series: [
          { label: 'workers', value: (_, x) => (x === null ? '–' : `${x}`) },
          ...servers.flatMap((count, index) => [
            { label: `predicted${behind(count)}`, value, stroke: line(index), width: 1.5, dash: index ? [6, 2 + 2 * index] : undefined, spanGaps: true, points: { show: false } },
            { label: `measured${behind(count)}`, value, stroke: line(index), paths: () => null, points: { show: true, size: 8, fill: line(index) } }
          ])
        ],
        cursor: { y: false },
        legend: { markers: { stroke: (_, index) => `var(--je-plot-${Math.ceil(index / 2)})` } }
      },
      [xs, ...servers.flatMap(count => [column(count, size => size.predicted), column(count, size => size.measured)])],
      element
    );
    const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(element.clientWidth, 120), height: 190 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [JSON.stringify(fit)]);
  return <div class="je-plot" ref={box} role="img" aria-label="samples a second over the number of workers; the table below has the figures" />;
}

/** What the job's sizes are worth; drawn when somebody opens it. */
export function Speeds({ fit }: { fit: SpeedFit | null | undefined }) {
  const [open, setOpen] = useState(false);
  if (!fit) return null;
  const measured = fit.sizes.filter(size => size.measured !== null);
  return (
    <details class="je-usage" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>
        Speed by size: {measured.length} measured, predictions off by {(100 * fit.error).toFixed(0)} %
      </summary>
      {open && (
        <div class="je-plots" role="group" aria-label="speed by size">
          <figure class="je-curve">
            <SpeedPlot fit={fit} />
          </figure>
          <table class="je-speeds">
            <thead>
              <tr>
                <th scope="col">size</th>
                <th scope="col">measured</th>
                <th scope="col">predicted</th>
              </tr>
            </thead>
            <tbody>
              {fit.sizes.slice(0, 16).map(size => (
                <tr key={words(size)}>
                  <th scope="row">{words(size)}</th>
                  <td>{size.measured === null ? '–' : figure(size.measured)}</td>
                  <td>{figure(size.predicted)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}
