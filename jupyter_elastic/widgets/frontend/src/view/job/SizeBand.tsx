// The slots that a job held over time, as a band with a scale, a time axis and a legend.
import { clock, duration } from '../../format';
import type { SizePoint } from '../../screens';
import { changeOfSize } from './sizes';

const HIGH = 40;
const WIDE = 600;

/** `points` ascend by `at`, and the last one lasts until `end`; `most` is the job's maximum. */
export function SizeBand(props: { points: SizePoint[]; end: number; most: number; unit: string }) {
  const { points, end, unit } = props;
  if (!points.length) return null;
  const begin = points[0].at;
  const span = Math.max(end - begin, 1e-9);
  const top = Math.max(props.most, ...points.map(p => p.slots), 1);
  const place = (at: number) => ((at - begin) / span) * WIDE;
  const paused = points.some(point => point.pause_s > 0);
  const died = points.some((point, index) => index > 0 && point.slots > 0 && points[index - 1].slots === point.slots);
  const label = `${unit}s over time, from ${clock(begin)} to ${clock(end)}: ${points.map(p => p.slots).join(', ')}`;
  return (
    <figure class="je-sizeband">
      <div class="je-sizeband-scale" aria-hidden="true">
        <span>{top}</span>
        <span>0</span>
      </div>
      <svg class="je-band" viewBox={`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {points.map((point, index) => {
          const until = index + 1 < points.length ? points[index + 1].at : end;
          const height = (point.slots / top) * HIGH;
          return (
            // More slots have a stronger colour: sizes differ without the scale too.
            <rect
              x={place(point.at)}
              y={HIGH - height}
              width={Math.max(place(until) - place(point.at), 0)}
              height={height}
              style={`opacity: ${0.35 + (0.6 * point.slots) / top}`}
            >
              <title>{`${clock(point.at)} ${changeOfSize(point, index ? points[index - 1].slots : 0)}`}</title>
            </rect>
          );
        })}
        {points.map((point, index) => {
          const x = place(point.at);
          if (index && point.slots && points[index - 1].slots === point.slots)
            return <line class="je-band-death" x1={x} x2={x} y1={0} y2={HIGH} />;
          if (point.pause_s > 0)
            return (
              <rect
                class="je-band-pause"
                x={Math.max(0, x - (point.pause_s / span) * WIDE)}
                y={0}
                width={Math.max((point.pause_s / span) * WIDE, 2)}
                height={HIGH}
              />
            );
          return null;
        })}
      </svg>
      <div class="je-range je-sizeband-time">
        <span>{clock(begin)}</span>
        <span>{duration(span)}</span>
        <span>{clock(end)}</span>
      </div>
      <figcaption class="je-quiet">
        <span class="je-key je-key-held" aria-hidden="true" /> {unit}s held, of at most {props.most}
        {paused && (
          <>
            {' '}
            <span class="je-key je-key-pause" aria-hidden="true" /> paused to change size
          </>
        )}
        {died && (
          <>
            {' '}
            <span class="je-key je-key-death" aria-hidden="true" /> a worker died or was replaced
          </>
        )}
      </figcaption>
    </figure>
  );
}
