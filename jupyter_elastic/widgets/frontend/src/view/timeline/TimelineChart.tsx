// The picture of a timeline: slots as rows and jobs as bars.
import { useState } from 'preact/hooks';
import { aboutHost, clock, plural } from '../../format';
import type { Bar, SwitchRow, TimelineHost, TimelineJob } from '../../screens';
import { placeLabels, type Box, gutter, jobColour, PALETTE, Rows, SEVERAL, tick, ticks } from '../../timeline';

/** Height of the row of policies above the slots, and of the axis, in pixels. */
const TOP = 16;
const AXIS = 20;

/** Width of a letter and height of a line, in pixels. */
const LETTER = 7;
const LINE = 12;

/** Number of charts so far, for the ids of gradients: `useId` counts anew in each root of a page. */
let charts = 0;

interface ChartProps {
  hosts: TimelineHost[];
  bars: Bar[];
  future: Bar[];
  jobs: TimelineJob[];
  switches?: SwitchRow[];
  begin: number;
  end: number;
  now: number;
  width: number;
  label: string;
  /** Return the index of a job's colour. */
  colour?: (job: number) => number;
  /** Text behind a job's last bar; `trend` is -1 for a gain and 1 for a loss. */
  marks?: Map<number, { text: string; trend: number }>;
  open?: (job: number) => void;
}

/** Shorten a name to the room beside the rows. */
function short(name: string, room: number): string {
  const most = Math.floor(room / LETTER);
  return name.length <= most ? name : `${name.slice(0, most - 1)}…`;
}

