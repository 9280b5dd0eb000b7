// Plots of a job: its metrics by uPlot, and the slots that it held, as SVG. Both follow the theme and work without a network.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { duration, figure, plural } from '../format';
import type { JobScreen, Series, SizePoint, SizeSpeed, SpeedFit } from '../screens';

type Axis = 'step' | 'epoch' | 'time';

interface Shown {
  axis: Axis;
  log: boolean;
  /** Weight of what came before, 0 to 1. */
  smoothing: number;
}

const LABELS: Record<Axis, string> = { step: 'step', epoch: 'epoch', time: 'seconds since it was submitted' };
const PART = '(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)';
const BEFORE = new RegExp(`^${PART}[_/. -]+`, 'i');
const BEHIND = new RegExp(`[_/. -]+${PART}$`, 'i');
const OVER_TIME: Shown = { axis: 'time', log: false, smoothing: 0 };
/** As many colours and dashes are told apart; more metrics of one kind go into a further plot. */
const TOGETHER = 4;
/** How often a plot looks whether the theme is another. */
const THEME_MS = 500;

/** Metrics that are one quantity, of training and of validation, stand in one plot. */
export function groups(metrics: Series[]): Series[][] {
  const found = new Map<string, Series[][]>();
  for (const series of metrics) {
    const name = series.name.replace(BEFORE, '').replace(BEHIND, '');
    const plots = found.get(name) ?? [[]];
    if (plots[plots.length - 1].length === TOGETHER) plots.push([]);
    plots[plots.length - 1].push(series);
    found.set(name, plots);
  }
  return [...found.values()].flat();
}

/** Where each point stands on the axis; null where that is not known. */
function places(series: Series, axis: Axis): number[] | null {
  if (axis === 'step') return series.points.map(point => point[0]);
  const known = axis === 'time' ? series.times : series.epochs;
  return known?.length === series.points.length ? known : null;
}

/** A mean in which each value before counts less (as in TensorBoard), true to the first ones too. */
export function smooth(values: number[], weight: number): number[] {
  let [sum, counts] = [0, 0];
  return values.map(value => {
    [sum, counts] = [weight * sum + (1 - weight) * value, weight * counts + (1 - weight)];
    return sum / counts;
  });
}

function columns(group: Series[], { axis, log, smoothing }: Shown): uPlot.AlignedData {
  const tables = group.map(series => {
    const xs = places(series, axis) ?? [];
    const ys = smooth(series.points.map(point => point[1]), smoothing);
    const last = new Map<number, number | null>(); // of several in one epoch the last
    xs.forEach((x, index) => last.set(x, log && ys[index] <= 0 ? null : ys[index]));
    const sorted = [...last].sort((a, b) => a[0] - b[0]);
    return [sorted.map(point => point[0]), sorted.map(point => point[1])] as uPlot.AlignedData;
  });
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

/** Where a time is on the axis, by the points of the longest metric; null before the first one and behind the last. */
function placeOfTime(seconds: number, group: Series[], axis: Axis): number | null {
  if (axis === 'time') return seconds;
  const series = group.reduce((a, b) => (b.points.length > a.points.length ? b : a));
  const index = series.times?.findIndex(time => time >= seconds) ?? -1;
  return index < 1 ? null : places(series, axis)?.[index] ?? null;
}

function colour(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(name).trim() || '#808080';
}

/** What happened to the job's size, as lines in a plot. */
function marks(plot: uPlot, group: Series[], axis: Axis, screen: JobScreen): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour(plot.root, '--je-quiet');
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  screen.sizes.slice(1).forEach((point, index) => {
    if (!point.slots) return;
    const at = placeOfTime(point.at - screen.submitted_at, group, axis);
    if (at === null) return;
    const x = plot.valToPos(at, 'x', true);
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    if (axis === 'time' && point.pause_s > 0) {
      const begun = plot.valToPos(at - point.pause_s, 'x', true);
      ctx.globalAlpha = 0.25;
      ctx.fillRect(begun, bbox.top, x - begun, bbox.height);
      ctx.globalAlpha = 1;
    }
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const before = screen.sizes[index].slots;
    ctx.textAlign = 'left';
    ctx.fillText(before === point.slots ? '✕' : `${before} → ${point.slots}`, x + 3 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
  });
  ctx.restore();
}

/** Of a log scale's lines those at powers of ten, where there are two of them. */
function decades(_: uPlot, splits: number[]): (number | null)[] {
  const powers = splits.map(split => (Number.isInteger(Math.round(Math.log10(split) * 1e6) / 1e6) ? split : null));
  return powers.filter(power => power !== null).length > 1 ? powers : splits;
}

function Plot(props: { group: Series[]; shown: Shown; screen: JobScreen }) {
  const { group, shown } = props;
  const box = useRef<HTMLDivElement>(null);
  const made = useRef<uPlot | null>(null);
  const latest = useRef(props);
  const zoomed = useRef(false);
  latest.current = props;
  const names = group.map(series => series.name);
  useEffect(() => {
    const element = box.current!;
    const line = (index: number) => () => colour(element, `--je-plot-${index + 1}`);
    const axis = { stroke: () => colour(element, '--je-text'), grid: { stroke: () => colour(element, '--je-line'), width: 0.5 }, ticks: { show: false }, size: 28 };
    const value = (_: uPlot, y: number | null) => (y === null ? '–' : figure(y));
    zoomed.current = false;
    const plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 120),
        height: 190,
        scales: { x: { time: false }, y: { distr: shown.log ? 3 : 1 } },
        axes: [
          { ...axis, label: LABELS[shown.axis], labelSize: 18, values: (_, ticks) => ticks.map(tick => (Number.isInteger(tick) ? tick.toLocaleString('en-US') : figure(tick))) },
          { ...axis, grid: { ...axis.grid, filter: shown.log ? decades : (_: uPlot, splits: number[]) => splits }, size: 62, values: (_, ticks) => ticks.map(tick => (tick === null ? '' : figure(tick))) }
        ],
        series: [
          { label: shown.axis, value },
          ...names.map((label, index) => ({ label, value, stroke: line(index), width: 1.5, dash: index ? [6, 2 + 2 * index] : undefined, spanGaps: true, points: { show: false } }))
        ],
        cursor: { y: false },
        legend: { markers: { stroke: (_, index) => `var(--je-plot-${index})` } },
        hooks: {
          draw: [plot => marks(plot, latest.current.group, shown.axis, latest.current.screen)],
          setSelect: [() => (zoomed.current = true)]
        }
      },
      columns(group, shown),
      element
    );
    const whole = () => (zoomed.current = false);
    plot.over.addEventListener('dblclick', whole);
    const watch = new ResizeObserver(() => {
      const width = Math.max(element.clientWidth, 120);
      if (width !== plot.width) plot.setSize({ width, height: 190 });
    });
    watch.observe(element);
    let painted = colour(element, '--je-text');
    const look = setInterval(() => {
      const now = colour(element, '--je-text');
      if (now !== painted) plot.redraw(); // another theme: a canvas does not follow it
      painted = now;
    }, THEME_MS);
    made.current = plot;
    return () => {
      clearInterval(look);
      watch.disconnect();
      plot.destroy();
    };
  }, [names.join('\n'), shown.axis, shown.log]);
  useEffect(() => {
    made.current?.setData(columns(group, shown), !zoomed.current);
    if (zoomed.current) made.current?.redraw();
  }, [group.map(series => `${series.points.length} ${series.points[series.points.length - 1]}`).join(), shown]);
  const png = () =>
    made.current!.ctx.canvas.toBlob(blob => blob && download(blob, `job-${props.screen.job}-${names[0].replace(/[^\w.-]+/g, '-')}.png`));
  return (
    <figure class="je-curve">
      <figcaption>
        {group.map(series => (
          <span key={series.name}>
            {series.name} <strong>{series.last}</strong>
          </span>
        ))}
        <button class="je-link" aria-label={`Save the plot of ${names.join(', ')} as PNG`} onClick={png}>
          PNG
        </button>
      </figcaption>
      <div class="je-plot" ref={box} role="img" aria-label={`${group.map(series => `${series.name}, now ${series.last}`).join('; ')}, over ${LABELS[shown.axis]}`} />
    </figure>
  );
}

