// Choose a policy: what it is, its options, what it would do, and only then Apply.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Forecast, PickerActions, Policies, PolicyInfo, Property, Schema } from '../actions';
import { difference, duration } from '../format';
import type { PoolScreen } from '../screens';

function properties(schema: Schema | undefined): [string, Property][] {
  let found = schema;
  if (found?.$ref) found = found.$defs?.[found.$ref.split('/').pop() ?? ''];
  return Object.entries(found?.properties ?? {});
}

function Option(props: { name: string; property: Property; value: unknown; change: (value: unknown) => void }) {
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
    field = <input id={`je-${name}`} type="checkbox" checked={Boolean(value)} onChange={e => change(e.currentTarget.checked)} />;
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
    field = <input id={`je-${name}`} type="text" value={String(value ?? '')} onChange={e => change(e.currentTarget.value)} />;
  }
  return (
    <div class="je-option">
      <label for={`je-${name}`}>{name}</label>
      {field}
      {property.description && <small>{property.description}</small>}
    </div>
  );
}

function time(seconds: number | null): string {
  return seconds === null ? '–' : duration(seconds);
}

/** What would be, and by how much that differs from what is; what is about the same is not marked. */
function Then({ now, then, trend }: { now: number | null; then: number | null; trend: number }) {
  return (
    <td class={trend < 0 ? 'je-better' : trend > 0 ? 'je-worse' : ''}>
      {time(then)}
      {trend !== 0 && now !== null && then !== null && <div>{difference(now, then)}</div>}
    </td>
  );
}

/** `age`: seconds since the forecasts were made. */
function WhatIf(props: { present: Forecast; chosen: Forecast; age: number; names: Map<number, string> }) {
  const { present, chosen, age, names } = props;
  if (!chosen.jobs.length) return <p class="je-quiet">No jobs to predict for.</p>;
  const before = new Map(present.jobs.map(job => [job.job, job]));
  const shown = chosen.jobs.slice(0, 12);
  const left = (finish: number | null | undefined) => (finish === null || finish === undefined ? null : finish - age);
  const trend = (job: number) => (chosen.losers.includes(job) ? 1 : chosen.winners.includes(job) ? -1 : 0);
  return (
    <>
      <table class="je-table" aria-label="what the policy would change">
        <thead>
          <tr>
            <th scope="col">predicted</th>
            <th scope="col">{present.policy}</th>
            <th scope="col">{chosen.policy}</th>
          </tr>
        </thead>
        <tbody>
          <tr>
            <td>average completion time</td>
            <td>{time(present.avg_jct_s)}</td>
            <Then now={present.avg_jct_s} then={chosen.avg_jct_s} trend={chosen.avg_jct_trend} />
          </tr>
          <tr>
            <td>all finish in</td>
            <td>{time(present.makespan_s)}</td>
            <Then now={present.makespan_s} then={chosen.makespan_s} trend={chosen.makespan_trend} />
          </tr>
          {shown.map(job => {
            const now = left(before.get(job.job)?.finish_s);
            return (
              <tr key={job.job}>
                <td>
                  job {job.job} ends in
                  <div class="je-quiet">{names.get(job.job)}</div>
                </td>
                <td>{time(now)}</td>
                <Then now={now} then={left(job.finish_s)} trend={trend(job.job)} />
              </tr>
            );
          })}
        </tbody>
      </table>
      {chosen.jobs.length > shown.length && <p class="je-quiet">and {chosen.jobs.length - shown.length} more jobs</p>}
      <p class="je-quiet">
        {chosen.losers.length ? `Later than now: ${chosen.losers.slice(0, 10).map(job => `job ${job}`).join(', ')}.` : 'No job would end later.'}
      </p>
    </>
  );
}

