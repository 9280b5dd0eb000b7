// The same structs as in views/pool_screen.py, views/earlier_runs.py, views/timeline_screen.py, client/job_screen.py and jobfiles/usage.py; tests/unit/tooling/test_screens_ts.py holds them together.

export interface SlotBox {
  slot: string;
  state: 'free' | 'leased' | 'draining' | 'out';
  job: number | null;
  owner: string;
  reason: string;
  for_servers: boolean;
}

export interface HostBox {
  name: string;
  slots: SlotBox[];
  reach: string;
  until: number | null;
  out: string;
}

export interface JobRow {
  job: number;
  name: string;
  owner: string;
  mine: boolean;
  phase: string;
  position: number | null;
  held: number;
  min_slots: number;
  max_slots: number;
  submitted_at: number;
  started_at: number | null;
  fraction: number | null;
  wait_s: [number, number] | null;
  reason: string;
}

export interface ShareRow {
  user: string;
  held: number;
  entitled: number;
  queued: number;
  slot_seconds: number;
}

export interface HistoryPoint {
  at: number;
  leased: Record<string, number>;
  draining: number;
  capacity: number;
  queued: number;
}

export interface SwitchRow {
  at: number;
  by: string;
  name: string;
  previous: string;
  reason: string;
}

export interface NoteRow {
  at: number;
  job: number | null;
  text: string;
}

export interface ShadowDifference {
  job: number;
  name: string;
  owner: string;
  holds: number;
  shadow: number;
}

export interface ShadowRow {
  policy: string;
  options: Record<string, unknown>;
  cell: boolean;
  since: number;
  asked: number;
  differed: number;
  differs_since: number | null;
  jobs: number;
  differences: ShadowDifference[];
  total_differences: number;
  problem: string;
}

export interface PoolScreen {
  seq: number;
  at: number;
  kind: string;
  user: string;
  maintenance: string;
  policy: string;
  policy_options: Record<string, unknown>;
  hosts: HostBox[];
  jobs: JobRow[];
  total_jobs: number;
  shares: ShareRow[];
  history: HistoryPoint[];
  switches: SwitchRow[];
  notes: NoteRow[];
  shadows: ShadowRow[];
}

export interface EndedRow {
  job: number;
  name: string;
  outcome: string;
  started_at: number | null;
  ended_at: number;
}

export interface PoolStatus {
  kind: string;
  free: number;
  capacity: number;
  running: number;
  waiting: number;
  ended: EndedRow[];
}

export interface EarlierRun {
  job: number;
  phase: string;
  submitted_at: number;
}

export interface SizePoint {
  at: number;
  slots: number;
  reason: string;
  pause_s: number;
}

export interface Series {
  name: string;
  points: [number, number][];
  last: string;
  /** Of each point; notebooks that were saved by an earlier version have neither. */
  times?: number[];
  epochs?: number[];
}

export interface GpuUsage {
  slot: string;
  busy: number | null;
  memory: number;
  total: number;
}

export interface ResourceUsage {
  at: number;
  workers: number;
  cores: number;
  memory: number;
  gpus: GpuUsage[];
  waits: string;
}

export interface SizeSpeed {
  workers: number;
  servers: number;
  measured: number | null;
  predicted: number;
}

export interface SpeedFit {
  sizes: SizeSpeed[];
  form: string;
  error: number;
}

export interface JobScreen {
  job: number;
  name: string;
  owner: string;
  engine: string;
  phase: string;
  tone: 'wait' | 'run' | 'change' | 'good' | 'bad' | 'off';
  state: string;
  detail: string;
  /** What the job has lost; not there in pages that older versions saved. */
  warning?: string;
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
  training: number;
  samples_per_s: number | null;
  metrics: Series[];
  use: ResourceUsage | null;
  /** Measured and predicted by size; absent in notebooks that were saved by an earlier version. */
  speeds?: SpeedFit | null;
  /** Over time; x of a point are seconds. Notebooks that were saved by an earlier version have none. */
  usage?: Series[];
  attempt: number;
  preemptions: number;
  submitted_at: number;
  started_at: number | null;
  ended_at: number | null;
  now: number;
}

export interface TimelineLook {
  at: number | null;
  past_s: number;
  ahead_s: number;
  user: string;
  name: string;
  state: string;
  offset: number;
  limit: number;
}

export interface TimelineHost {
  name: string;
  slots: string[];
  gone: boolean;
  reach: string;
  until: number | null;
  out: string;
}

export interface TimelineJob {
  job: number;
  name: string;
  owner: string;
  mine: boolean;
  state: string;
  submitted_at: number;
  ended_at: number | null;
  starts: [number, number] | null;
  ends: [number, number] | null;
}

export interface Bar {
  job: number;
  begin: number;
  end: number | null;
  first: number;
  rows: number;
  count: number;
}

export interface FairRow {
  user: string;
  points: [number, number, number][];
}

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
  most: number;
}

export interface TimelineScreen {
  at: number;
  begin: number;
  end: number;
  policy: string;
  kind: string;
  hosts: TimelineHost[];
  jobs: TimelineJob[];
  bars: Bar[];
  future: Bar[];
  predicted_at: number | null;
  note: string;
  switches: SwitchRow[];
  fairness: FairRow[];
  finished: FinishedRow[];
  total_finished: number;
  users: string[];
  loaded: boolean;
}

export interface TimelinePicture {
  policy: string;
  at: number;
  end: number;
  hosts: TimelineHost[];
  bars: Bar[];
}
