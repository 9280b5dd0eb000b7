// One job in a notebook, wherever anywidget runs. Controls go to the server where the page has one, else over the comm.
import { render } from 'preact';
import { findHome, Server } from './server';
import { JobView, type JobPage } from './view/JobView';

interface Model {
  get(name: string): unknown;
  on(event: string, handler: () => void): void;
  off(event: string, handler: () => void): void;
  send(content: unknown): void;
}

function start({ model, el }: { model: Model; el: HTMLElement }) {
  const home = findHome();
  let server = home && new Server(home);
  let problem = '';
  // The kernel feeds this view whatever becomes of the server; what is wrong with that is said, and its REST left alone.
  void server?.unfit().then(unfit => {
    if (!unfit) return;
    [server, problem] = [null, unfit];
    draw();
  });
  const draw = () => {
    const text = model.get('page') as string;
    if (!text) return;
    const page: JobPage = JSON.parse(text);
    const job = page.screen.job;
    const rest = server;
    const reach = (over: (server: Server) => Promise<void>, comm: Record<string, unknown>) => {
      if (!rest) return model.send(comm);
      over(rest).catch(() => model.send(comm));
    };
    const actions = {
      cancel: () => reach(s => s.cancel(job), { type: 'cancel' }),
      resize: (least: number, most: number) => reach(s => s.resize(job, least, most), { type: 'resize', least, most }),
      background: model.get('waits') ? () => reach(s => s.background(job), { type: 'background' }) : undefined,
      script: rest ? () => void rest.script(job).then(text => navigator.clipboard.writeText(text)).catch(error => ((problem = error.message), draw())) : undefined,
      link: (rank: number) => rest?.output(job, rank) ?? null
    };
    render(<JobView page={problem ? { ...page, notice: problem } : page} actions={actions} />, el);
  };
  model.on('change:page', draw);
  model.on('change:waits', draw);
  draw();
  return () => {
    model.off('change:page', draw);
    model.off('change:waits', draw);
    render(null, el);
  };
}

export default { render: start };
