// What a person can do with policies: by REST, or over a widget's comm where there is no server extension.
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
