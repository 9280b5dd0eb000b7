// The sizes of a job over time, with the reasons of the last changes.
import { clock } from '../../format';
import { ENDED } from '../../phases';
import type { JobScreen } from '../../screens';
import { SizeBand } from './SizeBand';
import { changeOfSize } from './sizes';

export function SizeHistory({ screen }: { screen: JobScreen }) {
  if (screen.sizes.length < 1) return null;
  const end = screen.ended_at ?? screen.now;
  const changes = screen.sizes
    .map((point, index) => ({ point, before: index ? screen.sizes[index - 1].slots : 0 }))
    .filter(({ point }) => !ENDED.includes(point.reason))
    .slice(-3);
  const same = screen.ended_at !== null && new Set(screen.sizes.map(point => point.slots).filter(Boolean)).size < 2;
  return (
    <div class="je-sizes">
      {same ? null : <SizeBand points={screen.sizes} end={end} most={screen.max_slots} unit={screen.unit} />}
      <ul class="je-notes">
        {changes.map(({ point, before }) => (
          <li key={point.at}>
            <span class="je-quiet">{clock(point.at)}</span> {changeOfSize(point, before)}
          </li>
        ))}
      </ul>
    </div>
  );
}