export function PolicyPicker(props: { screen: PoolScreen; actions: PickerActions; close: () => void }) {
  const { actions, screen } = props;
  const active = screen.policy;
  const [available, setAvailable] = useState<Policies | null>(null);
  const [name, setName] = useState(active);
  const [options, setOptions] = useState<Record<string, unknown>>({});
  const [reason, setReason] = useState('');
  const [forecasts, setForecasts] = useState<Forecast[] | null>(null);
  const madeAt = useRef(0);
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    actions.policies().then(setAvailable, error => setProblem(String(error.message ?? error)));
  }, []);
  const chosen: PolicyInfo | undefined = available?.policies.find(policy => policy.name === name);
  useEffect(() => {
    setForecasts(null);
    if (!chosen) return;
    let current = true;
    setProblem('');
    actions.forecast(name, options).then(
      found => {
        if (!current) return;
        madeAt.current = Date.now() / 1000;
        setForecasts(found);
      },
      error => current && setProblem(String(error.message ?? error))
    );
    return () => {
      current = false;
    };
  }, [name, JSON.stringify(options), available]);

  if (!available) return <div class="je-picker">{problem || 'Asking the pool…'}</div>;
  const same = name === active && !Object.keys(options).length;
  const shadowed = screen.shadows.some(row => row.policy === name);
  const carryOut = (answer: Promise<void>) => {
    const focused = document.activeElement as HTMLElement | null; // a button that is disabled loses it
    setBusy(true);
    answer.then(props.close, error => {
      setProblem(String(error.message ?? error));
      setBusy(false);
      requestAnimationFrame(() => focused?.focus());
    });
  };
  const apply = () => carryOut(actions.use(name, options, reason));
  const shadow = () => carryOut(actions.shadow(name, options));
  const present = forecasts?.find(forecast => forecast.policy === active);
  const future = forecasts?.find(forecast => forecast.policy === name);
  // Not a form: in a notebook the browser does not submit one by Enter.
  const keys = (event: KeyboardEvent) => {
    if (event.key === 'Escape') props.close();
    else if (event.key === 'Enter' && event.target instanceof HTMLInputElement && !busy && !same && !available.refusal) apply();
    else return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab's own keys
  };
  return (
    <div class="je-picker" onKeyDown={keys} data-lm-suppress-shortcuts="true">
      <select aria-label="policy" value={name} onChange={e => (setName(e.currentTarget.value), setOptions({}))}>
        {available.policies.map(policy => (
          <option key={policy.name} value={policy.name}>
            {policy.name}
            {policy.name === active ? ' (now)' : ''}
          </option>
        ))}
      </select>
      {chosen && <p>{chosen.summary}</p>}
      {chosen &&
        properties(chosen.schema).map(([option, property]) => (
          <Option
            key={`${name}.${option}`}
            name={option}
            property={property}
            value={options[option] ?? chosen.options?.[option] ?? property.default}
            change={value => setOptions({ ...options, [option]: value })}
          />
        ))}
      {!forecasts && !problem && <p class="je-quiet">Predicting…</p>}
      {present && future && !future.note && name !== active && (
        <WhatIf present={present} chosen={future} age={Date.now() / 1000 - madeAt.current} names={new Map(screen.jobs.map(job => [job.job, job.name]))} />
      )}
      {future?.note && <p class="je-bad">{future.note}</p>}
      {problem && (
        <p class="je-bad" role="alert">
          {problem}
        </p>
      )}
      {available.refusal ? (
        <p class="je-quiet">{available.refusal}</p>
      ) : (
        <input type="text" placeholder="reason (kept in the history)" aria-label="reason" value={reason} onInput={e => setReason(e.currentTarget.value)} />
      )}
      <div class="je-policy-line">
        <button title="Ask it beside the policy that decides; nothing changes in the pool" disabled={busy || same} onClick={shadow}>
          {shadowed ? 'Restart the shadow' : 'Run as a shadow'}
        </button>
        {!available.refusal && (
          <button class="je-main" disabled={busy || same} onClick={apply}>
            Apply {name}
          </button>
        )}
      </div>
    </div>
  );
}
