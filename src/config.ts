/**
 * Environment -> frozen Config. Every variable stands once, in VARIABLES, with its default, its unit and its check
 * (contract 14; specification, Configuration constants). Of the parts that are not built yet (blobs, billing, tenants
 * by host, the nightly purge) nothing is in Config: an option without effect would be a lie. Their numbers are checked
 * all the same (LATER), and the operator is told that they do nothing.
 */
import { isIP } from 'node:net';
import { resolve } from 'node:path';
import { CLAIM_TOKEN_MAX } from './protocol/limits.js';

/** One bad variable: its name, what it got (never a secret's text) and what it takes. */
export interface ConfigProblem {
  readonly name: string;
  readonly got: string;
  readonly takes: string;
}

/** The start stops with this. It lists every bad variable at once, so that nobody repairs them one start at a time. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    const lines = problems.map(({ name, got, takes }) => `  ${name}: got ${got}; takes ${takes}`);
    super(`The configuration cannot be used:\n${lines.join('\n')}`);
    this.problems = problems;
  }
}

/** How one environment variable is read. `parse` answers undefined for a value that does not fit. */
interface Variable<T> {
  readonly name: string;
  /** What it takes, in words, with its unit: the part of the error message that tells what to write. */
  readonly takes: string;
  /** The value when the variable is unset or empty. */
  readonly fallback: T;
  readonly secret?: boolean;
  parse(text: string): T | undefined;
}

interface WholeNumber {
  readonly fallback: number;
  readonly min: number;
  readonly max: number;
  readonly unit?: string;
}

function wholeNumber(name: string, { fallback, min, max, unit }: WholeNumber): Variable<number> {
  return {
    name,
    takes: `a whole number from ${min} to ${max}${unit ? ` (${unit})` : ''}`,
    fallback,
    parse: (text) => {
      const value = /^\d{1,16}$/.test(text) ? Number(text) : NaN;
      return value >= min && value <= max ? value : undefined;
    },
  };
}

function oneOf<const T extends string>(name: string, values: readonly T[], fallback: T): Variable<T> {
  return {
    name,
    takes: `one of ${values.join(', ')}`,
    fallback,
    parse: (text) => values.find((value) => value === text),
  };
}

/** A token or key that the operator sets. It travels in headers, so it is visible ASCII without spaces. */
function secret(name: string, min: number, max: number): Variable<string | null> {
  return {
    name,
    takes: `at least ${min} visible ASCII characters without spaces, at most ${max}`,
    fallback: null,
    secret: true,
    parse: (text) => (text.length >= min && text.length <= max && /^[\x21-\x7e]+$/.test(text) ? text : undefined),
  };
}

/** More than any secret needs, and still room in the headers of a request, 4 KiB altogether. */
const SECRET_MAX = 1_024;

const DAY_MS = 86_400_000;
const TTL_DAYS_MAX = 3_650;

function days(text: string): number | undefined {
  const value = /^\d{1,4}(\.\d{1,9})?$/.test(text) ? Math.round(Number(text) * DAY_MS) : 0;
  return value >= 1 && value <= TTL_DAYS_MAX * DAY_MS ? value : undefined;
}

const HOST_NAME = /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$/i;

function parsedUrl(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined;
}

function databaseUrl(text: string): string | undefined {
  const url = parsedUrl(text);
  if (url === undefined || (url.protocol !== 'postgres:' && url.protocol !== 'postgresql:')) return undefined;
  const hasHost = url.hostname !== '' || url.searchParams.has('host');
  return hasHost && url.pathname.length > 1 ? text : undefined;
}

function publicUrl(text: string): string | undefined {
  const url = parsedUrl(text);
  if (url === undefined || (url.protocol !== 'http:' && url.protocol !== 'https:')) return undefined;
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') return undefined;
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '');
}

/** A comma-separated list; one entry that does not fit spoils the whole value. */
function list(text: string, entry: (part: string) => string | undefined): readonly string[] | undefined {
  const parts = text.split(',').map((part) => entry(part.trim()));
  return parts.every((part) => part !== undefined) ? Object.freeze(parts) : undefined;
}

function origin(text: string): string | undefined {
  if (text === '*') return text;
  const url = parsedUrl(text);
  return (url?.protocol === 'http:' || url?.protocol === 'https:') && url.origin === text.toLowerCase()
    ? url.origin
    : undefined;
}

