// The renderers of our own MIME types, for outputs that show a job, the pool or the timeline. JupyterLab loads this
// module by itself.
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { JobRenderer, MIME as JOB } from './JobRenderer';
import { MIME as POOL, PoolRenderer } from './PoolRenderer';
import { MIME as TIMELINE, TimelineRenderer } from './TimelineRenderer';

function extension(
  name: string,
  mimeType: string,
  createRenderer: () => IRenderMime.IRenderer
): IRenderMime.IExtension {
  const rendererFactory = { safe: true, mimeTypes: [mimeType], defaultRank: 0, createRenderer };
  return { id: `jupyter-elastic:${name}-renderer`, rendererFactory, rank: 0, dataType: 'json' };
}

export default [
  extension('job', JOB, () => new JobRenderer()),
  extension('pool', POOL, () => new PoolRenderer()),
  extension('timeline', TIMELINE, () => new TimelineRenderer())
];
