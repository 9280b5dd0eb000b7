// The slots that each user has used, beside the fair share.
import type { FairRow } from '../../screens';
import { PALETTE } from '../../timeline';

interface FairnessProps {
  rows: FairRow[];
  place: Map<string, number>;
  begin: number;
  end: number;
  until: number;
  width: number;
  left: number;
}

/** An area shows the slots that a user has used, a line the fair share; the axis of time is that of the chart above. */
export function Fairness({ rows, place, begin, end, until, width, left }: FairnessProps) {
  if (!rows.length) return null;
  const [high, gap] = [34, 18];
  const most = Math.max(1, ...rows.flatMap(row => row.points.flatMap(([, used, share]) => [used, share])));
  const x = (at: number) => left + (Math.min(Math.max(at, begin), end) - begin) * ((width - left) / (end - begin));
  const y = (slots: number) => high - (slots / most) * high;
  const steps = (row: FairRow, pick: 1 | 2) =>
    row.points
      .map(
        (point, index) =>
          `${index ? 'L' : 'M'}${x(point[0]).toFixed(1)} ${y(point[pick]).toFixed(1)}H${x(row.points[index + 1]?.[0] ?? until).toFixed(1)}`
      )
      .join('');
  /** Return the mean over the time in which the user used slots or had a share. */
  const mean = (row: FairRow, pick: 1 | 2) => {
    const there = row.points.filter(point => point[1] || point[2]);
    return there.reduce((sum, point) => sum + point[pick], 0) / Math.max(1, there.length);
  };
  return (
    <section aria-label="fairness">
      <h3>
        Slots used against the fair share <span class="je-quiet">(area and dashed line)</span>
      </h3>
      <svg
        class="je-chart"
        role="img"
        width={width}
        height={rows.length * (high + gap)}
        aria-label={rows
          .map(row => `${row.user}: ${mean(row, 1).toFixed(1)} slots used, fair share ${mean(row, 2).toFixed(1)}`)
          .join('; ')}
      >
        {rows.map((row, index) => (
          <g key={row.user} transform={`translate(0 ${index * (high + gap) + gap})`}>
            <text class="je-label je-strong" x={left} y={-5}>
              {row.user}: {mean(row, 1).toFixed(1)} used, fair share {mean(row, 2).toFixed(1)}
            </text>
            <text class="je-label" x={0} y={10}>
              {most.toFixed(most < 10 ? 1 : 0)}
            </text>
            <path
              d={`${steps(row, 1)}V${high}H${x(row.points[0][0])}Z`}
              fill={PALETTE[place.get(row.user) ?? 0]}
              fill-opacity="0.75"
            />
            <path class="je-share" d={steps(row, 2)} />
            <line class="je-grid" x1={left} x2={width} y1={high} y2={high} />
          </g>
        ))}
      </svg>
    </section>
  );
}
