// Generated from the Python structs by scripts/screen_types.py: change those, and run it.
// An optional field is missing where it has its default, or in notebooks that an earlier version saved.

/** A slot: one square of the map of the pool. */
export interface SlotBox {
  slot: string;
  state: 'draining' | 'free' | 'leased' | 'out';
  job: number | null;
  owner: string;
  reason: string;
  /** True for a CPU slot of a pool of GPUs, which only parameter servers may use. */
  for_servers: boolean;
}

/** A host: one row of the map of the pool. */
export interface HostBox {
  name: string;
  slots: SlotBox[];
  /** URL of the host, such as `ssh://lab2`; empty for the machine on which the daemon runs. */
  reach: string;
  /** Time at which the host ends, in seconds since the epoch; null if not known. */
  until: number | null;
  /** Reason why slots of the host are out, or why the viewer can't reach it; else empty. */
  out: string;
}

/** One line of the queue. Times are seconds since the epoch. */
export interface JobRow {
  job: number;
  name: string;
  owner: string;
  /** True if the viewer may change the job. */
  mine: boolean;
  phase: string;
  /**
   * Position in the queue, from 1: by likely start, or by time of submission if that is unknown; null once the job
   * has slots.
   */
  position: number | null;
  held: number;
  min_slots: number;
  max_slots: number;
  submitted_at: number;
  started_at: number | null;
  /** Fraction of the training done, 0 to 1, if the job reports a total. */
  fraction: number | null;
  /** Earliest and latest likely start, in seconds from now; null when not known. */
  wait_s: [number, number] | null;
  reason: string;
}

/** A user's part of the pool: slots held, and an equal share among the users who want slots. */
export interface ShareRow {
  user: string;
  held: number;
  entitled: number;
  queued: number;
  /** Slot-seconds held within the shown history. */
  slot_seconds: number;
}

/** The pool's state from `at` until the next point. */
export interface HistoryPoint {
  at: number;
  leased: Record<string, number>;
  draining: number;
  capacity: number;
  queued: number;
}

/** A switch of the policy. */
export interface SwitchRow {
  at: number;
  by: string;
  name: string;
  previous: string;
  reason: string;
}

/** A text about an action of the policy; `PoolScreen.notes` has the newest first. */
export interface NoteRow {
  at: number;
  job: number | null;
  text: string;
}

/** A job that a shadow would give another number of workers than it holds. */
export interface ShadowDifference {
  job: number;
  name: string;
  owner: string;
  holds: number;
  shadow: number;
}

/**
 * A shadow: a policy whose plans are compared with the active one's and not carried out.  Times are seconds since
 * the epoch.
 */
export interface ShadowRow {
  policy: string;
  options: Record<string, unknown>;
  /** True if the policy's text is from a cell of this notebook. */
  cell: boolean;
  since: number;
  asked: number;
  /** Number of times, of those `asked`, that the shadow would have acted differently. */
  differed: number;
  /** Time since which the shadow has differed without a break; null while it agrees. */
  differs_since: number | null;
  /** Number of unfinished jobs when the shadow was last asked. */
  jobs: number;
  /** The first differences, of `total_differences` in all. */
  differences: ShadowDifference[];
  total_differences: number;
  /** Reason why the shadow could not be asked, or why its plan could not be carried out; else empty. */
  problem: string;
}

/** The pool's whole screen. */
export interface PoolScreen {
  seq: number;
  at: number;
  /** `gpu`, or `cpu` if slots are CPU cores. */
  kind: string;
  user: string;
  /** Text on why the pool takes no jobs now, and what to do; empty while it takes jobs. */
  problem?: string;
  /** Text on who put the pool into maintenance, and why; empty without maintenance. */
  maintenance: string;
  policy: string;
  policy_options: Record<string, unknown>;
  hosts: HostBox[];
  /** Unfinished jobs: those with slots, then those in the queue, each part ordered by (submitted_at, job). */
  jobs: JobRow[];
  /** Number of all unfinished jobs; `jobs` may hold only a part of them. */
  total_jobs: number;
  shares: ShareRow[];
  history: HistoryPoint[];
  switches: SwitchRow[];
  notes: NoteRow[];
  shadows: ShadowRow[];
}

/** An ended job of the viewer. Times are seconds since the epoch. */
export interface EndedRow {
  job: number;
  name: string;
  outcome: string;
  started_at: number | null;
  ended_at: number;
}

