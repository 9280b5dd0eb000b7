// Small plots as SVG: they follow the theme, need no library and work without a network.
import { duration, figure } from '../format';
import type { SizePoint } from '../screens';

interface Point {
  x: number;
  y: number;
}

function path(points: Point[], width: number, height: number, low: number, high: number): string {
  const first = points[0].x;
  const span = points[points.length - 1].x - first || 1;
  const rise = high - low || 1;
  return points
    .map(({ x, y }, index) => {
      const px = ((x - first) / span) * width;
      const py = height - ((y - low) / rise) * height;
      return `${index ? 'L' : 'M'}${px.toFixed(1)},${py.toFixed(1)}`;
    })
    .join('');
}

/** A metric over steps. Points that are not finite are left out and said below. */
export function Curve(props: { name: string; points: [number, number | null][] }) {
  const finite: Point[] = props.points.flatMap(([x, y]) => (y === null ? [] : [{ x, y }]));
  const last = (props.points.length ? props.points[props.points.length - 1][1] : null) ?? NaN;
  const missing = props.points.length - finite.length;
  const low = Math.min(...finite.map(p => p.y));
  const high = Math.max(...finite.map(p => p.y));
  const label = `${props.name}, now ${figure(last)}`;
  return (
    <figure class="je-curve">
      <figcaption>
        <span>{props.name}</span>
        <strong>{figure(last)}</strong>
      </figcaption>
      {finite.length > 1 && (
        <svg viewBox="0 -2 200 54" preserveAspectRatio="none" role="img" aria-label={label}>
          <path d={path(finite, 200, 50, low, high)} vector-effect="non-scaling-stroke" />
        </svg>
      )}
      {finite.length > 1 && (
        <div class="je-range">
          <span>
            {figure(low)} – {figure(high)}
          </span>
          <span>step {figure(finite[finite.length - 1].x)}</span>
        </div>
      )}
      {missing > 0 && <div class="je-bad">{missing} not finite</div>}
    </figure>
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
            <title>{told(point, index ? points[index - 1].slots : 0)}</title>
          </rect>
        );
      })}
    </svg>
  );
}

/** A change of size in words: "4 → 2: makes room for job 7 of bob, 0.3 s pause". */
export function told(point: SizePoint, before: number): string {
  const change = before ? `${before} → ${point.slots}` : `${point.slots}`;
  const pause = point.pause_s > 0 ? `, ${duration(point.pause_s)} pause` : '';
  return `${change}${point.reason ? `: ${point.reason}` : ''}${pause}`;
}
