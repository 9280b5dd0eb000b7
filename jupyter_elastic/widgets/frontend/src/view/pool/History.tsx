// The slots that users held over time.
import { type Colour, duration } from '../../format';
import type { HistoryPoint } from '../../screens';

export function History({ points, now, colour }: { points: HistoryPoint[]; now: number; colour: Colour }) {
  if (!points.length) return null;
  const begin = points[0].at;
  const span = Math.max(now - begin, 1);
  const capacity = Math.max(...points.map(p => p.capacity), 1);
  const owners = [...new Set(points.flatMap(p => Object.keys(p.leased)))].sort();
  return (
    <>
      <svg
        class="je-history"
        viewBox="0 0 300 60"
        preserveAspectRatio="none"
        role="img"
        aria-label="slots leased over time, by user"
      >
        {points.map((point, index) => {
          const until = index + 1 < points.length ? points[index + 1].at : now;
          const x = ((point.at - begin) / span) * 300;
          const width = ((until - point.at) / span) * 300;
          let y = 60;
          return owners.map(owner => {
            const height = ((point.leased[owner] ?? 0) / capacity) * 60;
            y -= height;
            return height > 0 && <rect key={owner} x={x} y={y} width={width} height={height} style={colour(owner)} />;
          });
        })}
      </svg>
      <div class="je-range">
        <span>{duration(span)} ago</span>
        <span>now</span>
      </div>
    </>
  );
}
