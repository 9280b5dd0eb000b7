// Reads the size of a job that a person writes.

/** Return the minimum and maximum of "2" or "1:4"; for other texts the error and what to write. */
export function readSlots(text: string): [number, number] | string {
  const match = /^(\d{1,6})(?::(\d{1,6}))?$/.exec(text.trim());
  if (!match) return `Write a number of slots, or the least and the most as in 1:4, not "${text.trim().slice(0, 40)}".`;
  const [least, most] = [Number(match[1]), Number(match[2] ?? match[1])];
  if (least < 1) return 'A job that goes on needs at least 1 slot; to end it, cancel it.';
  if (most < least) return `The least comes first: ${most}:${least}.`;
  return [least, most];
}
