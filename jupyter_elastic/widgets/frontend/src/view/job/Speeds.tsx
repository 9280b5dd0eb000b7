// The speed of a training at each size, measured and predicted.
import { useState } from 'preact/hooks';
import { figure, plural } from '../../format';
import type { SizeSpeed, SpeedFit } from '../../screens';
import { SpeedPlot } from './SpeedPlot';

function words(size: SizeSpeed): string {
  return plural(size.workers, 'worker') + (size.servers ? ` and ${plural(size.servers, 'server')}` : '');
}

/** The plot is drawn when a person opens it. */
export function Speeds({ fit }: { fit: SpeedFit | null | undefined }) {
  const [open, setOpen] = useState(false);
  if (!fit) return null;
  const measured = fit.sizes.filter(size => size.measured !== null);
  return (
    <details class="je-usage" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>
        Speed by size: {measured.length} measured, predictions off by {(100 * fit.error).toFixed(0)} %
      </summary>
      {open && (
        <div class="je-plots" role="group" aria-label="speed by size">
          <figure class="je-curve">
            <SpeedPlot fit={fit} />
          </figure>
          <table class="je-speeds">
            <thead>
              <tr>
                <th scope="col">size</th>
                <th scope="col">measured</th>
                <th scope="col">predicted</th>
              </tr>
            </thead>
            <tbody>
              {fit.sizes.slice(0, 16).map(size => (
                <tr key={words(size)}>
                  <th scope="row">{words(size)}</th>
                  <td>{size.measured === null ? '–' : figure(size.measured)}</td>
                  <td>{figure(size.predicted)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}
