// Opens a job in its tab, for what JupyterLab makes without telling it of its shell: the renderer of the timeline.

/** `below`: the tab that it was opened from, below which it is to stand. Not there while our plugin is not. */
export const jobs: { open?: (job: number, below?: string) => void } = {};
