// The field of a policy's option.
import type { Property } from '../../actions';

export function PolicyOption(props: {
  name: string;
  property: Property;
  value: unknown;
  change: (value: unknown) => void;
}) {
  const { name, property, value, change } = props;
  const kind = property.type ?? property.anyOf?.find(p => p.type && p.type !== 'null')?.type;
  let field;
  if (property.enum) {
    field = (
      <select id={`je-${name}`} value={String(value)} onChange={e => change(e.currentTarget.value)}>
        {property.enum.map(choice => (
          <option key={String(choice)}>{choice}</option>
        ))}
      </select>
    );
  } else if (kind === 'boolean') {
    field = (
      <input
        id={`je-${name}`}
        type="checkbox"
        checked={Boolean(value)}
        onChange={e => change(e.currentTarget.checked)}
      />
    );
  } else if (kind === 'number' || kind === 'integer') {
    field = (
      <input
        id={`je-${name}`}
        type="number"
        step="any"
        min={property.minimum}
        max={property.maximum}
        value={value === null || value === undefined ? '' : String(value)}
        onChange={e => change(e.currentTarget.value === '' ? null : Number(e.currentTarget.value))}
      />
    );
  } else {
    field = (
      <input id={`je-${name}`} type="text" value={String(value ?? '')} onChange={e => change(e.currentTarget.value)} />
    );
  }
  return (
    <div class="je-option">
      <label for={`je-${name}`}>{name}</label>
      {field}
      {property.description && <small>{property.description}</small>}
    </div>
  );
}
