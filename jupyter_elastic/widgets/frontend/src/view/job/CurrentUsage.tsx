// The current use of GPUs, cores and memory by a job.
import { memory, plural } from '../../format';
import type { ResourceUsage } from '../../screens';
import { Meter } from './Meter';

/** Compares the use with what the job holds: its GPUs, or its workers' cores where slots are cores. */
export function CurrentUsage({ use, slots }: { use: ResourceUsage; slots: number }) {
  return (
    <ul class="je-use je-quiet" aria-label="in use now">
      {use.gpus.map(gpu => (
        <li key={gpu.slot}>
          <span>GPU {gpu.slot}</span>
          <Meter part={gpu.busy ?? 0} label={`GPU ${gpu.slot} busy`} />
          <span>
            {gpu.busy === null ? 'use not known' : `${Math.round(100 * gpu.busy)} % busy`} · {memory(gpu.memory)} of{' '}
            {memory(gpu.total)}
          </span>
        </li>
      ))}
      <li>
        <span>{plural(use.workers, 'worker')}</span>
        <Meter part={use.cores / Math.max(slots, 1)} label="CPU use" />
        <span>
          {use.cores.toFixed(1)} {use.cores.toFixed(1) === '1.0' ? 'core' : 'cores'} busy · {memory(use.memory)}{' '}
          resident
        </span>
      </li>
    </ul>
  );
}
