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
  const server = home && new Server(home);
  let problem = '';
  const draw = () => {
    const text = model.get('page') as string;
    if (!text) return;
    const page: JobPage = JSON.parse(text);
    const job = page.screen.job;
    const reach = (over: (server: Server) => Promise<void>, comm: Record<string, unknown>) => {
      if (!server) return model.send(comm);
      over(server).catch(() => model.send(comm));
    };
    const actions = {
      cancel: () => reach(s => s.cancel(job), { type: 'cancel' }),
      resize: (least: number, most: number) => reach(s => s.resize(job, least, most), { type: 'resize', least, most }),
      background: model.get('waits') ? () => reach(s => s.background(job), { type: 'background' }) : undefined,
      script: server ? () => void server.script(job).then(text => navigator.clipboard.writeText(text)).catch(error => ((problem = error.message), draw())) : undefined,
      link: (rank: number) => server?.output(job, rank) ?? null
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
