// Folds the view of a job that is over to a line.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ENDED } from '../../phases';
import type { JobScreen } from '../../screens';

/**
 * Return whether the view is open, its setter, and the reference of its root. The view of a job that ends folds, unless
 * the job failed or a person uses the view.
 */
export function useFold(
  screen: JobScreen,
  whole: boolean
): [boolean, (open: boolean) => void, { current: HTMLDivElement | null }] {
  const over = ENDED.includes(screen.phase);
  const stays = whole || !over || screen.phase === 'failed';
  const [open, setOpen] = useState(stays);
  const root = useRef<HTMLDivElement>(null);
  const drawn = useRef(false);
  useEffect(() => {
    const view = root.current!;
    if (drawn.current) setOpen(stays || view.matches(':hover') || view.contains(document.activeElement));
    drawn.current = true;
  }, [over]);
  return [open, setOpen, root];
}
