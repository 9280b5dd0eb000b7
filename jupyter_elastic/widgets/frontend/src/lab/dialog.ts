// Asks the questions of ../ask in JupyterLab's own dialog.
import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { Ask } from '../ask';

export const askInLab: Ask = async ({ title, body, accept, refuse }) => {
  const buttons = [Dialog.cancelButton({ label: refuse }), Dialog.warnButton({ label: accept })];
  return (await showDialog({ title, body, buttons })).button.accept;
};
