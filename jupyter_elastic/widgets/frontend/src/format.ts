// Writes figures and times for people, the same way on all screens.

/** Return seconds as "1.5 s", "45 s", "12 min", "3.4 h" or "3 days". */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return '–';
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} days`;
}

/** Return a range of seconds as "about 3 to 5 min"; the same as human_range in client/human_times.py. */
export function range(low: number, high: number): string {
  const units: [number, string][] = [
    [1, 's'],
    [60, 'min'],
    [3600, 'h'],
    [86400, 'days']
  ];
  const [size, unit] = units.find(
    ([size, unit]) => high < 90 * size || unit === 'days' || (unit === 'h' && high < 48 * size)
  )!;
  const first = Math.round(Math.max(0, low) / size);
  const last = Math.max(1, Math.round(Math.max(0, high) / size));
  if (first >= last) return `about ${last} ${unit}`;
  return first === 0 ? `less than ${last} ${unit}` : `about ${first} to ${last} ${unit}`;
}

/** Return the step in seconds to which `duration` rounds at this length. */
function grain(seconds: number): number {
  return seconds < 10 ? 0.1 : seconds < 90 ? 1 : seconds < 5400 ? 60 : seconds < 48 * 3600 ? 360 : 86400;
}

/** Return the difference of two durations, as "+12 s" or "−3 min", such that it fits the two as they are shown. */
export function difference(now: number, then: number): string {
  const step = Math.max(grain(now), grain(then));
  let seconds = then - now;
  if (Math.abs(seconds) > 1.5 * step) seconds = (Math.round(then / step) - Math.round(now / step)) * step;
  return `${seconds < 0 ? '−' : '+'}${duration(Math.abs(seconds))}`;
}

/** Return a number with three digits, or as a whole number from 100 on. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3);
}

/** Return bytes as "812 MB" or "40.2 GB", in powers of 1000 as memory is sold. */
export function memory(bytes: number): string {
  const size = bytes / 1e9;
  return size < 1 ? `${Math.round(size * 1000)} MB` : `${size.toFixed(size < 10 ? 1 : 0)} GB`;
}

/** Return the time of day as "20:33:49", in 24 hours everywhere, as the server and the terminal write it. */
export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString('en-GB');
}

/** Return the day as "24 Nov 2026". */
export function day(at: number): string {
  return new Date(at * 1000).toLocaleDateString('en-GB', { day: '2-digit', month: 'short', year: 'numeric' });
}

/**
 * Describe a host: "ssh://lab2 · ends at 20:33:49 · out: its network is cut"; empty for a host of the pool's own
 * machine.
 */
export function aboutHost(host: { reach: string; until: number | null; out: string }, now: number): string {
  const at = host.until ?? 0;
  const ends = `${at > now ? 'ends' : 'ended'} at ${clock(at)}${day(at) === day(now) ? '' : `, ${day(at)}`}`;
  return [host.reach, host.until !== null && ends, host.out && `out: ${host.out}`].filter(Boolean).join(' · ');
}

/** Return a time on an axis that begins with 0: "45 s", "1:30", "2:05:00". */
export function sinceBegin(seconds: number): string {
  if (Math.abs(seconds) < 60) return `${figure(seconds)} s`;
  const s = Math.round(seconds);
  const [h, m, rest] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60), s % 60].map(part =>
    String(part).padStart(2, '0')
  );
  return s < 3600 ? `${Number(m)}:${rest}` : `${Number(h)}:${m}:${rest}`;
}

/** Let the browser save data as a file. */
export function download(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return the slots that a job may have, as a person writes them: "4" or "1:4". */
export function slotRange({ min_slots, max_slots }: { min_slots: number; max_slots: number }): string {
  return min_slots === max_slots ? `${max_slots}` : `${min_slots}:${max_slots}`;
}

/** Return the text of an error. */
export function messageOf(error: unknown): string {
  return String((error as Error).message ?? error);
}

/** Return a count with its noun. */
export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}

/** Returns the CSS of an owner's colour, or of the colour of one of the owner's jobs. */
export type Colour = (owner: string, job?: number) => string;

/** Number of hues for owners. */
const HUES = 12;

/**
 * Give owners colours: 60 degrees of hue between up to six owners, 30 between up to twelve. All colours are equally
 * light, so that white text is legible.
 */
export function palette(owners: Iterable<string>): Colour {
  const hues = new Map<string, number>();
  const taken = new Set<number>();
  for (const owner of [...new Set(owners)].sort()) {
    let hash = 0;
    for (const letter of owner) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
    // Every second hue first.
    const order = Array.from({ length: HUES }, (_, n) => (2 * (hash + 5 * n) + (n < HUES / 2 ? 0 : 1)) % HUES);
    const hue = order.find(one => !taken.has(one)) ?? order[0];
    taken.add(hue);
    hues.set(owner, hue);
  }
  return (owner, job = 1) =>
    `--je-colour: oklch(0.55 0.13 ${(hues.get(owner) ?? 0) * (360 / HUES) + ((job % 3) - 1) * 9})`;
}