/** The pool in a few figures, for a status bar, and the viewer's jobs that ended lately. */
export interface PoolStatus {
  kind: string;
  free: number;
  capacity: number;
  /** Jobs of the viewer that hold slots. */
  running: number;
  waiting: number;
  ended: EndedRow[];
}

/**
 * A size in a job's history: from `at` on it held `slots` slots, for `reason`; all workers paused for `pause_s`.
 * If the number has not changed, `reason` names an event at that time: a worker died, or was replaced.
 */
export interface SizePoint {
  at: number;
  slots: number;
  reason: string;
  pause_s: number;
}

/** A metric's curve, without points that are no number; `last` is in words (`nan` too). */
export interface Series {
  name: string;
  points: [number, number][];
  last: string;
  /** Seconds from the job's submit to each point. */
  times?: number[];
  /** Epoch of each point; empty unless each was reported with one. */
  epochs?: number[];
}

/** The use of a GPU that the job has leased. */
export interface GpuUsage {
  slot: string;
  /** Fraction of the last moments in which the GPU computed, 0 to 1; null if the driver does not report it (MIG). */
  busy: number | null;
  /** Bytes in use by any process. */
  memory: number;
  total: number;
}

/** The use of the whole job at `at` (seconds since the epoch). */
export interface ResourceUsage {
  at: number;
  workers: number;
  /** CPU cores that the workers and the processes they started kept busy. */
  cores: number;
  /** Resident bytes of all of them; a page that two share counts twice. */
  memory: number;
  gpus: GpuUsage[];
  /** Text on which rank waits for which, when one has waited for long. */
  waits: string;
}

/** The speed at a size. */
export interface SizeSpeed {
  workers: number;
  servers: number;
  /** Samples/s, the median of the last reports at this size; null: it never trained at it. */
  measured: number | null;
  /** Samples/s, by the fit. */
  predicted: number;
}

/** The sizes that a job may have or had, fewest servers first, then fewest workers. */
export interface SpeedFit {
  sizes: SizeSpeed[];
  /** Name of the fitted formula: `allreduce`, `sync` or `async`. */
  form: string;
  /** Error of the fit: the median relative error for a size when it is left out of the fit. */
  error: number;
}

/** The content of a job's screen but for its output. Times are seconds since the epoch. */
export interface JobScreen {
  job: number;
  name: string;
  owner: string;
  engine: string;
  phase: string;
  tone: 'bad' | 'change' | 'good' | 'off' | 'run' | 'wait';
  /** The state in words: `running on 2 GPUs`. */
  state: string;
  /** A second line: why the job waits, the policy's reason, why it failed. */
  detail: string;
  /** A line before `detail`: the progress that the job has lost. */
  warning?: string;
  /** `GPU` or `CPU slot`. */
  unit: string;
  slots: string[];
  min_slots: number;
  max_slots: number;
  sizes: SizePoint[];
  fraction: number | null;
  eta_s: number | null;
  epoch: number | null;
  epochs: number | null;
  step: number | null;
  /** Number of the training in the cell, from 1, that the figures above and the curves belong to. */
  training: number;
  samples_per_s: number | null;
  metrics: Series[];
  /** The workers' current use of the machine; null while it is not known. */
  use: ResourceUsage | null;
  /** Training speed at each size, measured and predicted; null before two sizes were measured. */
  speeds?: SpeedFit | null;
  /** Resource use over time, by worker or GPU: a point's x are seconds since the job was submitted. */
  usage?: Series[];
  attempt: number;
  preemptions: number;
  submitted_at: number;
  started_at: number | null;
  ended_at: number | null;
  now: number;
}

/** A page for front ends. */
export interface JobPage {
  screen: JobScreen;
  /** By rank (as text) its last lines: `[stream, text]`, or a display, as `views/output.py` describes it. */
  outputs: Record<string, string[][]>;
  /** That of the rank that failed first; empty without a failure. */
  traceback: string;
  /** The rank that failed first; null without a failure. */
  failed_rank?: number | null;
  /** Text above all others: the pool does not answer, or output was left out; else empty. */
  notice: string;
  /** Name of the job's folder: unique over all pools, unlike the job's number. */
  folder: string;
}

/** The content that a notebook's file keeps of a job: its page, and the forms for readers without our front end. */
export interface KeptPage {
  page: JobPage;
  forms: Record<string, string>;
}

