// What a person can do. Each home supplies these by REST, or over the comm where there is no server extension.
import type { TimelinePicture } from './screens';

export interface PolicyInfo {
  name: string;
  summary: string;
  active?: boolean;
  options?: Record<string, unknown>;
  schema?: Schema;
}

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

/** Seconds from when it was made; null: not within sight. */
export interface JobForecast {
  job: number;
  start_s: number | null;
  finish_s: number | null;
}

export interface Forecast {
  policy: string;
  avg_jct_s: number | null;
  makespan_s: number | null;
  jobs: JobForecast[];
  /** Jobs that finish later than under the present policy. */
  losers: number[];
  winners: number[];
  /** 1: later than under the present policy, -1: earlier, 0: about the same. */
  avg_jct_trend: number;
  makespan_trend: number;
  /** Why the forecast is incomplete. */
  note: string;
  picture: TimelinePicture | null;
}

export interface Policies {
  policies: PolicyInfo[];
  /** Empty when this person may switch; else whom to ask. */
  refusal: string;
}

export interface PickerActions {
  policies(): Promise<Policies>;
  forecast(policy: string, options: Record<string, unknown>): Promise<Forecast[]>;
  use(policy: string, options: Record<string, unknown>, reason: string): Promise<void>;
  /** Ask a policy beside the one that decides, and do not obey it. */
  shadow(policy: string, options: Record<string, unknown>): Promise<void>;
  unshadow(policy: string): Promise<void>;
}
