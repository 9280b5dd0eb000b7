// What a person can do. Each home supplies these by REST, or over the comm where there is no server extension.
import type { PolicyForecast, PolicyInfo } from './screens';

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
  /** Empty when this person may switch; else whom to ask. */
  refusal: string;
}

export interface PickerActions {
  policies(): Promise<Policies>;
  forecast(policy: string, options: Record<string, unknown>): Promise<PolicyForecast[]>;
  use(policy: string, options: Record<string, unknown>, reason: string): Promise<void>;
  /** Ask a policy beside the one that decides, and do not obey it. */
  shadow(policy: string, options: Record<string, unknown>): Promise<void>;
  unshadow(policy: string): Promise<void>;
}
