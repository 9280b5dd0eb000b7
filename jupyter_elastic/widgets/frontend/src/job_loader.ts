// The module of each job's widget: it loads the view's script once a page. Script and style lie in the layout that all
// views of a kernel share, so that a view costs the notebook hundreds of bytes and not tens of thousands.
import type { Model as CommModel } from './comm';

type Model = Pick<CommModel, 'get'>;

interface View {
  render(context: { model: Model; el: HTMLElement }): () => void;
}

const STYLE = 'jupyter-elastic-style';

const page = globalThis as typeof globalThis & { jupyterElasticViews?: Map<string, Promise<View>> };

function view(script: string): Promise<View> {
  const views = (page.jupyterElasticViews ??= new Map());
  let found = views.get(script);
  if (!found) {
    const url = URL.createObjectURL(new Blob([script], { type: 'text/javascript' }));
    found = import(url).then(module => module.default as View).finally(() => URL.revokeObjectURL(url));
    views.set(script, found);
  }
  return found;
}

function useStyle(style: string) {
  let element = document.getElementById(STYLE);
  if (!element) {
    element = document.head.appendChild(document.createElement('style'));
    element.id = STYLE;
  }
  if (element.textContent !== style) element.textContent = style;
}

async function render(context: { model: Model; el: HTMLElement }) {
  const shared = context.model.get('layout') as Model;
  useStyle(shared.get('style') as string);
  return (await view(shared.get('script') as string)).render(context);
}

export default { render };
