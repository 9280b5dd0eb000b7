// One plot of a job, drawn by uPlot: metrics over steps, epochs or time, with the changes of the job's size.
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { download, figure, sinceBegin } from '../../format';
import type { JobScreen, Series } from '../../screens';
import {
  axisIn,
  colour,
  columns,
  type ComparedRun,
  decades,
  drawMarks,
  keepWidth,
  LABELS,
  legendFigure,
  lines,
  type PlotSettings,
  sizeIn
} from './drawing';
import { marks } from './metrics';

/** Possible distances of ticks on the axis of time, in seconds. */
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 604800];

/** Milliseconds between checks for another theme. */
const THEME_MS = 500;

/**
 * Minimum milliseconds between drawings of new points: a canvas costs more than all the rest of a view. A person's
 * changes are drawn at once.
 */
const REPAINT_MS = 1000;

/** Dashes of the lines of earlier runs. */
const DASHES = [
  [2, 3],
  [8, 3, 2, 3],
  [1, 5]
];

export function Plot(props: { group: Series[]; shown: PlotSettings; screen: JobScreen; compared?: ComparedRun[] }) {
  const { group, shown } = props;
  const drawn = lines(group, props.compared ?? []);
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
    const axis = { ...axisIn(element), size: 28 };
    zoomed.current = false;
    const plot = new uPlot(
      {
        ...sizeIn(element),
        scales: { x: { time: false }, y: { distr: shown.log ? 3 : 1 } },
        padding: [14, 12, 0, 0], // room above for the changes of size
        axes: [
          {
            ...axis,
            label: LABELS[shown.axis],
            labelSize: 18,
            incrs: time ? TIME_STEPS : undefined,
            values: (_, ticks) =>
              ticks.map(tick =>
                time ? sinceBegin(tick) : Number.isInteger(tick) ? tick.toLocaleString('en-US') : figure(tick)
              )
          },
          {
            ...axis,
            grid: { ...axis.grid, filter: shown.log ? decades : (_: uPlot, splits: number[]) => splits },
            size: 62,
            values: (_, ticks) => ticks.map(tick => (tick === null ? '' : figure(tick)))
          }
        ],
        series: [
          {
            label: shown.axis,
            value: time ? (_: uPlot, x: number | null) => (x === null ? '–' : sinceBegin(x)) : legendFigure
          },
          ...drawn.map(({ label, colour, run }) => ({
            label,
            value: legendFigure,
            stroke: stroke(colour),
            width: run < 0 ? 1.5 : 1,
            alpha: run < 0 ? 1 : 0.75,
            dash: run < 0 ? (colour ? [6, 2 + 2 * colour] : undefined) : DASHES[run % DASHES.length],
            spanGaps: true,
            points: { show: false }
          }))
        ],
        cursor: { y: false },
        legend: {
          markers: {
            stroke: (_, index) => `var(--je-plot-${(drawn[index - 1]?.colour ?? 0) + 1})`,
            dash: (_, index) => ((drawn[index - 1]?.run ?? -1) < 0 ? 'solid' : 'dotted')
          }
        },
        hooks: {
          draw: [plot => drawMarks(plot, marks(latest.current.screen, latest.current.group, shown.axis))],
          setSelect: [() => (zoomed.current = true)]
        }
      },
      columns(
        drawn.map(line => line.series),
        shown
      ),
      element
    );
    const whole = () => (zoomed.current = false);
    plot.over.addEventListener('dblclick', whole);
    const watch = keepWidth(plot, element);
    let painted = colour(element, '--je-text');
    const themeTimer = setInterval(() => {
      const now = colour(element, '--je-text');
      if (now !== painted) plot.redraw(); // a canvas does not follow the theme by itself
      painted = now;
    }, THEME_MS);
    made.current = plot;
    return () => {
      clearInterval(themeTimer);
      watch.disconnect();
      plot.destroy();
    };
  }, [labels.join('\n'), shown.axis, shown.log]);
  const last = useRef({ at: -Infinity, shown });
  useLayoutEffect(() => {
    const paint = () => {
      last.current = { at: performance.now(), shown };
      made.current?.setData(
        columns(
          drawn.map(line => line.series),
          shown
        ),
        !zoomed.current
      );
      if (zoomed.current) made.current?.redraw();
    };
    const wait = last.current.shown === shown ? last.current.at + REPAINT_MS - performance.now() : 0;
    if (wait <= 0) return paint();
    const timer = setTimeout(paint, wait);
    return () => clearTimeout(timer);
  }, [drawn.map(({ series }) => `${series.points.length} ${series.points[series.points.length - 1]}`).join(), shown]);
  const png = () =>
    made.current!.ctx.canvas.toBlob(
      blob => blob && download(blob, `job-${props.screen.job}-${names[0].replace(/[^\w.-]+/g, '-')}.png`)
    );
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
      <div
        class="je-plot"
        ref={box}
        role="img"
        aria-label={`${group.map(series => `${series.name}, now ${series.last}`).join('; ')}, over ${LABELS[shown.axis]}`}
      />
    </figure>
  );
}
