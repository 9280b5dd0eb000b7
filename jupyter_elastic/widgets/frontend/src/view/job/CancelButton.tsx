// The button that cancels a job.
import { type Cancelling, useCancel } from '../requests';

export function CancelButton(props: Cancelling) {
  const [asked, click] = useCancel(props);
  return (
    <button
      onClick={() => void click()}
      disabled={asked}
      aria-label={`${asked ? 'Cancelling' : 'Cancel'} job ${props.job.job}`}
    >
      {asked ? 'Cancelling…' : 'Cancel'}
    </button>
  );
}
