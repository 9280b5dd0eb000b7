// Applies the changes that views/patches.py makes. Unchanged parts remain the same objects, so that they are not drawn
// again.

export type Patch =
  { v: unknown } | { k: Record<string, Patch> } | { l: [drop: number, keep: number, rest: unknown[]] };

export function patched(before: unknown, patch: Patch): unknown {
  if ('v' in patch) return patch.v;
  if ('l' in patch) {
    const [drop, keep, rest] = patch.l;
    return [...(before as unknown[]).slice(drop, drop + keep), ...rest];
  }
  const after = (Array.isArray(before) ? [...before] : { ...(before as object) }) as Record<string, unknown>;
  for (const [key, part] of Object.entries(patch.k)) after[key] = patched(after[key], part);
  return after;
}
