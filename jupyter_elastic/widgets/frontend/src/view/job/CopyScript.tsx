// The button that copies a job's cell as a script.
import { useState } from 'preact/hooks';
import type { Requests } from '../requests';

/** Shows for a moment that it has copied: nothing else on the page does. */
export function CopyScript({ copy, requests }: { copy: () => Promise<unknown>; requests: Requests }) {
  const [copied, setCopied] = useState(false);
  const click = async () => {
    if (!(await requests.run('script', copy))) return;
    setCopied(true);
    setTimeout(setCopied, 3000, false);
  };
  const label = copied ? 'Copied' : 'Copy as script';
  return (
    // A status gives the button around it no name.
    <button aria-label={label} onClick={() => void click()}>
      <span role="status">{label}</span>
    </button>
  );
}
