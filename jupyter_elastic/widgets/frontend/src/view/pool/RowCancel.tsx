// The button that cancels the job of a line.
import { type Cancelling, useCancel } from '../requests';

export function RowCancel(props: Cancelling) {
  const [asked, click] = useCancel(props);
  const title = `${asked ? 'Cancelling' : 'Cancel'} job ${props.job.job}`;
  return (
    <button class="je-icon" title={title} aria-label={title} disabled={asked} onClick={() => void click()}>
      {asked ? '…' : '✕'}
    </button>
  );
}
