// Predicted times and their differences in words.
import { difference, duration } from '../../format';

export function time(seconds: number | null): string {
  return seconds === null ? '–' : duration(seconds);
}

/** Return the difference of two times; empty where they are about the same. */
export function changed(now: number | null | undefined, then: number | null, trend: number): string {
  return trend !== 0 && now != null && then !== null ? difference(now, then) : '';
}
