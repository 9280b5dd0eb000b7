// The slots that each user holds, beside an equal share.
import type { Colour } from '../../format';
import type { ShareRow } from '../../screens';

export function Shares({ shares, capacity, colour }: { shares: ShareRow[]; capacity: number; colour: Colour }) {
  const scale = (slots: number) => `${(100 * slots) / Math.max(capacity, 1)}%`;
  return (
    <ul class="je-shares">
      {shares.map(share => (
        <li key={share.user} style={colour(share.user)}>
          <span class="je-share-name">{share.user}</span>
          <span
            class="je-share-bar"
            role="img"
            aria-label={`${share.user} holds ${share.held} slots; an equal share is ${share.entitled.toFixed(1)}`}
          >
            <span class="je-share-held" style={`width: ${scale(share.held)}`} />
            <span class="je-share-due" style={`left: ${scale(share.entitled)}`} title="an equal share" />
          </span>
          <span class="je-quiet">
            {share.held} / {Number(share.entitled.toFixed(1))}
          </span>
        </li>
      ))}
    </ul>
  );
}
