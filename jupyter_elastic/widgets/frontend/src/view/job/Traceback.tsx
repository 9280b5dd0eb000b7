// A traceback in IPython's colours.
import type { ComponentChildren } from 'preact';

const FRAME = /^(\s*File )("[^"]*"|\S+)(, line )(\d+)(?:(, in )(.*))?$/;
const ERROR = /^([A-Za-z_][\w.]*)(: .*|:)?$/;
const CARETS = /^\s*[~^]+\s*$/;

function coloured(line: string): ComponentChildren {
  const frame = FRAME.exec(line);
  if (frame) {
    const [, file, path, at, number, within, name] = frame;
    return (
      <>
        {file}
        <span class="je-tb-path">{path}</span>
        {at}
        <span class="je-tb-path">{number}</span>
        {within}
        <span class="je-tb-name">{name}</span>
      </>
    );
  }
  if (CARETS.test(line)) return <span class="je-tb-error">{line}</span>;
  const error = ERROR.exec(line);
  return error ? (
    <>
      <span class="je-tb-error">{error[1]}</span>
      {error[2]}
    </>
  ) : (
    line
  );
}

export function Traceback({ text }: { text: string }) {
  if (!text) return null;
  return (
    <pre class="je-output je-traceback" tabIndex={0} role="group" aria-label="traceback of the first failing rank">
      {text.split('\n').map((line, index) => (
        <span key={index}>
          {coloured(line)}
          {'\n'}
        </span>
      ))}
    </pre>
  );
}
