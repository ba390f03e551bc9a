/** What the environment allows agents, read once at start. */
import { SERVICE_NAME } from '../protocol/limits.js';
import type { Env } from './context.js';
import { McpError } from './errors.js';

export interface Policy {
  /** The allow list: ids, slugs or names of bins; null: all bins. */
  readonly bins: readonly string[] | null;
  /** The tools that write or delete are not offered, and refuse. */
  readonly readOnly: boolean;
  /** Secrets of passwords are withheld even if the pairing allows them. */
  readonly redact: boolean;
}

const PREFIX = SERVICE_NAME.toUpperCase();
/** Ids, slugs or names, separated by commas. */
export const BINS_VARIABLE = `${PREFIX}_BINS`;
export const READ_ONLY_VARIABLE = `${PREFIX}_READ_ONLY`;
const REDACT_VARIABLE = `${PREFIX}_REDACT_SECRETS`;

/** No other separators and no control characters: a list in another syntax must be refused, not misread. */
const NAME = /^[^,;\p{Cc}]{1,200}$/u;
const ON: ReadonlySet<string> = new Set(['1', 'true', 'yes', 'on']);
const OFF: ReadonlySet<string> = new Set(['', '0', 'false', 'no', 'off']);

/** Throws `McpError` `bad_setting` for any unclear value: a misspelt restriction must not be ignored. */
export const readPolicy = (env: Env): Policy => ({
  bins: binsOf(env[BINS_VARIABLE]),
  readOnly: isOn(env, READ_ONLY_VARIABLE),
  redact: isOn(env, REDACT_VARIABLE),
});

function isOn(env: Env, name: string): boolean {
  const value = (env[name] ?? '').trim().toLowerCase();
  if (ON.has(value)) return true;
  if (OFF.has(value)) return false;
  throw new McpError('bad_setting', `${name} must be 1 or 0`);
}

function binsOf(value: string | undefined): readonly string[] | null {
  if (value === undefined || value === '') return null;
  const names = value
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');
  if (names.length > 0 && names.every((name) => NAME.test(name))) return [...new Set(names)];
  const list = 'a list of names, slugs or ids of bins with commas between them';
  throw new McpError('bad_setting', `${BINS_VARIABLE} is not ${list}`);
}
