// The field in which a person changes the size of a job.
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { JobScreen } from '../../screens';
import { readSlots } from '../../slots';
import type { Requests } from '../requests';
import type { JobActions } from '../../actions';

export function ResizeField({
  screen,
  actions,
  requests
}: {
  screen: JobScreen;
  actions: JobActions;
  requests: Requests;
}) {
  const [open, setOpen] = useState(false);
  const [range, setRange] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const opened = useRef(false);
  // The pressed button goes, and focus would fall to the page: move it to the element that gets the next key, before
  // that key.
  useLayoutEffect(() => {
    if (open) field.current?.select();
    else if (opened.current) opener.current?.focus();
    opened.current = open;
  }, [open]);
  if (!open) {
    return (
      <button ref={opener} onClick={() => (setRange(`${screen.min_slots}:${screen.max_slots}`), setOpen(true))}>
        Resize…
      </button>
    );
  }
  const busy = requests.busy === 'resize';
  const request = async () => {
    const slots = readSlots(range);
    if (typeof slots === 'string') throw new Error(slots);
    await actions.resize!(...slots);
  };
  const apply = async () => {
    if (!busy && (await requests.run('resize', request))) setOpen(false);
  };
  // This is no form: below a cell the browser does not submit forms by Enter.
  const keys = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' && event.key !== 'Escape') return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === 'Enter') void apply();
    else setOpen(false);
  };
  return (
    <span class="je-resize">
      <input
        ref={field}
        size={6}
        value={range}
        aria-label="slots, MIN:MAX"
        onInput={e => setRange(e.currentTarget.value)}
        onKeyDown={keys}
      />
      <button disabled={busy} onClick={() => void apply()}>
        {busy ? 'Applying…' : 'Apply'}
      </button>
      <button class="je-icon" title="Close" aria-label="Close the resize field" onClick={() => setOpen(false)}>
        ✕
      </button>
    </span>
  );
}
