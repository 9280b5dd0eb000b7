// The bar of a job's progress.
import { ENDED } from '../../phases';
import type { JobScreen } from '../../screens';

export function Progress({ screen }: { screen: JobScreen }) {
  if (screen.phase === 'completed' || (ENDED.includes(screen.phase) && screen.fraction === null)) return null;
  if (screen.fraction === null) {
    return screen.phase === 'running' ? (
      <div class="je-bar je-unknown" role="progressbar" aria-label={`progress of ${screen.name}`}>
        <span />
      </div>
    ) : null;
  }
  const percent = Math.round(100 * screen.fraction);
  return (
    <div
      class={`je-bar je-is-${screen.phase}`}
      role="progressbar"
      aria-valuenow={percent}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-label={`progress of ${screen.name}`}
    >
      <span style={`width: ${(100 * screen.fraction).toFixed(2)}%`} />
    </div>
  );
}
