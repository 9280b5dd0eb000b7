// How figures are written for people, the same everywhere.

export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return '–';
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} days`;
}

/** "about 3 to 5 min": no more exact than it can be; the twin of human_range in client/human_times.py. */
export function range(low: number, high: number): string {
  const units: [number, string][] = [[1, 's'], [60, 'min'], [3600, 'h'], [86400, 'days']];
  const [size, unit] = units.find(([size, unit]) => high < 90 * size || unit === 'days' || (unit === 'h' && high < 48 * size))!;
  const first = Math.round(Math.max(0, low) / size);
  const last = Math.max(1, Math.round(Math.max(0, high) / size));
  if (first >= last) return `about ${last} ${unit}`;
  return first === 0 ? `less than ${last} ${unit}` : `about ${first} to ${last} ${unit}`;
}

/** The smallest step of `duration` at such a time. */
function grain(seconds: number): number {
  return seconds < 10 ? 0.1 : seconds < 90 ? 1 : seconds < 5400 ? 60 : seconds < 48 * 3600 ? 360 : 86400;
}

/** "+12 s", "−3 min": how much later or earlier, such that it is the difference of the two times as they are shown. */
export function difference(now: number, then: number): string {
  const step = Math.max(grain(now), grain(then));
  let seconds = then - now;
  if (Math.abs(seconds) > 1.5 * step) seconds = (Math.round(then / step) - Math.round(now / step)) * step;
  return `${seconds < 0 ? '−' : '+'}${duration(Math.abs(seconds))}`;
}

export function figure(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3);
}

/** "812 MB", "40.2 GB": bytes for people, as memory is sold. */
export function memory(bytes: number): string {
  const size = bytes / 1e9;
  return size < 1 ? `${Math.round(size * 1000)} MB` : `${size.toFixed(size < 10 ? 1 : 0)} GB`;
}

/** "20:33:49": of a day in 24 hours everywhere, as the server and the terminal write it. */
export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString('en-GB');
}

/** "24 Nov 2026". */
export function day(at: number): string {
  return new Date(at * 1000).toLocaleDateString('en-GB', { day: '2-digit', month: 'short', year: 'numeric' });
}

/** "ssh://lab2 · ends at 20:33:49 · out: its network is cut": what is to be said of a host; empty where nothing is. */
export function aboutHost(host: { reach: string; until: number | null; out: string }, now: number): string {
  const at = host.until ?? 0;
  const ends = `${at > now ? 'ends' : 'ended'} at ${clock(at)}${day(at) === day(now) ? '' : `, ${day(at)}`}`;
  return [host.reach, host.until !== null && ends, host.out && `out: ${host.out}`].filter(Boolean).join(' · ');
}

/** A time on an axis that begins with 0: "45 s", "1:30", "2:05:00". */
export function sinceBegin(seconds: number): string {
  if (Math.abs(seconds) < 60) return `${figure(seconds)} s`;
  const s = Math.round(seconds);
  const [h, m, rest] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60), s % 60].map(part => String(part).padStart(2, '0'));
  return s < 3600 ? `${Number(m)}:${rest}` : `${Number(h)}:${m}:${rest}`;
}

/** Let the browser save something as a file. */
export function download(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}

const HUES = 12;

/** Colours of owners, and of their jobs near them: those of up to six owners are 60 degrees apart, of up to twelve 30. All are as light, so that white reads well on each. */
export function palette(owners: Iterable<string>): (owner: string, job?: number) => string {
  const hues = new Map<string, number>();
  const taken = new Set<number>();
  for (const owner of [...new Set(owners)].sort()) {
    let hash = 0;
    for (const letter of owner) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
    const places = Array.from({ length: HUES }, (_, n) => (2 * (hash + 5 * n) + (n < HUES / 2 ? 0 : 1)) % HUES); // every second one first
    const place = places.find(one => !taken.has(one)) ?? places[0];
    taken.add(place);
    hues.set(owner, place);
  }
  return (owner, job = 1) => `--je-colour: oklch(0.55 0.13 ${(hues.get(owner) ?? 0) * (360 / HUES) + ((job % 3) - 1) * 9})`;
}
