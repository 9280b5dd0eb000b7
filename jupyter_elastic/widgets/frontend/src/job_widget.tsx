// A job in a notebook, wherever anywidget runs. Requests go to the server where the page has one, else over the comm.
import { render } from 'preact';
import { ask } from './ask';
import { Comm, type Model } from './comm';
import { findHome } from './home';
import type { EarlierRun, JobPage, Series } from './screens';
import { NOT_OURS, Refused, Server } from './server';
import { StaticForm } from './static_form';
import { JobView } from './view/job/JobView';

/** Milliseconds out of sight after which a view sleeps: views come and go while a page is set up. */
const DOZE_MS = 2000;

function start({ model, el }: { model: Model; el: HTMLElement }) {
  const home = findHome();
  let server = home && new Server(home);
  const comm = new Comm(model);
  let problem = '';
  // The kernel feeds this view. A server that is not fit is not asked, and the view shows why.
  void server?.unfit().then(unfit => {
    if (!unfit) return;
    [server, problem] = [null, unfit === NOT_OURS ? '' : unfit];
    draw();
  });
  // The view is out of sight where the page has another view of the job; then the kernel feeds it less often.
  let awake = true;
  let dozing: ReturnType<typeof setTimeout> | undefined;
  const setAwake = (now: boolean) => {
    if (now === awake) return;
    awake = now;
    comm.ask({ type: awake ? 'wake' : 'sleep' }).catch(() => undefined);
    draw();
  };
  const staticForm = new StaticForm();
  comm.ask({ type: 'wake' }).catch(() => undefined); // the kernel learns that a page draws the job
  const observer = new ResizeObserver(() => {
    clearTimeout(dozing);
    if (el.getClientRects().length) setAwake(true);
    else dozing = setTimeout(setAwake, DOZE_MS, false);
  });
  const draw = () => {
    if (!awake) return;
    const text = model.get('page') as string;
    if (!text) return;
    const page: JobPage = JSON.parse(text);
    staticForm.hide(page.folder);
    const job = page.screen.job;
    const rest = server;
    const request = async (over: (server: Server) => Promise<void>, command: Record<string, unknown>) => {
      try {
        if (rest) return await over(rest);
      } catch (error) {
        if (error instanceof Refused) throw error;
      }
      return comm.ask<void>(command);
    };
    const actions = {
      cancel: () => request(s => s.cancel(job), { type: 'cancel' }),
      resize: (least: number, most: number) =>
        request(s => s.resize(job, least, most), { type: 'resize', least, most }),
      background: model.get('waits') ? () => request(s => s.background(job), { type: 'background' }) : undefined,
      script: rest?.actions(job).script,
      link: (rank: number) => rest?.output(job, rank) ?? null,
      earlier: {
        runs: () => comm.ask<EarlierRun[]>({ type: 'earlier' }),
        metrics: (job: number) => comm.ask<Series[]>({ type: 'metrics', job })
      }
    };
    render(<JobView page={problem ? { ...page, notice: problem } : page} actions={actions} ask={ask} />, el);
  };
  model.on('change:page', draw);
  model.on('change:waits', draw);
  draw();
  observer.observe(el);
  return () => {
    clearTimeout(dozing);
    observer.disconnect();
    model.off('change:page', draw);
    model.off('change:waits', draw);
    comm.close();
    staticForm.show();
    render(null, el);
  };
}

export default { render: start };
