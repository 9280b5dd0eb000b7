// What the ranks of a job print and display: a tab for each.
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { JobPage } from '../screens';

export interface RankActions {
  /** Where the whole output of a rank can be opened; null where there is no server to ask. */
  link?: (rank: number) => string | null;
  /** This rank's lines are in sight now. */
  look?: (rank: number) => void;
}

/** The last lines of each rank, by rank as text. */
export type Outputs = JobPage['outputs'];

/** A line of a rank, [stream, text], or what it displays: ['image', plain, address], ['html', plain, markup]. */
type Line = Outputs[string][number];

const FRAME =
  '<style>body{margin:4px;font:13px/1.4 sans-serif;background:#fff;color:#212121}table{border-collapse:collapse}' +
  'td,th{padding:2px 8px;text-align:right}</style>';

/** HTML stands in a frame that runs no script and can't tell its height: that goes by its rows. */
function Shown({ line: [stream, plain, content] }: { line: Line }) {
  if (stream === 'image') return <img class="je-image" src={content} alt={plain} />;
  if (stream === 'html' && content !== undefined) {
    const rows = content.split(/<tr|<p/).length;
    return <iframe class="je-html" sandbox="" srcdoc={FRAME + content} title={plain.slice(0, 200)} height={Math.min(320, Math.max(60, 28 * rows))} />;
  }
  return (
    <span class={`je-line je-${stream}`}>
      {plain}
      {'\n'}
    </span>
  );
}

/** How many of the lines before are gone, where the rest of them are the first now; the last one may have grown. */
function gone(before: Line[], now: Line[]): number {
  const same = (a: Line, b: Line) => a[0] === b[0] && a[1] === b[1];
  for (let drop = 0; drop < before.length; drop++) {
    const common = Math.min(before.length - drop, now.length) - 1;
    let run = 0;
    while (run < common && same(before[drop + run], now[run])) run++;
    if (run >= common) return drop;
  }
  return before.length;
}

function Output(props: { rank: string; lines: Line[]; over: boolean; link?: string | null }) {
  const { lines, link } = props;
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  // By their own numbers, so that what is selected stays selected when lines above it go.
  const known = useRef({ lines, first: 0 });
  if (known.current.lines !== lines) known.current = { lines, first: known.current.first + gone(known.current.lines, lines) };
  const { first } = known.current;
  // Before it is painted: else each new line would be painted twice.
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = () => {
    const pre = box.current;
    if (pre) follows.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 20;
  };
  return (
    <>
      <pre class="je-output" ref={box} onScroll={scrolled} tabIndex={0} role="group" aria-label={`output of rank ${props.rank}`}>
        {lines.length ? (
          lines.map((line, index) => <Shown key={first + index} line={line} />)
        ) : (
          <span class="je-quiet">{props.over ? 'printed nothing' : 'nothing printed yet'}</span>
        )}
      </pre>
      {link && lines.length > 0 && (
        <p class="je-quiet">
          the last lines; <a href={link} target="_blank" rel="noreferrer">open the whole output</a>
        </p>
      )}
    </>
  );
}

/** `failed`: the rank that failed first; it is opened, and marked. `over`: the job has ended. */
export function Ranks({ outputs, failed, over, actions }: { outputs: Outputs; failed?: number | null; over: boolean; actions: RankActions }) {
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
        <Output key={rank} rank={rank} lines={outputs[rank]} over={over} link={actions.link?.(Number(rank))} />
      </div>
    </div>
  );
}
