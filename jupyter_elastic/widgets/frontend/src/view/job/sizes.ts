// Changes of a job's size in words.
import { duration, plural } from '../../format';
import type { SizePoint } from '../../screens';

/** Describe a change of size: "4 → 2: makes room for job 7 of bob, 0.3 s pause"; another event by its reason. */
export function changeOfSize(point: SizePoint, before: number): string {
  if (point.slots === before && point.reason) return point.reason;
  const change = before ? `${before} → ${point.slots}` : `started on ${plural(point.slots, 'slot')}`;
  const pause = point.pause_s >= 0.05 ? `, ${duration(point.pause_s)} pause` : '';
  return `${change}${point.reason ? `: ${point.reason}` : ''}${pause}`;
}
