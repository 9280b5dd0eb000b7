// Lines that ranks print, and their displays.
import type { JobPage } from '../../screens';

/** The last lines of each rank, by rank as text. */
export type Outputs = JobPage['outputs'];

/** A line of a rank, [stream, text], or a display: ['image', plain, address], ['html', plain, markup]. */
export type Line = Outputs[string][number];

/**
 * Return how many of the first lines are dropped: the rest of them are the first now, and the last one may have grown.
 */
export function dropped(before: Line[], now: Line[]): number {
  const same = (a: Line, b: Line) => a[0] === b[0] && a[1] === b[1];
  for (let drop = 0; drop < before.length; drop++) {
    const common = Math.min(before.length - drop, now.length) - 1;
    let run = 0;
    while (run < common && same(before[drop + run], now[run])) run++;
    if (run >= common) return drop;
  }
  return before.length;
}

/** Remembers the last lines of all ranks: the server sends the lines of one rank, the one in sight. */
export class SeenOutputs {
  private seen: Outputs = {};

  get all(): Outputs {
    return this.seen;
  }

  /** Remember lines, except those of the rank `but`, whose lines are newer here. */
  add(outputs: Outputs, but: number | null = null): void {
    for (const [rank, lines] of Object.entries(outputs))
      if (lines.length && rank !== String(but)) this.seen[rank] = lines;
  }

  /** Remember the page's lines; return the page with the known lines of every rank. */
  complete(page: JobPage): JobPage {
    this.add(page.outputs);
    const ranks = Object.keys(page.outputs);
    return { ...page, outputs: Object.fromEntries(ranks.map(rank => [rank, this.seen[rank] ?? []])) };
  }
}
