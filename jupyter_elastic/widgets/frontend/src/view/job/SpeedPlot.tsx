// The plot of speed over workers: for each number of parameter servers a line of predicted and points of measured
// speeds.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { figure, plural } from '../../format';
import type { SizeSpeed, SpeedFit } from '../../screens';
import { axisIn, colour, keepWidth, legendFigure, sizeIn } from './drawing';
import { TOGETHER } from './metrics';

export function SpeedPlot({ fit }: { fit: SpeedFit }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current!;
    const servers = [...new Set(fit.sizes.map(size => size.servers))].slice(0, TOGETHER);
    const xs = [...new Set(fit.sizes.map(size => size.workers))].sort((a, b) => a - b);
    const column = (count: number, of: (size: SizeSpeed) => number | null) =>
      xs.map(x => fit.sizes.filter(size => size.workers === x && size.servers === count).map(of)[0] ?? null);
    const line = (index: number) => () => colour(element, `--je-plot-${index + 1}`);
    const behind = (count: number) => (count ? `, ${plural(count, 'server')}` : '');
    const axis = axisIn(element);
    const value = legendFigure;
    const plot = new uPlot(
      {
        ...sizeIn(element),
        scales: {
          x: { time: false, range: (_, least, most) => [least - 0.2, most + 0.2] },
          y: { range: (_, __, most) => [0, 1.1 * most] }
        },
        axes: [
          { ...axis, size: 28, label: 'workers', labelSize: 18, incrs: [1, 2, 4, 8, 16] },
          { ...axis, size: 62, label: 'samples/s', labelSize: 18, values: (_, ticks) => ticks.map(figure) }
        ],
        series: [
          { label: 'workers', value: (_, x) => (x === null ? '–' : `${x}`) },
          ...servers.flatMap((count, index) => [
            {
              label: `predicted${behind(count)}`,
              value,
              stroke: line(index),
              width: 1.5,
              dash: index ? [6, 2 + 2 * index] : undefined,
              spanGaps: true,
              points: { show: false }
            },
            {
              label: `measured${behind(count)}`,
              value,
              stroke: line(index),
              paths: () => null,
              points: { show: true, size: 8, fill: line(index) }
            }
          ])
        ],
        cursor: { y: false },
        legend: { markers: { stroke: (_, index) => `var(--je-plot-${Math.ceil(index / 2)})` } }
      },
      [xs, ...servers.flatMap(count => [column(count, size => size.predicted), column(count, size => size.measured)])],
      element
    );
    const watch = keepWidth(plot, element);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [JSON.stringify(fit)]);
  return (
    <div
      class="je-plot"
      ref={box}
      role="img"
      aria-label="samples a second over the number of workers; the table below has the figures"
    />
  );
}