/** A viewer's window and filters on the timeline. */
export interface TimelineLook {
  /** The time between past and future; null: now, and the window moves with it. */
  at: number | null;
  past_s: number;
  ahead_s: number;
  /** Filter of finished jobs: this user's; the next two filter them too. */
  user: string;
  /** Filter: the name contains this text. */
  name: string;
  state: string;
  offset: number;
  limit: number;
}

/** A host, or several one below the other, and its rows: each is a slot. */
export interface TimelineHost {
  name: string;
  slots: string[];
  /** True if the pool no longer has the host. */
  gone: boolean;
  /** URL as in `HostBox`; empty for several hosts. */
  reach: string;
  until: number | null;
  out: string;
}

/** A drawn job. */
export interface TimelineJob {
  job: number;
  name: string;
  owner: string;
  mine: boolean;
  /** A phase: `queued`, `running` and so on; at the end its outcome. */
  state: string;
  submitted_at: number;
  ended_at: number | null;
  /** Earliest and latest likely start; null if it has slots, or the start is not known. */
  starts: [number, number] | null;
  /** Earliest and latest likely end. */
  ends: [number, number] | null;
}

/** A job on neighbouring rows, for as long as these stay the same. */
export interface Bar {
  /** 0: `count` bars that are too short to be drawn one by one. */
  job: number;
  begin: number;
  /** null while it goes on. */
  end: number | null;
  /** First row, counted over all hosts. */
  first: number;
  rows: number;
  count: number;
}

/** A user's use over time. */
export interface FairRow {
  user: string;
  /** Time, slots used on average from then to the next point, and the fair share. */
  points: [number, number, number][];
}

/** A finished job. */
export interface FinishedRow {
  job: number;
  name: string;
  owner: string;
  mine: boolean;
  outcome: string;
  reason: string;
  submitted_at: number;
  started_at: number | null;
  ended_at: number;
  /** Maximum number of slots held at once. */
  most: number;
}

/** The whole picture. */
export interface TimelineScreen {
  at: number;
  begin: number;
  end: number;
  policy: string;
  kind: string;
  hosts: TimelineHost[];
  jobs: TimelineJob[];
  bars: Bar[];
  /** The most likely bars, in the same rows. */
  future: Bar[];
  /** Time of the prediction; null: there is none. */
  predicted_at: number | null;
  /** Reason why there is no prediction, or why it is incomplete. */
  note: string;
  switches: SwitchRow[];
  fairness: FairRow[];
  finished: FinishedRow[];
  /** Number of finished jobs in the window that match the filters; `finished` may be a part of them. */
  total_finished: number;
  /** Owners of the window's jobs. */
  users: string[];
  /** True once the past has arrived. */
  loaded: boolean;
}

/** An earlier run. Times are seconds since the epoch. */
export interface EarlierRun {
  job: number;
  phase: 'cancelled' | 'completed' | 'failed' | 'queued' | 'rescaling' | 'running' | 'starting' | 'stopping';
  submitted_at: number;
}

/** A policy as the picker shows it. */
export interface PolicyInfo {
  name: string;
  summary: string;
  active?: boolean;
  /** Present values for the active policy, defaults for the others. */
  options?: Record<string, unknown>;
  schema?: Record<string, unknown>;
}

/** Future of a job under a policy, in seconds from now; null: not within sight. */
export interface JobForecast {
  job: number;
  /** First time with slots from now on; 0 for a job that has them. */
  start_s: number | null;
  finish_s: number | null;
  /** True if the job's length is unknown, so that the finish is a guess. */
  guessed: boolean;
  /** Slots from each time on until the next one, the last until the finish. */
  sizes: [number, number][];
}

/** One policy's future from now on, as drawn by the what-if. */
export interface TimelinePicture {
  policy: string;
  at: number;
  end: number;
  hosts: TimelineHost[];
  bars: Bar[];
}

/** A policy's forecast with its picture. */
export interface PolicyForecast {
  policy: string;
  jobs: JobForecast[];
  /** Mean turnaround in seconds of the jobs in sight, from their first submission. */
  avg_jct_s: number | null;
  /** Seconds from now to the last finish. */
  makespan_s: number | null;
  /** Jobs that would finish later than under the first policy of the comparison. */
  losers: number[];
  winners: number[];
  /** Result of `trend` against the first policy of the comparison; the next one likewise. */
  avg_jct_trend: number;
  makespan_trend: number;
  /** Reason why the forecast is incomplete. */
  note: string;
  /** null for too many jobs to be legible. */
  picture: TimelinePicture | null;
}