export function TimelineChart(props: ChartProps) {
  const { hosts, bars, future, jobs, begin, end, now, width } = props;
  const rows = new Rows(hosts);
  const left = gutter(width);
  const scale = (width - left) / (end - begin);
  const x = (at: number) => left + (at - begin) * scale;
  const [id] = useState(() => `je-chart-${++charts}`);
  const colour = props.colour ?? jobColour;
  const known = new Map(jobs.map(job => [job.job, job]));
  const paint = (job: number) => (job ? PALETTE[colour(job)] : SEVERAL);
  const title = (bar: Bar, ahead: boolean) => {
    const job = known.get(bar.job);
    const who = bar.job ? `job ${bar.job}${job ? ` ${job.name} (${job.owner})` : ''}` : `${bar.count} short ones`;
    const until = bar.end === null ? 'now' : clock(bar.end);
    return `${who}: ${plural(bar.rows, 'slot')}, ${clock(bar.begin)} to ${until}${ahead ? ', predicted' : ''}`;
  };
  const inside = (from: number, until: number): [number, number] => [
    Math.max(x(from), left),
    Math.min(x(until), width)
  ];

  const past = bars.map(bar => {
    const [a, b] = inside(bar.begin, Math.min(bar.end ?? now, now));
    if (b <= a) return null;
    const { y, height } = rows.box(bar);
    const text = bar.job ? String(bar.job) : String(bar.count);
    return (
      <g key={`${bar.job}.${bar.begin}.${bar.first}`} data-job={bar.job || undefined}>
        <title>{title(bar, false)}</title>
        <rect
          x={a}
          y={y + 0.5}
          width={Math.max(b - a, 1)}
          height={Math.max(height - 1, 1)}
          rx={Math.min(3, height / 4)}
          fill={paint(bar.job)}
        />
        {b - a > LETTER * text.length + 6 && height >= 10 && (
          <text class="je-on-bar" x={a + 4} y={y + Math.min(height / 2 + 4, 16)}>
            {text}
          </text>
        )}
      </g>
    );
  });

  const last = new Map<number, number>();
  for (const bar of future) last.set(bar.job, Math.max(last.get(bar.job) ?? 0, bar.end ?? end));
  const first = new Map<number, number>();
  for (const bar of future) first.set(bar.job, Math.min(first.get(bar.job) ?? Infinity, bar.begin));
  const numberOf = (bar: Bar, a: number, b: number, y: number, height: number): Box | null => {
    const room = LETTER * String(bar.job).length;
    return b - a > room + 6 && height >= 10
      ? { x: a + 4, y: y + Math.min(height / 2 + 4, 16) - LINE, width: room, height: LINE }
      : null;
  };
  /**
   * Return the possible places of a mark: at the end of its bar, or behind it; on the first line, or on the last one of
   * a high bar.
   */
  const markPlaces = (text: string, a: number, b: number, y: number, height: number): Box[] => {
    const room = LETTER * text.length;
    const behind = Math.min(b + 3, width - room);
    const lines = [y + Math.min(height / 2 + 4, 16), ...(height >= 30 ? [y + height - 7] : [])];
    return (b - a > room + 8 ? [b - 4 - room, behind] : [behind]).flatMap(x =>
      lines.map(line => ({ x, y: line - LINE, width: room, height: LINE }))
    );
  };
  const shapes = future.map(bar => {
    const job = known.get(bar.job);
    const stops = bar.end ?? end;
    const fades = job?.ends && stops >= last.get(bar.job)! ? job.ends : null;
    const begins = Math.max(bar.begin, now);
    const solid = fades ? Math.max(Math.min(fades[0], stops), begins) : stops;
    const [a, b] = inside(begins, solid);
    const [fadeA, fadeB] = fades ? inside(solid, Math.max(fades[1], solid)) : [0, 0];
    const early = job?.starts && bar.begin <= first.get(bar.job)! ? Math.max(job.starts[0], now) : null;
    const [earlyA, earlyB] = early === null ? [0, 0] : inside(early, begins);
    const { y, height } = rows.box(bar);
    const mark = isLastBar(bar) ? props.marks?.get(bar.job) : undefined;
    const number = numberOf(bar, a, Math.max(b, fadeB), y, height);
    const places = mark ? markPlaces(mark.text, a, b, y, height) : [];
    return { bar, a, b, fadeA, fadeB, earlyA, earlyB, y, height, number, mark, places };
  });
  // Labels that would cover another one are left out: the table below the picture has them.
  const marked = placeLabels(
    shapes.map(shape => shape.places),
    shapes.flatMap(shape => shape.number ?? [])
  );
  const ahead = shapes.map(({ bar, a, b, fadeA, fadeB, earlyA, earlyB, y, height, number, mark }, index) => {
    const shape = { y: y + 0.5, height: Math.max(height - 1, 1) };
    const place = marked[index];
    return (
      <g key={`${bar.job}.${bar.begin}.${bar.first}`} data-job={bar.job}>
        <title>{title(bar, true)}</title>
        {earlyB > earlyA && (
          <rect
            class="je-early"
            x={earlyA}
            width={earlyB - earlyA}
            {...shape}
            fill={`url(#${id}-in-${colour(bar.job)})`}
          />
        )}
        {b > a && (
          <rect
            class="je-ahead"
            x={a}
            width={b - a}
            {...shape}
            rx={Math.min(3, height / 4)}
            fill={paint(bar.job)}
            stroke={paint(bar.job)}
          />
        )}
        {fadeB > fadeA && (
          <rect
            class="je-range"
            x={fadeA}
            width={fadeB - fadeA}
            {...shape}
            fill={`url(#${id}-out-${colour(bar.job)})`}
          />
        )}
        {number && (
          <text class="je-beside" x={number.x} y={number.y + LINE}>
            {bar.job}
          </text>
        )}
        {mark && place && (
          <text
            class={mark.trend > 0 ? 'je-mark je-worse' : 'je-mark je-better'}
            text-anchor="middle"
            x={place.x + place.width / 2}
            y={place.y + LINE}
          >
            {mark.text}
          </text>
        )}
      </g>
    );
  });
  /** Return whether the bar is the topmost one of the job's last bars: its mark is written once. */
  function isLastBar(bar: Bar): boolean {
    if ((bar.end ?? end) < last.get(bar.job)!) return false;
    return !future.some(
      other => other.job === bar.job && (other.end ?? end) === (bar.end ?? end) && other.first < bar.first
    );
  }

  const click = (event: MouseEvent) => {
    const job = (event.target as Element).closest('[data-job]')?.getAttribute('data-job');
    if (job) props.open?.(Number(job));
  };
  const used = [...new Set(future.map(bar => colour(bar.job)))];
  const axis = ticks(begin, end, Math.max(2, Math.floor((width - left) / 90)));
  return (
    <>
      <svg
        class="je-chart"
        role="img"
        aria-label={props.label}
        width={width}
        height={TOP + rows.height + 4}
        onClick={props.open && click}
      >
        <defs>
          {used.map(place => (
            <>
              <linearGradient id={`${id}-out-${place}`}>
                <stop offset="0" stop-color={PALETTE[place]} stop-opacity="0.5" />
                <stop offset="1" stop-color={PALETTE[place]} stop-opacity="0.04" />
              </linearGradient>
              <linearGradient id={`${id}-in-${place}`}>
                <stop offset="0" stop-color={PALETTE[place]} stop-opacity="0.04" />
                <stop offset="1" stop-color={PALETTE[place]} stop-opacity="0.3" />
              </linearGradient>
            </>
          ))}
        </defs>
        <g transform={`translate(0 ${TOP})`}>
          {axis.map(at => (
            <line class="je-grid" x1={x(at)} x2={x(at)} y1={0} y2={rows.height} />
          ))}
          {rows.hosts.map(host => (
            <g key={host.name}>
              <rect class="je-host" x={left} y={host.top} width={width - left} height={host.height} />
              <text class="je-label" x={0} y={host.top + Math.min(host.height / 2 + 4, 14)}>
                {short(host.gone ? `${host.name} (gone)` : host.name, left)}
                <title>{[host.name, aboutHost(host, now)].filter(Boolean).join(' · ')}</title>
              </text>
              {host.until !== null && host.until > begin && host.until < end && (
                <g>
                  <title>{`${host.name} ${host.until > now ? 'ends' : 'ended'} at ${clock(host.until)}`}</title>
                  <line
                    class="je-host-end"
                    x1={x(host.until)}
                    x2={x(host.until)}
                    y1={host.top}
                    y2={host.top + host.height}
                  />
                </g>
              )}
            </g>
          ))}
          {past}
          {ahead}
          {(props.switches ?? []).map((one, number, all) => (
            <g key={`s${one.at}`}>
              <title>{`policy ${one.previous} → ${one.name}, by ${one.by}${one.reason ? `: ${one.reason}` : ''}`}</title>
              <line class="je-switch" x1={x(one.at)} x2={x(one.at)} y1={-4} y2={rows.height} />
              {(number + 1 === all.length || x(all[number + 1]!.at) - x(one.at) > LETTER * one.name.length + 3) && (
                <text class="je-label" x={Math.min(x(one.at) + 3, width - LETTER * one.name.length)} y={-4}>
                  {one.name}
                </text>
              )}
            </g>
          ))}
          {now >= begin && now <= end && (
            <g>
              <line class="je-now" x1={x(now)} x2={x(now)} y1={-4} y2={rows.height + 4} />
            </g>
          )}
        </g>
      </svg>
      <svg class="je-chart je-axis" aria-hidden="true" width={width} height={AXIS - 4}>
        {axis.map(at => (
          <text class="je-label" text-anchor="middle" x={Math.min(Math.max(x(at), left + 24), width - 28)} y={10}>
            {tick(at, end - begin)}
          </text>
        ))}
      </svg>
    </>
  );
}
