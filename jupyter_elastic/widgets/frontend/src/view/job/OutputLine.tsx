// A line of a rank's output, or a picture or table that the rank displays.
import type { Line } from './outputs';

const FRAME =
  '<style>body{margin:4px;font:13px/1.4 sans-serif;background:#fff;color:#212121}table{border-collapse:collapse}' +
  'td,th{padding:2px 8px;text-align:right}</style>';

/** A frame shows HTML: it runs no script, and its height is guessed from the number of rows. */
export function OutputLine({ line: [stream, plain, content] }: { line: Line }) {
  if (stream === 'image') return <img class="je-image" src={content} alt={plain} />;
  if (stream === 'html' && content !== undefined) {
    const rows = content.split(/<tr|<p/).length;
    return (
      <iframe
        class="je-html"
        sandbox=""
        srcdoc={FRAME + content}
        title={plain.slice(0, 200)}
        height={Math.min(320, Math.max(60, 28 * rows))}
      />
    );
  }
  return (
    <span class={`je-line je-${stream}`}>
      {plain}
      {'\n'}
    </span>
  );
}
