// The slots of each host, with the jobs that hold them.
import { aboutHost, type Colour } from '../../format';
import type { HostBox } from '../../screens';

export function SlotMap({ hosts, colour, now }: { hosts: HostBox[]; colour: Colour; now: number }) {
  return (
    <div class="je-map">
      {hosts.map(host => (
        <div class="je-host" key={host.name}>
          <span class="je-host-name" title={host.name}>
            {host.name}
          </span>
          <span class="je-slots" role="list" aria-label={`slots of ${host.name}`}>
            {host.slots.map(slot => {
              const name = `${slot.slot}${slot.for_servers ? ' (for servers)' : ''}`;
              const label =
                slot.state === 'free'
                  ? `${name}: free`
                  : `${name}: ${slot.state}${slot.job === null ? '' : `, job ${slot.job} of ${slot.owner}`}${slot.reason ? `, ${slot.reason}` : ''}`;
              return (
                <span
                  key={slot.slot}
                  role="listitem"
                  class={`je-slot je-${slot.state}${slot.for_servers ? ' je-for-servers' : ''}`}
                  style={slot.job === null ? '' : colour(slot.owner, slot.job)}
                  title={label}
                  aria-label={label}
                >
                  {slot.job ?? ''}
                </span>
              );
            })}
          </span>
          {aboutHost(host, now) && <span class="je-host-about">{aboutHost(host, now)}</span>}
        </div>
      ))}
    </div>
  );
}
