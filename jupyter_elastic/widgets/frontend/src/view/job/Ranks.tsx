// The output of a job's ranks: a tab for each.
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import type { RankActions } from '../../actions';
import { RankOutput } from './RankOutput';
import type { Outputs } from './outputs';

/** `failed` is the rank that failed first, which is opened and marked; `over` is true once the job has ended. */
export function Ranks({
  outputs,
  failed,
  over,
  actions
}: {
  outputs: Outputs;
  failed?: number | null;
  over: boolean;
  actions: RankActions;
}) {
  const [chosen, setChosen] = useState('');
  const id = useId();
  const tabs = useRef<HTMLDivElement>(null);
  const ranks = Object.keys(outputs).sort((a, b) => Number(a) - Number(b));
  const bad = failed === null || failed === undefined ? '' : String(failed);
  const rank = [chosen, bad].find(one => ranks.includes(one)) ?? ranks[0];
  const many = ranks.length > 8;
  useEffect(() => {
    if (bad && rank === bad) actions.look?.(failed!);
  }, [bad]);
  if (!ranks.length) return null;
  const choose = (one: string) => {
    setChosen(one);
    actions.look?.(Number(one));
  };
  const keys = (event: KeyboardEvent) => {
    const at = ranks.indexOf(rank);
    const places: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ranks.length - 1 };
    const next = places[event.key];
    if (ranks[next] === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab's own keys
    choose(ranks[next]);
    tabs.current?.querySelectorAll<HTMLElement>('[role=tab]')[next].focus();
  };
  return (
    <div>
      <div class={`je-tabs${many ? ' je-many' : ''}`} role="tablist" aria-label="ranks" ref={tabs} onKeyDown={keys}>
        {many && (
          <span class="je-quiet" role="presentation">
            rank
          </span>
        )}
        {ranks.map(one => (
          <button
            key={one}
            id={`${id}-${one}`}
            role="tab"
            class={one === bad ? 'je-failed' : undefined}
            aria-label={`rank ${one}${one === bad ? ', failed' : ''}`}
            aria-selected={one === rank}
            aria-controls={one === rank ? id : undefined}
            tabIndex={one === rank ? 0 : -1}
            onClick={() => choose(one)}
          >
            {one === bad && <span aria-hidden="true">✕ </span>}
            {many ? one : `rank ${one}`}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={id} aria-labelledby={`${id}-${rank}`}>
        <RankOutput key={rank} rank={rank} lines={outputs[rank]} over={over} link={actions.link?.(Number(rank))} />
      </div>
    </div>
  );
}
