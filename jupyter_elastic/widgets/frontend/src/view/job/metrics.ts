// Computes plots of metrics: groups in one plot, positions of points, changes of the job's size. Pure.
import type { JobScreen, Series } from '../../screens';

export type Axis = 'step' | 'epoch' | 'time';

const PART = '(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)';
const BEFORE = new RegExp(`^${PART}[_/. -]+`, 'i');
const BEHIND = new RegExp(`[_/. -]+${PART}$`, 'i');

/** Maximum number of lines in a plot, whose colours and dashes a person can tell apart. */
export const TOGETHER = 4;

/** Group the metrics by plot: a quantity of training and of validation stands in one. */
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

/** Return the position of each point on the axis; null where they are not known. */
export function places(series: Series, axis: Axis): number[] | null {
  if (axis === 'step') return series.points.map(point => point[0]);
  const known = axis === 'time' ? series.times : series.epochs;
  return known?.length === series.points.length ? known : null;
}

/** Return exponential moving averages without bias at the beginning, as in TensorBoard. */
export function smooth(values: number[], weight: number): number[] {
  let [sum, counts] = [0, 0];
  return values.map(value => {
    [sum, counts] = [weight * sum + (1 - weight) * value, weight * counts + (1 - weight)];
    return sum / counts;
  });
}

/** Return the points as lines of "metric,step,seconds,epoch,value". */
export function csv(metrics: Series[]): string {
  const rows = metrics.flatMap(({ name, points, times, epochs }) =>
    points.map(([step, value], index) =>
      [`"${name.replace(/"/g, '""')}"`, step, times?.[index] ?? '', epochs?.[index] ?? '', value].join()
    )
  );
  return ['metric,step,seconds,epoch,value', ...rows, ''].join('\n');
}

/** The position of a change of size, or of a worker's death, on the axis. */
export interface Mark {
  at: number;
  /** Begin of its pause; null on other axes than that of time. */
  from: number | null;
  text: string;
}

/** Return the changes of the job's size while the metrics were reported. */
export function marks(screen: Pick<JobScreen, 'sizes' | 'submitted_at'>, group: Series[], axis: Axis): Mark[] {
  return screen.sizes.slice(1).flatMap((point, index) => {
    const at = point.slots ? placeOfTime(point.at - screen.submitted_at, group, axis) : null;
    if (at === null) return [];
    const before = screen.sizes[index].slots;
    const from = axis === 'time' && point.pause_s > 0 ? at - point.pause_s : null;
    return [{ at, from, text: before === point.slots ? '✕' : `${before} → ${point.slots}` }];
  });
}

/**
 * Return the position of a time on the axis, by the points of the longest metric; null before the first point and
 * behind the last.
 */
function placeOfTime(seconds: number, group: Series[], axis: Axis): number | null {
  if (axis === 'time') return seconds;
  const series = group.reduce((a, b) => (b.points.length > a.points.length ? b : a));
  const index = series.times?.findIndex(time => time >= seconds) ?? -1;
  return index < 1 ? null : (places(series, axis)?.[index] ?? null);
}