function download(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The points that are drawn, in lines of "metric,step,seconds,epoch,value". */
export function csv(metrics: Series[]): string {
  const rows = metrics.flatMap(({ name, points, times, epochs }) =>
    points.map(([step, value], index) => [`"${name.replace(/"/g, '""')}"`, step, times?.[index] ?? '', epochs?.[index] ?? '', value].join())
  );
  return ['metric,step,seconds,epoch,value', ...rows, ''].join('\n');
}

export function Plots({ screen }: { screen: JobScreen }) {
  const [shown, setShown] = useState<Shown>({ axis: 'step', log: false, smoothing: 0 });
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
        </div>
      )}
      {groups(drawn.filter(series => places(series, shown.axis))).map(group => (
        <Plot key={group[0].name} group={group} shown={shown} screen={screen} />
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

/** How many slots were held from when to when; `at` ascending, the last one lasts until `end`. */
export function Band(props: { points: SizePoint[]; end: number; most: number }) {
  const { points, end } = props;
  if (!points.length) return null;
  const begin = points[0].at;
  const span = Math.max(end - begin, 1e-9);
  const most = Math.max(props.most, ...points.map(p => p.slots), 1);
  const label = `slots over time: ${points.map(p => p.slots).join(', ')}`;
  return (
    <svg class="je-band" viewBox="0 0 200 24" preserveAspectRatio="none" role="img" aria-label={label}>
      {points.map((point, index) => {
        const until = index + 1 < points.length ? points[index + 1].at : end;
        const height = (point.slots / most) * 24;
        const x = ((point.at - begin) / span) * 200;
        return (
          <rect x={x} y={24 - height} width={Math.max(((until - point.at) / span) * 200, 0)} height={height}>
            <title>{changeOfSize(point, index ? points[index - 1].slots : 0)}</title>
          </rect>
        );
      })}
    </svg>
  );
}

/** A change of size in words: "4 → 2: makes room for job 7 of bob, 0.3 s pause"; else what happened. */
export function changeOfSize(point: SizePoint, before: number): string {
  if (point.slots === before && point.reason) return point.reason;
  const change = before ? `${before} → ${point.slots}` : `started on ${plural(point.slots, 'slot')}`;
  const pause = point.pause_s > 0 ? `, ${duration(point.pause_s)} pause` : '';
  return `${change}${point.reason ? `: ${point.reason}` : ''}${pause}`;
}
