// Opens a job in its tab, for renderers: JupyterLab makes them without a reference to its shell.

/**
 * `below` is the tab from which the job is opened: the job's tab stands below that one. `open` is missing until our
 * plugin runs.
 */
export const jobs: { open?: (job: number, below?: string) => void } = {};
