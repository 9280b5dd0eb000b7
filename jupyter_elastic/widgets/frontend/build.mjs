// Bundles the notebook views (anywidget modules) and their style into ../static, which the wheel ships.
import { build } from 'esbuild';

await build({
  entryPoints: { job: 'src/job_widget.tsx', job_loader: 'src/job_loader.ts', pool: 'src/pool_widget.tsx', elastic: 'style/index.css' },
  outdir: '../static',
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2020',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none'
});
