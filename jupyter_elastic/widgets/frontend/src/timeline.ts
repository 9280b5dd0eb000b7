// The timeline's arithmetic: positions of rows and times, ticks of an axis, colours of jobs.
import type { Bar, TimelineHost, TimelineLook } from './screens';

/**
 * Colours of jobs by number, and of users in order; the same as in views/timeline_page.py. A number or a name always
 * stands beside a colour.
 */
export const PALETTE = ['#1f6fb2', '#7d6000', '#8a4f9e', '#00795f', '#b8336a', '#56666f', '#b84a00', '#2f7d1f'];

/** Colour of several bars that are too short to be drawn one by one. */
export const SEVERAL = '#6b6b6b';

/** Return the index of a job's colour. */
export function jobColour(job: number): number {
  return job % PALETTE.length;
}

/**
 * Positions of rows, in pixels: each slot is a row; with many slots a host has the least height at which it is seen.
 */
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

/** Return the pixels left of the rows for the names of hosts, in a picture of this width. */
export function gutter(width: number): number {
  return width < 520 ? 58 : 92;
}

/** A rectangle around a text, in pixels. */
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/**
 * Return for each label the first of its places that covers neither the `taken` ones nor the labels before; null where
 * there is none.
 */
export function placeLabels<T extends Box>(labels: T[][], taken: Box[]): (T | null)[] {
  const there = [...taken];
  const covers = (a: Box, b: Box) =>
    a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
  return labels.map(places => {
    const free = places.find(place => !there.some(other => covers(place, other))) ?? null;
    if (free) there.push(free);
    return free;
  });
}

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800
];

/** Return at most `most` times for an axis, at round local times. */
export function ticks(begin: number, end: number, most: number): number[] {
  const step = STEPS.find(step => (end - begin) / step <= most) ?? STEPS[STEPS.length - 1];
  const zone = new Date(begin * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((begin - zone) / step) * step + zone; at <= end; at += step) found.push(at);
  return found;
}

/** Return a time as exact as an axis of this span needs it. */
export function tick(at: number, span: number): string {
  const date = new Date(at * 1000);
  if (span > 3 * 86400) return date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  if (span > 1800) return date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  return date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
}

/** Shortest and longest window, in seconds. */
const SHORTEST_S = 20;
const LONGEST_S = 30 * 86400;

/** The first window of a timeline: ten minutes back, and half as far ahead. */
export const FIRST: TimelineLook = {
  at: null,
  past_s: 600,
  ahead_s: 300,
  user: '',
  name: '',
  state: '',
  offset: 0,
  limit: 25
};

/**
 * Return a window of `factor` times the span; the time at `part` of it (0 to 1) keeps its position. A window that
 * follows now goes on to do so.
 */
export function zoomed(look: TimelineLook, factor: number, part: number, now: number): TimelineLook {
  const span = look.past_s + look.ahead_s;
  const next = Math.min(Math.max(span * factor, SHORTEST_S), LONGEST_S);
  if (look.at === null)
    return { ...look, past_s: Math.max(10, (look.past_s * next) / span), ahead_s: (look.ahead_s * next) / span };
  const fixed = look.at - look.past_s + part * span;
  return windowOf(look, fixed - part * next, next, now);
}

/** Return the window moved by seconds; it no longer follows now. */
export function moved(look: TimelineLook, seconds: number, now: number): TimelineLook {
  const span = look.past_s + look.ahead_s;
  const begin = Math.min(Math.max((look.at ?? now) - look.past_s + seconds, now - LONGEST_S), now + span);
  return windowOf(look, begin, span, now);
}

function windowOf(look: TimelineLook, begin: number, span: number, now: number): TimelineLook {
  const at = Math.min(Math.max(now, begin + 10), begin + span);
  return { ...look, at, past_s: at - begin, ahead_s: Math.max(0, begin + span - at) };
}

/** Return a window of the same span that follows now, two thirds of it before now. */
export function following(look: TimelineLook): TimelineLook {
  const span = look.past_s + look.ahead_s;
  return { ...look, at: null, past_s: (span * 2) / 3, ahead_s: span / 3 };
}
