// The number of a job in its colour; a click opens the job where the page can do that.
import { PALETTE } from '../../timeline';

export function JobNumber(props: { job: number; colour: number; open?: (job: number) => void; name: string }) {
  const inside = <span style={{ background: PALETTE[props.colour] }}>{props.job}</span>;
  if (!props.open) return <span class="je-number">{inside}</span>;
  return (
    <button
      class="je-number"
      aria-label={`Open job ${props.job} ${props.name}`}
      title="Output, plots and story"
      onClick={() => props.open!(props.job)}
    >
      {inside}
    </button>
  );
}
