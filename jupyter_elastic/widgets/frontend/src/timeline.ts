// The timeline's arithmetic: where a row and a time lie, which ticks an axis has, which colour a job has.
import type { Bar, TimelineHost, TimelineLook } from './screens';

/** Of jobs by their number, of users by their place; the same as in views/timeline_page.py. A number or a name always stands beside a colour. */
export const PALETTE = ['#1f6fb2', '#7d6000', '#8a4f9e', '#00795f', '#b8336a', '#56666f', '#b84a00', '#2f7d1f'];
export const SEVERAL = '#6b6b6b';

export function jobColour(job: number): number {
  return job % PALETTE.length;
}

/** Where rows lie: of few slots each is one, of many a host is as high as it must be to be seen. */
export class Rows {
  readonly tops: number[] = [];
  readonly hosts: (TimelineHost & { top: number; height: number })[] = [];
  readonly height: number;

  constructor(hosts: TimelineHost[]) {
    const slots = hosts.reduce((sum, host) => sum + host.slots.length, 0);
    const one = slots <= 16 ? 20 : slots <= 40 ? 14 : slots <= 96 ? 9 : 0;
    let top = 0;
    for (const host of hosts) {
      const { slots } = host;
      const height = one * slots.length || Math.max(13, 1.5 * slots.length);
      this.hosts.push({ ...host, top, height });
      for (let slot = 0; slot < slots.length; slot++) this.tops.push(top + (slot * height) / slots.length);
      top += height;
    }
    this.height = top;
    this.tops.push(top);
  }

  box(bar: Bar): { y: number; height: number } {
    const y = this.tops[bar.first] ?? 0;
    return { y, height: (this.tops[bar.first + bar.rows] ?? this.height) - y };
  }
}

/** Where a text stands in a picture, in pixels. */
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Of each label the first of its places that covers neither what is `taken` nor the labels before it; null where there is none. */
export function apart<T extends Box>(labels: T[][], taken: Box[]): (T | null)[] {
  const there = [...taken];
  const covers = (a: Box, b: Box) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
  return labels.map(places => {
    const free = places.find(place => !there.some(other => covers(place, other))) ?? null;
    if (free) there.push(free);
    return free;
  });
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Times of an axis, at most so many, at round local times. */
export function ticks(begin: number, end: number, most: number): number[] {
  const step = STEPS.find(step => (end - begin) / step <= most) ?? STEPS[STEPS.length - 1];
  const zone = new Date(begin * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((begin - zone) / step) * step + zone; at <= end; at += step) found.push(at);
  return found;
}

/** A time as an axis says it: as exact as the axis is. */
export function tick(at: number, span: number): string {
  const date = new Date(at * 1000);
  if (span > 3 * 86400) return date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  if (span > 1800) return date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  return date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
}

export const SHORTEST_S = 20;
export const LONGEST_S = 30 * 86400;
/** Where a timeline begins: ten minutes back, and half as far ahead. */
export const FIRST: TimelineLook = { at: null, past_s: 600, ahead_s: 300, user: '', name: '', state: '', offset: 0, limit: 25 };

/** A window that shows `factor` times as much; the time at `part` of it (0 to 1) stays where it is. Around now it goes on with now. */
export function zoomed(look: TimelineLook, factor: number, part: number, now: number): TimelineLook {
  const span = look.past_s + look.ahead_s;
  const next = Math.min(Math.max(span * factor, SHORTEST_S), LONGEST_S);
  if (look.at === null) return { ...look, past_s: Math.max(10, (look.past_s * next) / span), ahead_s: (look.ahead_s * next) / span };
  const fixed = look.at - look.past_s + part * span;
  return windowOf(look, fixed - part * next, next, now);
}

/** A window moved by so many seconds; it then stays where it is. */
export function moved(look: TimelineLook, seconds: number, now: number): TimelineLook {
  const span = look.past_s + look.ahead_s;
  const begin = Math.min(Math.max((look.at ?? now) - look.past_s + seconds, now - LONGEST_S), now + span);
  return windowOf(look, begin, span, now);
}

function windowOf(look: TimelineLook, begin: number, span: number, now: number): TimelineLook {
  const at = Math.min(Math.max(now, begin + 10), begin + span);
  return { ...look, at, past_s: at - begin, ahead_s: Math.max(0, begin + span - at) };
}

/** As long a window around now, two thirds of it before. */
export function following(look: TimelineLook): TimelineLook {
  const span = look.past_s + look.ahead_s;
  return { ...look, at: null, past_s: (span * 2) / 3, ahead_s: span / 3 };
}
