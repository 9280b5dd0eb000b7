// One job in a notebook, wherever anywidget runs. Controls go to the server where the page has one, else over the comm.
import { render } from 'preact';
import { ask } from './ask';
import { Comm, type Model } from './comm';
import { findHome, NOT_OURS, Refused, Server } from './server';
import type { EarlierRun, JobPage, Series } from './screens';
import { JobView } from './view/JobView';

/** Out of sight for so long it sleeps: a view that comes and goes while the page is set up does not. */
const DOZE_MS = 2000;

function start({ model, el }: { model: Model; el: HTMLElement }) {
  const home = findHome();
  let server = home && new Server(home);
  const comm = new Comm(model);
  let problem = '';
  // The kernel feeds this view whatever becomes of the server; what is wrong with that is shown, and its REST is not used.
  void server?.unfit().then(unfit => {
    if (!unfit) return;
    [server, problem] = [null, unfit === NOT_OURS ? '' : unfit];
    draw();
  });
  // Where the page has another view of the job this one is not in sight, and the kernel need not feed it as often.
  let awake = true;
  let dozing: ReturnType<typeof setTimeout> | undefined;
  const tell = (now: boolean) => {
    if (now === awake) return;
    awake = now;
    comm.ask({ type: awake ? 'wake' : 'sleep' }).catch(() => undefined);
    draw();
  };
  // While it lives the static form of the same job is not shown, wherever a front end has put that.
  const covers = document.head.appendChild(document.createElement('style'));
  const cover = (page: JobPage) => {
    const folder = /^\w+$/.test(page.folder) ? page.folder : '';
    const rule = folder && `.jelastic-static.jelastic-${folder} { display: none; }`;
    if (covers.textContent !== rule) covers.textContent = rule;
  };
  comm.ask({ type: 'wake' }).catch(() => undefined); // the kernel learns that somebody draws this
  const looked = new ResizeObserver(() => {
    clearTimeout(dozing);
    if (el.getClientRects().length) tell(true);
    else dozing = setTimeout(tell, DOZE_MS, false);
  });
  const draw = () => {
    if (!awake) return;
    const text = model.get('page') as string;
    if (!text) return;
    const page: JobPage = JSON.parse(text);
    cover(page);
    const job = page.screen.job;
    const rest = server;
    const reach = async (over: (server: Server) => Promise<void>, command: Record<string, unknown>) => {
      try {
        if (rest) return await over(rest);
      } catch (error) {
        if (error instanceof Refused) throw error;
      }
      return comm.ask<void>(command);
    };
    const actions = {
      cancel: () => reach(s => s.cancel(job), { type: 'cancel' }),
      resize: (least: number, most: number) => reach(s => s.resize(job, least, most), { type: 'resize', least, most }),
      background: model.get('waits') ? () => reach(s => s.background(job), { type: 'background' }) : undefined,
      script: rest?.actions(job).script,
      link: (rank: number) => rest?.output(job, rank) ?? null,
      earlier: { runs: () => comm.ask<EarlierRun[]>({ type: 'earlier' }), metrics: (job: number) => comm.ask<Series[]>({ type: 'metrics', job }) }
    };
    render(<JobView page={problem ? { ...page, notice: problem } : page} actions={actions} ask={ask} />, el);
  };
  model.on('change:page', draw);
  model.on('change:waits', draw);
  draw();
  looked.observe(el);
  return () => {
    clearTimeout(dozing);
    looked.disconnect();
    model.off('change:page', draw);
    model.off('change:waits', draw);
    comm.close();
    covers.remove();
    render(null, el);
  };
}

export default { render: start };
