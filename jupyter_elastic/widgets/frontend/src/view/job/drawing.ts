// The parts that all plots of a job share: colours, axes, and the data and marks that uPlot draws.
import uPlot from 'uplot';
import { figure } from '../../format';
import type { Series } from '../../screens';
import { type Axis, type Mark, places, smooth } from './metrics';

/** The choices of a person about plots. */
export interface PlotSettings {
  axis: Axis;
  log: boolean;
  /** Weight of the points before, 0 to 1. */
  smoothing: number;
}

/** An earlier run that is drawn beside this one. */
export interface ComparedRun {
  job: number;
  metrics: Series[];
}

/** Labels of the axes. */
export const LABELS: Record<Axis, string> = { step: 'step', epoch: 'epoch', time: 'time since it was submitted' };

/** Return the value of a CSS variable of the theme. */
export function colour(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(name).trim() || '#808080';
}

/** Height of a plot, in pixels. */
const HEIGHT = 190;

/** Return the size of a plot that fills an element. */
export function sizeIn(element: Element): { width: number; height: number } {
  return { width: Math.max(element.clientWidth, 120), height: HEIGHT };
}

/** Keep a plot as wide as its element. */
export function keepWidth(plot: uPlot, element: Element): ResizeObserver {
  const observer = new ResizeObserver(() => sizeIn(element).width !== plot.width && plot.setSize(sizeIn(element)));
  observer.observe(element);
  return observer;
}

/** Return the style of both axes, in the theme's colours. */
export function axisIn(element: Element): { stroke: () => string; grid: uPlot.Axis.Grid; ticks: uPlot.Axis.Ticks } {
  return {
    stroke: () => colour(element, '--je-text'),
    grid: { stroke: () => colour(element, '--je-line'), width: 0.5 },
    ticks: { show: false }
  };
}

/** Return a figure for the legend. */
export function legendFigure(_: uPlot, value: number | null): string {
  return value === null ? '–' : figure(value);
}

/** Return the points in uPlot's form: a column of positions, and one of values for each series. */
export function columns(group: Series[], { axis, log, smoothing }: PlotSettings): uPlot.AlignedData {
  const tables = group.map(series => {
    const xs = places(series, axis) ?? [];
    const ys = smooth(
      series.points.map(point => point[1]),
      smoothing
    );
    const last = new Map<number, number | null>(); // the last of several points in an epoch
    xs.forEach((x, index) => last.set(x, log && ys[index] <= 0 ? null : ys[index]));
    const sorted = [...last].sort((a, b) => a[0] - b[0]);
    return [sorted.map(point => point[0]), sorted.map(point => point[1])] as uPlot.AlignedData;
  });
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

/** Draw the changes of the job's size as vertical lines. */
export function drawMarks(plot: uPlot, found: Mark[]): void {
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

/** Choose the lines of a log scale: powers of ten, or 1, 2 and 5 where there are fewer than two powers. */
export function decades(_: uPlot, splits: number[]): (number | null)[] {
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

/** Return the lines of a plot: this job's metrics, and the same ones of each earlier run. */
export function lines(
  group: Series[],
  compared: ComparedRun[]
): { series: Series; label: string; colour: number; run: number }[] {
  const own = group.map((series, index) => ({ series, label: series.name, colour: index, run: -1 }));
  const before = compared.flatMap(({ job, metrics }, run) =>
    group.flatMap((series, index) => {
      const same = metrics.find(other => other.name === series.name && other.points.length > 1);
      return same ? [{ series: same, label: `${series.name}, job ${job}`, colour: index, run }] : [];
    })
  );
  return [...own, ...before];
}
