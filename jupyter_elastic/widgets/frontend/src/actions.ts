// What a person can do with jobs, the pool and policies: by REST, or over a widget's comm where there is no server
// extension.
import type { EarlierRun, PolicyForecast, PolicyInfo, Series, ShadowRow } from './screens';

/** The JSON schema of a policy's options, as far as the picker reads it. */
export interface Schema {
  properties?: Record<string, Property>;
  $defs?: Record<string, Schema>;
  $ref?: string;
}

export interface Property {
  type?: string;
  enum?: (string | number)[];
  description?: string;
  minimum?: number;
  maximum?: number;
  default?: unknown;
  anyOf?: Property[];
}

export interface Policies {
  policies: PolicyInfo[];
  /** Reason why this user may not switch the policy, and whom to ask; empty for a user who may. */
  refusal: string;
}

export interface PickerActions {
  policies(): Promise<Policies>;
  forecast(policy: string, options: Record<string, unknown>): Promise<PolicyForecast[]>;
  use(policy: string, options: Record<string, unknown>, reason: string): Promise<void>;
  /** Run a policy as a shadow: the pool compares its plans and does not carry them out. */
  shadow(policy: string, options: Record<string, unknown>): Promise<void>;
  unshadow(policy: string): Promise<void>;
}

export interface RankActions {
  /** Return the address of a rank's whole output; null where there is no server to ask. */
  link?: (rank: number) => string | null;
  /** Called with the rank whose lines are in sight now. */
  look?: (rank: number) => void;
}

/** Requests for earlier runs of the same name, and their metrics. */
export interface EarlierActions {
  runs(): Promise<EarlierRun[]>;
  metrics(job: number): Promise<Series[]>;
}

export interface JobActions extends RankActions {
  /** The first two are missing for a job that this pool does not know. */
  cancel?: () => Promise<unknown>;
  resize?: (least: number, most: number) => Promise<unknown>;
  /** Let the notebook go on while the job runs; missing unless a cell waits for the job. */
  background?: () => Promise<unknown>;
  script?: () => Promise<unknown>;
  /** Show the cell of the job; missing where its notebook is not open in this page. */
  cell?: () => void;
  /** Return the submitted code, for a page without the job's notebook. */
  code?: () => Promise<string>;
  earlier?: EarlierActions;
}

export interface PoolActions {
  /** Actions that are missing are not possible on this page. */
  cancel?(job: number): Promise<unknown>;
  /** Show a job in a tab. */
  open?(job: number): void;
  openPicker?(): void;
  /** End this shadow. */
  unshadow?(row: ShadowRow): Promise<unknown>;
  /** Ask for another window of the job table. */
  window(offset: number, limit: number): void;
}
