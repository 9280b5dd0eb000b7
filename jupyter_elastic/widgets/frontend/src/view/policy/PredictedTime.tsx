// A predicted time in a table, with its difference to that of the present policy.
import { time } from './changes';

/** `trend` colours the cell: -1 for earlier, 1 for later, 0 for about the same. */
export function PredictedTime({ then, change, trend }: { then: number | null; change: string; trend: number }) {
  return (
    <td class={trend < 0 ? 'je-better' : trend > 0 ? 'je-worse' : ''}>
      {time(then)}
      {change && <div>{change}</div>}
    </td>
  );
}
