// The view of a job: its state in words, its progress, plots and output, and what a person can do to it.
import { useId, useState } from 'preact/hooks';
import type { JobActions } from '../../actions';
import type { Ask } from '../../ask';
import { slotRange } from '../../format';
import { ENDED } from '../../phases';
import type { JobPage } from '../../screens';
import { Problem } from '../Problem';
import { useRequests } from '../requests';
import { CancelButton } from './CancelButton';
import { CopyScript } from './CopyScript';
import { CurrentUsage } from './CurrentUsage';
import { Figures } from './Figures';
import { Plots } from './Plots';
import { Progress } from './Progress';
import { Ranks } from './Ranks';
import { ResizeField } from './ResizeField';
import { SizeHistory } from './SizeHistory';
import { Speeds } from './Speeds';
import { Summary } from './Summary';
import { Traceback } from './Traceback';
import { UsagePlots } from './UsagePlots';
import { useFold } from './fold';

/** With `whole` the view stays open when the job is over. */
export function JobView(props: { page: JobPage; actions: JobActions; ask: Ask; whole?: boolean }) {
  const { page } = props;
  const { screen } = page;
  const { actions } = props;
  const requests = useRequests();
  const id = useId();
  const [code, setCode] = useState('');
  const [open, setOpen, root] = useFold(screen, props.whole ?? false);
  const showCode = async () => {
    if (code) setCode('');
    else await requests.run('code', async () => setCode(await actions.code!()));
  };
  const over = ENDED.includes(screen.phase);
  // Screen readers announce its changes; the rest of the state counts seconds.
  const announced = screen.state.split(';')[0];
  const noted = screen.sizes.length ? screen.sizes[screen.sizes.length - 1].reason : '';
  const wants = slotRange(screen);
  return (
    <div
      class={`je-root je-job${open ? '' : ' je-folded'}${page.notice && !over ? ' je-stale' : ''}`}
      role="group"
      aria-label={`job ${screen.job}, ${screen.name}`}
      ref={root}
    >
      {page.notice && (
        <p class="je-banner" role="alert">
          {page.notice}
        </p>
      )}
      <div class="je-head">
        <strong>{screen.name}</strong>
        <span class="je-quiet">
          job {screen.job}
          {open &&
            ` · ${screen.engine} · ${over ? '' : `${screen.slots.length} of `}${wants} ${screen.unit}${wants === '1' ? '' : 's'}`}
        </span>
        <span class="je-buttons">
          {!over && actions.background && (
            <button
              disabled={requests.busy === 'background'}
              onClick={() => void requests.run('background', actions.background!)}
            >
              Send to background
            </button>
          )}
          {actions.cell && <button onClick={actions.cell}>Show the cell</button>}
          {!actions.cell && actions.code && (
            <button aria-expanded={code !== ''} onClick={() => void showCode()}>
              {code ? 'Hide the code' : 'Show the code'}
            </button>
          )}
          {!over && actions.resize && <ResizeField screen={screen} actions={actions} requests={requests} />}
          {open && actions.script && <CopyScript copy={actions.script} requests={requests} />}
          {!over && actions.cancel && (
            <CancelButton job={screen} now={screen.now} cancel={actions.cancel} requests={requests} ask={props.ask} />
          )}
          {over && (
            <button
              aria-expanded={open}
              aria-controls={open ? id : undefined}
              aria-label={`${open ? 'Less' : 'Plots and output'} of job ${screen.job}`}
              onClick={() => setOpen(!open)}
            >
              {open ? 'Less' : 'Plots and output'}
            </button>
          )}
        </span>
      </div>
      <Problem requests={requests} />
      {code && (
        <pre class="je-cell" tabIndex={0} role="region" aria-label={`code of job ${screen.job}`}>
          {code}
        </pre>
      )}
      <div class={`je-state je-is-${screen.phase}`}>
        <span>
          <span role="status">{announced}</span>
          {screen.state.slice(announced.length)}
        </span>
        {!open && <Summary screen={screen} />}
      </div>
      {screen.warning && <p class="je-banner">{screen.warning}</p>}
      {screen.detail && screen.detail !== noted && <p class="je-quiet">{screen.detail}</p>}
      {open && (
        <div class="je-details" id={id}>
          {screen.use?.waits && (
            <p class="je-banner" role="status">
              {screen.use.waits}
            </p>
          )}
          <Traceback text={page.traceback} />
          <Progress screen={screen} />
          <Figures screen={screen} />
          {screen.use && <CurrentUsage use={screen.use} slots={screen.slots.length} />}
          <SizeHistory screen={screen} />
          {screen.metrics.length > 0 && <Plots screen={screen} earlier={actions.earlier} />}
          <Speeds fit={screen.speeds} />
          <UsagePlots screen={screen} />
          <Ranks outputs={page.outputs} failed={page.failed_rank} over={over} actions={actions} />
        </div>
      )}
    </div>
  );
}
