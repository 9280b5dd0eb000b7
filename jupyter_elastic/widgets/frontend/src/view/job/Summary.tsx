// The last metrics of a job that is over, in a line.
import type { JobScreen } from '../../screens';

/** Name of the curve of speed, as in client/job_model.py. */
const SPEED = 'samples/s';

export function Summary({ screen }: { screen: JobScreen }) {
  const last = screen.metrics.filter(series => series.name !== SPEED).slice(0, 3);
  if (!last.length) return null;
  return (
    <span class="je-summary">
      {last.map(series => (
        <span key={series.name}>
          {series.name} <strong>{series.last}</strong>
        </span>
      ))}
    </span>
  );
}