function cidr(text: string): string | undefined {
  const match = /^([0-9a-f.:]+)(?:\/(\d{1,3}))?$/i.exec(text);
  const address = match?.[1] ?? '';
  const bits = isIP(address) === 4 ? 32 : isIP(address) === 6 ? 128 : undefined;
  if (bits === undefined) return undefined;
  const prefix = match?.[2] === undefined ? bits : Number(match[2]);
  return prefix <= bits ? `${address}/${prefix}` : undefined;
}

/** Loopback and the private ranges (contract 4, Client address). */
const PRIVATE_RANGES = ['127.0.0.0/8', '::1/128', '10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'];

const HOUR_MS = 3_600_000;
const RATE_MAX = 1_000_000;

const VARIABLES = {
  /** TCP port of HTTP and WebSocket; 0 takes a free one. */
  port: wholeNumber('PORT', { fallback: 8080, min: 0, max: 65_535, unit: '0 takes a free port' }),
  /** Processes that share the port; see src/instances.ts. */
  instances: wholeNumber('INSTANCES', { fallback: 1, min: 1, max: 256, unit: 'processes on one port' }),
  /** Address to listen on. */
  host: {
    name: 'HOST',
    takes: 'an IP address or a host name',
    fallback: '0.0.0.0',
    parse: (text) => (isIP(text) !== 0 || HOST_NAME.test(text) ? text : undefined),
  } satisfies Variable<string>,
  /** One tenant, whatever the host, or one for each name under `baseDomain`. */
  tenantMode: oneOf('TENANT_MODE', ['single', 'multi'], 'single'),
  /** Multi mode: tenants are `<slug>.<base domain>`, lower case. Unset, DOMAIN is taken; read it through `apexOf`. */
  baseDomain: {
    name: 'BASE_DOMAIN',
    takes: 'a host name without scheme, port and path',
    fallback: null,
    parse: (text) => (HOST_NAME.test(text) ? text.toLowerCase() : undefined),
  } satisfies Variable<string | null>,
  /** PostgreSQL 14 or newer; null: the embedded PostgreSQL under `dataDir`. */
  databaseUrl: {
    name: 'DATABASE_URL',
    takes: 'postgres://user:password@host:port/database, or nothing for the embedded PostgreSQL',
    fallback: null,
    secret: true,
    parse: databaseUrl,
  } satisfies Variable<string | null>,
  /** Absolute path of the folder with the embedded PostgreSQL and the generated secrets. */
  dataDir: {
    name: 'DATA_DIR',
    takes: 'the path of a folder',
    fallback: resolve('data'),
    parse: (text) => (text.includes('\0') ? undefined : resolve(text)),
  } satisfies Variable<string>,
  /** Key of the tokens' MAC; null: generated and kept under `dataDir` (see secrets.ts). */
  tokenSecret: secret('TOKEN_SECRET', 16, SECRET_MAX),
  /** Lifetime of a bearer token in milliseconds; the variable is in days and may be a fraction. */
  tokenTtlMs: {
    name: 'TOKEN_TTL_DAYS',
    takes: `a number of days above 0, at most ${TTL_DAYS_MAX}`,
    fallback: 30 * DAY_MS,
    parse: days,
  } satisfies Variable<number>,
  /** Opens the admin endpoints; null: they answer `forbidden`. Never generated. */
  adminToken: secret('ADMIN_TOKEN', 8, SECRET_MAX),
  /** When set, bootstrap in single mode requires it as `claimToken` (contract 9). A longer one no body could carry. */
  bootstrapToken: secret('BOOTSTRAP_TOKEN', 8, CLAIM_TOKEN_MAX),
  /** Where clients reach the server, without a trailing slash; read it through `publicHosts`. */
  publicUrl: {
    name: 'PUBLIC_URL',
    takes: 'an http or https URL without user, query and fragment',
    fallback: null,
    parse: publicUrl,
  } satisfies Variable<string | null>,
  /** Host name of the deployment, lower case; read it through `publicHosts`. */
  domain: {
    name: 'DOMAIN',
    takes: 'a host name without scheme, port and path',
    fallback: null,
    parse: (text) => (HOST_NAME.test(text) ? text.toLowerCase() : undefined),
  } satisfies Variable<string | null>,
  /** Origins whose browsers may call (`*`: any); empty: none. */
  corsOrigins: {
    name: 'CORS_ORIGINS',
    takes: 'origins such as https://app.example.com separated by commas, or *',
    fallback: Object.freeze([]),
    parse: (text) => list(text, origin),
  } satisfies Variable<readonly string[]>,
  /** Devices of one tenant that are not revoked. An item carries at most 1,000 keys, so more could never write. */
  maxDevices: wholeNumber('MAX_DEVICES', { fallback: 100, min: 1, max: 1_000, unit: 'devices' }),
  /** Shape of requests and sockets that do not show one (contract 2). */
  wireShape: oneOf('WIRE_SHAPE', ['a', 'b'], 'a'),
  /** Which item writes must carry `sig` (contract 2). */
  requireSig: oneOf('REQUIRE_SIG', ['always', 'a', 'never'], 'a'),
  /** What `/me` reports as `server.region`. */
  region: {
    name: 'REGION',
    takes: '1 to 64 of the characters A-Z a-z 0-9 . _ -',
    fallback: 'local',
    parse: (text) => (/^[A-Za-z0-9._-]{1,64}$/.test(text) ? text : undefined),
  } satisfies Variable<string>,
  /** Port of the Prometheus metrics; 0: off. */
  metricsPort: wholeNumber('METRICS_PORT', { fallback: 0, min: 1, max: 65_535 }),
  logLevel: oneOf('LOG_LEVEL', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'], 'info'),
  /** Peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed, as `address/prefix` (contract 4). */
  trustedProxies: {
    name: 'TRUSTED_PROXIES',
    takes: 'addresses or ranges such as 10.0.0.0/8 separated by commas, or none',
    fallback: Object.freeze(PRIVATE_RANGES),
    parse: (text) => (text === 'none' ? Object.freeze([]) : list(text, cidr)),
  } satisfies Variable<readonly string[]>,
  /** Per device and instance; 0: off. */
  rateReadPerS: wholeNumber('RATE_READ_PER_S', { fallback: 100, min: 0, max: RATE_MAX, unit: 'per second, 0 is off' }),
  /** Per device and instance; 0: off. */
  rateWritePerS: wholeNumber('RATE_WRITE_PER_S', { fallback: 10, min: 0, max: RATE_MAX, unit: 'per second, 0 is off' }),
  /** Per client address, across instances; 0: off. */
  ratePairPerMin: wholeNumber('RATE_PAIR_PER_MIN', {
    fallback: 5,
    min: 0,
    max: RATE_MAX,
    unit: 'per minute, 0 is off',
  }),
  /** Bytes a tenant may hold; 0: unlimited. */
  storageCapBytes: wholeNumber('STORAGE_CAP_BYTES', {
    fallback: 0,
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    unit: 'bytes, 0 is unlimited',
  }),
  /** After so long a deleted item is emptied to its tombstone, ms; the variable is in days. */
  softDeleteMs: {
    name: 'SOFT_DELETE_DAYS',
    takes: `a whole number of days from 0 to ${TTL_DAYS_MAX}`,
    fallback: 30 * DAY_MS,
    parse: (text) => (/^\d{1,4}$/.test(text) && Number(text) <= TTL_DAYS_MAX ? Number(text) * DAY_MS : undefined),
  } satisfies Variable<number>,
  /** When the nightly jobs run, minutes after midnight in the machine's local time. */
  purgeAt: {
    name: 'PURGE_AT',
    takes: 'a time of day such as 03:30',
    fallback: 3 * 60 + 30,
    parse: (text) => {
      const match = /^([01]\d|2[0-3]):([0-5]\d)$/.exec(text);
      return match === null ? undefined : Number(match[1]) * 60 + Number(match[2]);
    },
  } satisfies Variable<number>,
  /** Time between two pings on a socket. */
  wsPingIntervalMs: wholeNumber('WS_PING_INTERVAL_MS', {
    fallback: 30_000,
    min: 20,
    max: HOUR_MS,
    unit: 'milliseconds',
  }),
  /** A socket that shows no life for this long is closed. */
  wsPongGraceMs: wholeNumber('WS_PONG_GRACE_MS', { fallback: 90_000, min: 40, max: 3 * HOUR_MS, unit: 'milliseconds' }),
};

/** Numbers of parts that are not built yet, by the contract's names. A wrong one shall not wait for its part. */
const LATER: readonly Variable<unknown>[] = [
  wholeNumber('PAYMENT_GRACE_DAYS', { fallback: 7, min: 0, max: TTL_DAYS_MAX, unit: 'days' }),
  wholeNumber('MAX_BLOB_SIZE_MB', { fallback: 1_024, min: 1, max: 1_048_576, unit: 'MiB' }),
];

/** A variable's text; an empty one counts as unset, as compose files write it. */
const textOf = (env: NodeJS.ProcessEnv, name: string): string => env[name]?.trim() ?? '';

type ValueOf<V> = V extends Variable<infer T> ? T : never;

/** The server's configuration, frozen. Times are milliseconds, sizes bytes; the fields are described in VARIABLES. */
export type Config = { readonly [K in keyof typeof VARIABLES]: ValueOf<(typeof VARIABLES)[K]> };

/** What a message shows of a bad value: never a secret, never a password inside a URL, never control characters. */
function shown(text: string, isSecret: boolean | undefined): string {
  if (isSecret === true) return `a value of ${text.length} characters (not shown)`;
  const harmless = text.replace(/\/\/[^/\s]*@/g, '//***@');
  return JSON.stringify(harmless.length > 100 ? `${harmless.slice(0, 100)}...` : harmless);
}

/** Rules between variables; each variable on its own has passed. */
function conflicts(config: Config): ConfigProblem[] {
  const found: ConfigProblem[] = [];
  if (config.wsPongGraceMs <= config.wsPingIntervalMs) {
    found.push({
      name: 'WS_PONG_GRACE_MS',
      got: String(config.wsPongGraceMs),
      takes: `more than WS_PING_INTERVAL_MS (${config.wsPingIntervalMs}): a client must be pinged before it can be late`,
    });
  }
  if (config.tenantMode === 'multi' && apexOf(config) === '') {
    found.push({
      name: 'BASE_DOMAIN',
      got: 'nothing',
      takes: 'the domain whose subdomains are the tenants: TENANT_MODE is multi',
    });
  }
  return found;
}

/** The domain of a hosted service, lower case, without a final dot; empty in single mode and where none is named. */
export function apexOf({
  tenantMode,
  baseDomain,
  domain,
}: Pick<Config, 'tenantMode' | 'baseDomain' | 'domain'>): string {
  return tenantMode === 'multi' ? (baseDomain ?? domain ?? '') : '';
}

/**
 * Reads and checks the environment once.
 * @throws ConfigError with every bad variable.
 */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  const problems: ConfigProblem[] = [];
  const values: Record<string, unknown> = {};
  const read = (variable: Variable<unknown>): unknown => {
    const text = textOf(env, variable.name);
    const value = text === '' ? variable.fallback : variable.parse(text);
    if (value === undefined)
      problems.push({ name: variable.name, got: shown(text, variable.secret), takes: variable.takes });
    return value;
  };
  for (const [field, variable] of Object.entries(VARIABLES)) values[field] = read(variable);
  LATER.forEach(read);
  if (problems.length > 0) throw new ConfigError(problems);
  const config = Object.freeze(values) as Config;
  const clashes = conflicts(config);
  if (clashes.length > 0) throw new ConfigError(clashes);
  return config;
}

/**
 * The host names that clients may have dialled whatever `Host` the proxy passes on: of `PUBLIC_URL` and `DOMAIN`, lower
 * case, without port. Empty when neither is set: the request's own host counts. So it is in multi mode, where the host
 * has told the tenant already.
 */
export function publicHosts(config: Pick<Config, 'tenantMode' | 'publicUrl' | 'domain'>): readonly string[] {
  const { publicUrl, domain } = config;
  if (config.tenantMode === 'multi') return [];
  const named = publicUrl === null ? [] : [new URL(publicUrl).hostname];
  return [...new Set(domain === null ? named : [...named, domain])];
}

/** One line for each variable that is set and does nothing in this version. */
export function unusedVariables(env: NodeJS.ProcessEnv): readonly string[] {
  return LATER.filter(({ name }) => textOf(env, name) !== '').map(
    ({ name }) => `${name} is set, but this version has no use for it yet.`,
  );
}

/** Every variable in words, in the order of VARIABLES: what the reference's page on configuration is held against. */
export const CONFIG_VARIABLES: readonly Pick<Variable<unknown>, 'name' | 'takes' | 'fallback' | 'parse'>[] = [
  ...Object.values(VARIABLES),
  ...LATER,
];
