// A bar that shows a part of a whole.

export function Meter({ part, label }: { part: number; label: string }) {
  return (
    <span
      class="je-meter"
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * part)}
    >
      <span style={`width: ${Math.min(100, 100 * part).toFixed(0)}%`} />
    </span>
  );
}
