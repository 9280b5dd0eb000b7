// One plot of a job, drawn by uPlot: metrics over steps, epochs or time, with what happened to the job's size. Follows the theme.
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { download, figure, sinceBegin } from '../format';
import type { JobScreen, Series } from '../screens';
import { marks, places, smooth, type Axis, type Mark } from './metrics';

export interface Shown {
  axis: Axis;
  log: boolean;
  /** Weight of what came before, 0 to 1. */
  smoothing: number;
}

/** An earlier run that is drawn beside this one. */
export interface Compared {
  job: number;
  metrics: Series[];
}

const LABELS: Record<Axis, string> = { step: 'step', epoch: 'epoch', time: 'time since it was submitted' };
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 604800];
/** How often a plot looks whether the theme is another. */
const THEME_MS = 500;
/** New points are drawn so often: a canvas costs more than all the rest of a view. What a person changes is drawn at once. */
const REPAINT_MS = 1000;
/** How the lines of earlier runs are dashed. */
const DASHES = [[2, 3], [8, 3, 2, 3], [1, 5]];

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

export function colour(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(name).trim() || '#808080';
}

/** What happened to the job's size, as lines in a plot. */
function drawMarks(plot: uPlot, found: Mark[]): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour(plot.root, '--je-quiet');
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  ctx.textAlign = 'left';
  for (const { at, from, text } of found) {
    const x = plot.valToPos(at, 'x', true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    if (from !== null) {
      const begun = plot.valToPos(from, 'x', true);
      ctx.globalAlpha = 0.25;
      ctx.fillRect(begun, bbox.top, x - begun, bbox.height);
      ctx.globalAlpha = 1;
    }
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(text, x + 3 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
  }
  ctx.restore();
}

/** Of a log scale's lines so many that they can be told apart: powers of ten, or 1, 2 and 5 where there is hardly one. */
function decades(_: uPlot, splits: number[]): (number | null)[] {
  const exponent = (split: number) => Math.round(Math.log10(split) * 1e6) / 1e6;
  const powers = splits.filter(split => Number.isInteger(exponent(split)));
  const every = Math.ceil(powers.length / 8);
  const shown = (split: number) => {
    const power = exponent(split);
    if (powers.length > 1) return Number.isInteger(power) && power % every === 0;
    return [1, 2, 5].includes(Math.round(split / 10 ** Math.floor(power)));
  };
  return splits.map(split => (shown(split) ? split : null));
}

/** What is drawn: this job's metrics, and the same ones of each earlier run. */
function lines(group: Series[], compared: Compared[]): { series: Series; label: string; colour: number; run: number }[] {
  const own = group.map((series, index) => ({ series, label: series.name, colour: index, run: -1 }));
  const before = compared.flatMap(({ job, metrics }, run) =>
    group.flatMap((series, index) => {
      const same = metrics.find(other => other.name === series.name && other.points.length > 1);
      return same ? [{ series: same, label: `${series.name}, job ${job}`, colour: index, run }] : [];
    })
  );
  return [...own, ...before];
}

const NONE: Compared[] = [];

export function Plot(props: { group: Series[]; shown: Shown; screen: JobScreen; compared?: Compared[] }) {
  const { group, shown } = props;
  const drawn = lines(group, props.compared ?? NONE);
  const box = useRef<HTMLDivElement>(null);
  const made = useRef<uPlot | null>(null);
  const latest = useRef(props);
  const zoomed = useRef(false);
  latest.current = props;
  const names = group.map(series => series.name);
  const labels = drawn.map(line => line.label);
  useEffect(() => {
    const element = box.current!;
    const stroke = (index: number) => () => colour(element, `--je-plot-${index + 1}`);
    const time = shown.axis === 'time';
    const axis = { stroke: () => colour(element, '--je-text'), grid: { stroke: () => colour(element, '--je-line'), width: 0.5 }, ticks: { show: false }, size: 28 };
    const value = (_: uPlot, y: number | null) => (y === null ? '–' : figure(y));
    zoomed.current = false;
    const plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 120),
        height: 190,
        scales: { x: { time: false }, y: { distr: shown.log ? 3 : 1 } },
        padding: [14, 12, 0, 0], // above it stands what happened to the size
        axes: [
          { ...axis, label: LABELS[shown.axis], labelSize: 18, incrs: time ? TIME_STEPS : undefined, values: (_, ticks) => ticks.map(tick => (time ? sinceBegin(tick) : Number.isInteger(tick) ? tick.toLocaleString('en-US') : figure(tick))) },
          { ...axis, grid: { ...axis.grid, filter: shown.log ? decades : (_: uPlot, splits: number[]) => splits }, size: 62, values: (_, ticks) => ticks.map(tick => (tick === null ? '' : figure(tick))) }
        ],
        series: [
          { label: shown.axis, value: time ? (_: uPlot, x: number | null) => (x === null ? '–' : sinceBegin(x)) : value },
          ...drawn.map(({ label, colour, run }) => ({
            label,
            value,
            stroke: stroke(colour),
            width: run < 0 ? 1.5 : 1,
            alpha: run < 0 ? 1 : 0.75,
            dash: run < 0 ? (colour ? [6, 2 + 2 * colour] : undefined) : DASHES[run % DASHES.length],
            spanGaps: true,
            points: { show: false }
          }))
        ],
        cursor: { y: false },
        legend: { markers: { stroke: (_, index) => `var(--je-plot-${(drawn[index - 1]?.colour ?? 0) + 1})`, dash: (_, index) => ((drawn[index - 1]?.run ?? -1) < 0 ? 'solid' : 'dotted') } },
        hooks: {
          draw: [plot => drawMarks(plot, marks(latest.current.screen, latest.current.group, shown.axis))],
          setSelect: [() => (zoomed.current = true)]
        }
      },
      columns(drawn.map(line => line.series), shown),
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
  }, [labels.join('\n'), shown.axis, shown.log]);
  const last = useRef({ at: -Infinity, shown });
  useLayoutEffect(() => {
    const paint = () => {
      last.current = { at: performance.now(), shown };
      made.current?.setData(columns(drawn.map(line => line.series), shown), !zoomed.current);
      if (zoomed.current) made.current?.redraw();
    };
    const wait = last.current.shown === shown ? last.current.at + REPAINT_MS - performance.now() : 0;
    if (wait <= 0) return paint();
    const timer = setTimeout(paint, wait);
    return () => clearTimeout(timer);
  }, [drawn.map(({ series }) => `${series.points.length} ${series.points[series.points.length - 1]}`).join(), shown]);
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

