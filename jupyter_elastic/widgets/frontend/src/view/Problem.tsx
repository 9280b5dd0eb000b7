// A refusal, with a button that closes it.
import type { Requests } from './requests';

export function Problem({ requests }: { requests: Requests }) {
  if (!requests.problem) return null;
  return (
    <div class="je-banner je-error" role="alert">
      <span>{requests.problem}</span>
      <button class="je-icon" title="Close" aria-label="Close" onClick={requests.close}>
        ✕
      </button>
    </div>
  );
}
