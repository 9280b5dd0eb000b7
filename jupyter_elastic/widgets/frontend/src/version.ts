// The version of jupyter-elastic that this page is part of; a test holds it to the package's own version.
export const VERSION = '0.1.0';

/** Return whether version `a` is older than `b`; text behind the numbers (rc1, +local) does not count. */
export function older(a: string, b: string): boolean {
  const numbers = (text: string) => (/^\d+(\.\d+)*/.exec(text)?.[0] ?? '0').split('.').map(Number);
  const [x, y] = [numbers(a), numbers(b)];
  for (let place = 0; place < Math.max(x.length, y.length); place++) {
    const step = (x[place] ?? 0) - (y[place] ?? 0);
    if (step) return step < 0;
  }
  return false;
}
