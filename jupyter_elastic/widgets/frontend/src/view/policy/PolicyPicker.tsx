// The choice of a policy: its description, its options, its forecast, and only then Apply.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { PickerActions, Policies, Property, Schema } from '../../actions';
import { messageOf } from '../../format';
import type { PolicyForecast, PolicyInfo, PoolScreen } from '../../screens';
import { PolicyOption } from './PolicyOption';
import { WhatIf } from './WhatIf';

function properties(schema: PolicyInfo['schema']): [string, Property][] {
  let found = schema as Schema | undefined;
  if (found?.$ref) found = found.$defs?.[found.$ref.split('/').pop() ?? ''];
  return Object.entries(found?.properties ?? {});
}

export function PolicyPicker(props: { screen: PoolScreen; actions: PickerActions; close: () => void }) {
  const { actions, screen } = props;
  const active = screen.policy;
  const [available, setAvailable] = useState<Policies | null>(null);
  const [name, setName] = useState(active);
  const [options, setOptions] = useState<Record<string, unknown>>({});
  const [reason, setReason] = useState('');
  const [forecasts, setForecasts] = useState<PolicyForecast[] | null>(null);
  const madeAt = useRef(0);
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    actions.policies().then(setAvailable, error => setProblem(messageOf(error)));
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
      error => current && setProblem(messageOf(error))
    );
    return () => {
      current = false;
    };
  }, [name, JSON.stringify(options), available]);

  if (!available) return <div class="je-picker">{problem || 'Asking the pool…'}</div>;
  const same = name === active && !Object.keys(options).length;
  const shadowed = screen.shadows.some(row => row.policy === name);
  const carryOut = (answer: Promise<void>) => {
    const focused = document.activeElement as HTMLElement | null; // a button that is disabled loses the focus
    setBusy(true);
    answer.then(props.close, error => {
      setProblem(messageOf(error));
      setBusy(false);
      requestAnimationFrame(() => focused?.focus());
    });
  };
  const apply = () => carryOut(actions.use(name, options, reason));
  const shadow = () => carryOut(actions.shadow(name, options));
  const present = forecasts?.find(forecast => forecast.policy === active);
  const future = forecasts?.find(forecast => forecast.policy === name);
  // This is no form: in a notebook the browser does not submit forms by Enter.
  const keys = (event: KeyboardEvent) => {
    if (event.key === 'Escape') props.close();
    else if (event.key === 'Enter' && event.target instanceof HTMLInputElement && !busy && !same && !available.refusal)
      apply();
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
          <PolicyOption
            key={`${name}.${option}`}
            name={option}
            property={property}
            value={options[option] ?? chosen.options?.[option] ?? property.default}
            change={value => setOptions({ ...options, [option]: value })}
          />
        ))}
      {!forecasts && !problem && <p class="je-quiet">Predicting…</p>}
      {present && future && !future.note && name !== active && (
        <WhatIf
          present={present}
          chosen={future}
          age={Date.now() / 1000 - madeAt.current}
          names={new Map(screen.jobs.map(job => [job.job, job]))}
        />
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
        <input
          type="text"
          placeholder="reason (kept in the history)"
          aria-label="reason"
          value={reason}
          onInput={e => setReason(e.currentTarget.value)}
        />
      )}
      <div class="je-policy-line">
        <button
          title="Ask it beside the policy that decides; nothing changes in the pool"
          disabled={busy || same}
          onClick={shadow}
        >
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
