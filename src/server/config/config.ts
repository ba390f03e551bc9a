/**
 * Environment -> frozen Config. Every variable stands once, in VARIABLES, with its default, its unit and its check
 * (reference, Configuration).
 */
import { resolve } from 'node:path';
import { CLAIM_TOKEN_MAX } from '../../protocol/limits.js';
import { STORAGE_VARIABLES, storageConflicts } from './storage-variables.js';
import {
  address,
  cidr,
  DAY_MS,
  databaseUrl,
  days,
  flag,
  hostName,
  list,
  oneOf,
  origin,
  optional,
  publicUrl,
  secret,
  SECRET_MAX,
  TTL_DAYS_MAX,
  variable,
  wholeDays,
  wholeNumber,
  type Variable,
  type ConfigProblem,
  type ValuesOf,
} from './variables.js';

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

/** A proxy on this machine. Of private ranges nobody knows who else is on them: one who is believed can pass for anybody. */
const LOOPBACK = ['127.0.0.0/8', '::1/128'];

const HOUR_MS = 3_600_000;
const RATE_MAX = 1_000_000;
const PORT_MAX = 65_535;

const VARIABLES = {
  /** TCP port of HTTP and WebSocket; 0 takes a free one. */
  port: wholeNumber('PORT', { fallback: 8080, min: 0, max: 65_535, unit: '0 takes a free port' }),
  /** Processes that share the port; see src/server/app/instances.ts. */
  instances: wholeNumber('INSTANCES', { fallback: 1, min: 1, max: 256, unit: 'processes on one port' }),
  /** Address to listen on. */
  host: variable('HOST', 'an IP address or a host name', { fallback: '0.0.0.0', parse: address }),
  /** One tenant, whatever the host, or one for each name under `baseDomain`. */
  tenantMode: oneOf('TENANT_MODE', ['single', 'multi'], 'single'),
  /** Multi mode: tenants are `<slug>.<base domain>`, lower case. Unset, DOMAIN is taken; read it through `apexOf`. */
  baseDomain: optional('BASE_DOMAIN', 'a host name without scheme, port and path', hostName),
  /** PostgreSQL 14 or newer; null: the embedded PostgreSQL under `dataDir`. */
  databaseUrl: {
    ...optional(
      'DATABASE_URL',
      'postgres://user:password@host:port/database, or nothing for the embedded PostgreSQL',
      databaseUrl,
    ),
    secret: true,
  },
  /** Absolute path of the folder with the embedded PostgreSQL and the generated secrets. */
  dataDir: variable('DATA_DIR', 'the path of a folder', {
    fallback: resolve('data'),
    parse: (text) => (text.includes('\0') ? undefined : resolve(text)),
  }),
  /** Key of the tokens' MAC; null: generated and kept under `dataDir` (see secrets.ts). */
  tokenSecret: secret('TOKEN_SECRET', 16, SECRET_MAX),
  /** Lifetime of a bearer token in milliseconds; the variable is in days and may be a fraction. */
  tokenTtlMs: variable('TOKEN_TTL_DAYS', `a number of days above 0, at most ${TTL_DAYS_MAX}`, {
    fallback: 30 * DAY_MS,
    parse: days,
  }),
  /** Opens the admin endpoints; null: they answer `forbidden`. Never generated. */
  adminToken: secret('ADMIN_TOKEN', 8, SECRET_MAX),
  /** When set, bootstrap in single mode requires it as `claimToken`. A longer one no body could carry. */
  bootstrapToken: secret('BOOTSTRAP_TOKEN', 8, CLAIM_TOKEN_MAX),
  /** Where clients reach the server, without a trailing slash; read it through `publicHosts`. */
  publicUrl: optional('PUBLIC_URL', 'an http or https URL without user, query and fragment', publicUrl),
  /** Host name of the deployment, lower case; read it through `publicHosts`. */
  domain: optional('DOMAIN', 'a host name without scheme, port and path', hostName),
  /** Origins whose browsers may call (`*`: any); empty: none. */
  corsOrigins: variable<readonly string[]>(
    'CORS_ORIGINS',
    'origins such as https://app.example.com separated by commas, or *',
    { fallback: Object.freeze([]), parse: (text) => list(text, origin) },
  ),
  /** Devices of one tenant that are not revoked. An item carries at most 1,000 keys, so more could never write. */
  maxDevices: wholeNumber('MAX_DEVICES', { fallback: 100, min: 1, max: 1_000, unit: 'devices' }),
  /** Shape of requests and sockets that do not show one. */
  wireShape: oneOf('WIRE_SHAPE', ['a', 'b'], 'a'),
  /** Which item writes must carry `sig`. */
  requireSig: oneOf('REQUIRE_SIG', ['always', 'a', 'never'], 'a'),
  /** What `/me` reports as `server.region`. */
  region: variable('REGION', '1 to 64 of the characters A-Z a-z 0-9 . _ -', {
    fallback: 'local',
    parse: (text) => (/^[A-Za-z0-9._-]{1,64}$/.test(text) ? text : undefined),
  }),
  /** Port of the Prometheus metrics; 0: off. */
  metricsPort: wholeNumber('METRICS_PORT', { fallback: 0, min: 1, max: 65_535 }),
  /** Address that the metrics listen on: nobody is asked who he is there, so only this machine by default. */
  metricsHost: variable('METRICS_HOST', 'an IP address or a host name', { fallback: '127.0.0.1', parse: address }),
  logLevel: oneOf('LOG_LEVEL', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'], 'info'),
  /** Whether the server refuses to start with a build of uWebSockets.js that it was not tested with. */
  uwsStrict: oneOf('UWS_STRICT', ['on', 'off'], 'off'),
  /** Peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed, as `address/prefix`. */
  trustedProxies: variable<readonly string[]>(
    'TRUSTED_PROXIES',
    'addresses or ranges such as 10.0.0.0/8 separated by commas, or none',
    { fallback: Object.freeze(LOOPBACK), parse: (text) => (text === 'none' ? Object.freeze([]) : list(text, cidr)) },
  ),
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
  ...STORAGE_VARIABLES,
  /** After so long a deleted item is emptied to its tombstone, ms; the variable is in days. */
  softDeleteMs: variable('SOFT_DELETE_DAYS', `a whole number of days from 0 to ${TTL_DAYS_MAX}`, {
    fallback: 30 * DAY_MS,
    parse: wholeDays,
  }),
  /** When the nightly jobs run, minutes after midnight in the machine's local time. */
  purgeAt: variable('PURGE_AT', 'a time of day such as 03:30', {
    fallback: 3 * 60 + 30,
    parse: (text) => {
      const match = /^([01]\d|2[0-3]):([0-5]\d)$/.exec(text);
      return match === null ? undefined : Number(match[1]) * 60 + Number(match[2]);
    },
  }),
  /** Signing up costs something. */
  paymentBillingEnabled: variable('PAYMENT_BILLING_ENABLED', 'true or false', { fallback: false, parse: flag }),
  /** Stripe's secret key. */
  paymentSecretKey: secret('PAYMENT_SECRET_KEY', 8, SECRET_MAX),
  /** What Stripe signs webhooks with. */
  paymentWebhookSecret: secret('PAYMENT_WEBHOOK_SECRET', 8, SECRET_MAX),
  /** The price that is subscribed to. */
  paymentPriceId: optional('PAYMENT_PRICE_ID', 'the id of a price, such as price_1AbC', (text) =>
    /^[A-Za-z0-9_.-]{1,255}$/.test(text) ? text : undefined,
  ),
  /** So long does a tenant that has not paid go on as before, ms; the variable is in days. */
  paymentGraceMs: variable('PAYMENT_GRACE_DAYS', `a whole number from 0 to ${TTL_DAYS_MAX} (days)`, {
    fallback: 7 * DAY_MS,
    parse: wholeDays,
  }),
  /** Another server than Stripe's own, for tests. */
  paymentApiBase: optional(
    'PAYMENT_API_BASE',
    'an http or https URL without user, path, query and fragment',
    (text) => {
      const url = publicUrl(text);
      return url !== undefined && new URL(url).pathname === '/' ? url : undefined;
    },
  ),
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

/** A variable's text; an empty one counts as unset, as compose files write it. */
const textOf = (env: NodeJS.ProcessEnv, name: string): string => env[name]?.trim() ?? '';

/** The server's configuration, frozen. Times are milliseconds, sizes bytes; the fields are described in VARIABLES. */
export type Config = ValuesOf<typeof VARIABLES>;

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
  return [...found, ...storageConflicts(config), ...metricsConflicts(config), ...billingConflicts(config)];
}

/** Each instance has a port for its metrics, counted up from the first: all of them must be ports, and free of ours. */
function metricsConflicts({ metricsPort: first, instances, port }: Config): ConfigProblem[] {
  const last = first + instances - 1;
  const got = instances === 1 ? String(first) : `${first}, and ${last} for the last of ${instances} INSTANCES`;
  if (first === 0) return [];
  if (last > PORT_MAX) return [{ name: 'METRICS_PORT', got, takes: `at most ${PORT_MAX - instances + 1}` }];
  if (port < first || port > last) return [];
  return [{ name: 'METRICS_PORT', got, takes: `other ports than PORT (${port})` }];
}

/** What billing needs, all of it named at once. */
function billingConflicts(config: Config): ConfigProblem[] {
  if (!config.paymentBillingEnabled) return [];
  const needed: readonly (readonly [name: string, value: string | null, takes: string])[] = [
    ['PAYMENT_SECRET_KEY', config.paymentSecretKey, "Stripe's secret key"],
    ['PAYMENT_WEBHOOK_SECRET', config.paymentWebhookSecret, 'the signing secret of the webhook'],
    ['PAYMENT_PRICE_ID', config.paymentPriceId, 'the price that is subscribed to'],
  ];
  const missing = needed
    .filter(([, value]) => value === null)
    .map(([name, , takes]) => ({ name, got: 'nothing', takes: `${takes}: PAYMENT_BILLING_ENABLED is true` }));
  if (config.tenantMode === 'multi') return missing;
  const takes = 'false: there is nobody to bill, TENANT_MODE is single';
  return [{ name: 'PAYMENT_BILLING_ENABLED', got: 'true', takes }, ...missing];
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

/** Every variable in words, in the order of VARIABLES: what the reference's page on configuration is held against. */
export const CONFIG_VARIABLES: readonly Pick<Variable<unknown>, 'name' | 'takes' | 'fallback' | 'parse'>[] = [
  ...Object.values(VARIABLES),
];
