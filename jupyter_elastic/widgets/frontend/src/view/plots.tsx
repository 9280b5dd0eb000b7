// Small plots as SVG: they follow the theme, need no library and work without a network.
import { duration, figure } from '../format';
import type { Series, SizePoint } from '../screens';

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

/** A metric over steps. */
export function Curve({ series }: { series: Series }) {
  const points: Point[] = series.points.map(([x, y]) => ({ x, y }));
  const low = Math.min(...points.map(p => p.y));
  const high = Math.max(...points.map(p => p.y));
  return (
    <figure class="je-curve">
      <figcaption>
        <span>{series.name}</span>
        <strong>{series.last}</strong>
      </figcaption>
      {points.length > 1 && (
        <>
          <svg viewBox="0 -2 200 54" preserveAspectRatio="none" role="img" aria-label={`${series.name}, now ${series.last}`}>
            <path d={path(points, 200, 50, low, high)} vector-effect="non-scaling-stroke" />
          </svg>
          <div class="je-range">
            <span>
              {figure(low)} – {figure(high)}
            </span>
            <span>{figure(points[points.length - 1].x)}</span>
          </div>
        </>
      )}
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
  const change = before ? `${before} → ${point.slots}` : `${point.slots}`;
  const pause = point.pause_s > 0 ? `, ${duration(point.pause_s)} pause` : '';
  return `${change}${point.reason ? `: ${point.reason}` : ''}${pause}`;
}
