// The last lines of a rank; the view scrolls with them while its end is in sight.
import { useLayoutEffect, useRef } from 'preact/hooks';
import { OutputLine } from './OutputLine';
import { dropped, type Line } from './outputs';

export function RankOutput(props: { rank: string; lines: Line[]; over: boolean; link?: string | null }) {
  const { lines, link } = props;
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  // Lines are keyed by number, so that a selection remains when lines above it go.
  const known = useRef({ lines, first: 0 });
  if (known.current.lines !== lines)
    known.current = { lines, first: known.current.first + dropped(known.current.lines, lines) };
  const { first } = known.current;
  // A layout effect scrolls before the page is painted: else each new line would be painted twice.
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = () => {
    const pre = box.current;
    if (pre) follows.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 20;
  };
  return (
    <>
      <pre
        class="je-output"
        ref={box}
        onScroll={scrolled}
        tabIndex={0}
        role="group"
        aria-label={`output of rank ${props.rank}`}
      >
        {lines.length ? (
          lines.map((line, index) => <OutputLine key={first + index} line={line} />)
        ) : (
          <span class="je-quiet">{props.over ? 'printed nothing' : 'nothing printed yet'}</span>
        )}
      </pre>
      {link && lines.length > 0 && (
        <p class="je-quiet">
          the last lines;{' '}
          <a href={link} target="_blank" rel="noreferrer">
            open the whole output
          </a>
        </p>
      )}
    </>
  );
}
