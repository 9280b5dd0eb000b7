// What is drawn of metrics, computed: which stand in one plot, where their points are, what happened to the job's size on the way. Pure.
import type { JobScreen, Series } from '../screens';

export type Axis = 'step' | 'epoch' | 'time';

const PART = '(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)';
const BEFORE = new RegExp(`^${PART}[_/. -]+`, 'i');
const BEHIND = new RegExp(`[_/. -]+${PART}$`, 'i');
/** As many colours and dashes are told apart; more metrics of one kind go into a further plot. */
export const TOGETHER = 4;

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
export function places(series: Series, axis: Axis): number[] | null {
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

/** The points that are drawn, in lines of "metric,step,seconds,epoch,value". */
export function csv(metrics: Series[]): string {
  const rows = metrics.flatMap(({ name, points, times, epochs }) =>
    points.map(([step, value], index) => [`"${name.replace(/"/g, '""')}"`, step, times?.[index] ?? '', epochs?.[index] ?? '', value].join())
  );
  return ['metric,step,seconds,epoch,value', ...rows, ''].join('\n');
}

/** A change of size or a death, on the axis. */
export interface Mark {
  at: number;
  /** Where its pause began; there is room for that on the axis of time alone. */
  from: number | null;
  text: string;
}

/** What happened to the job's size while the metrics were reported. */
export function marks(screen: Pick<JobScreen, 'sizes' | 'submitted_at'>, group: Series[], axis: Axis): Mark[] {
  return screen.sizes.slice(1).flatMap((point, index) => {
    const at = point.slots ? placeOfTime(point.at - screen.submitted_at, group, axis) : null;
    if (at === null) return [];
    const before = screen.sizes[index].slots;
    const from = axis === 'time' && point.pause_s > 0 ? at - point.pause_s : null;
    return [{ at, from, text: before === point.slots ? '✕' : `${before} → ${point.slots}` }];
  });
}

/** Where a time is on the axis, by the points of the longest metric; null before the first one and behind the last. */
function placeOfTime(seconds: number, group: Series[], axis: Axis): number | null {
  if (axis === 'time') return seconds;
  const series = group.reduce((a, b) => (b.points.length > a.points.length ? b : a));
  const index = series.times?.findIndex(time => time >= seconds) ?? -1;
  return index < 1 ? null : places(series, axis)?.[index] ?? null;
}
