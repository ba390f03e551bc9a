/** The configuration, from environment variables: VARIABLES has their defaults, units and checks (reference, Configuration). */
import { resolve } from 'node:path';
import { CLAIM_TOKEN_MAX } from '../../protocol/limits.js';
import {
  address,
  cidr,
  DAY_MS,
  databaseUrl,
  days,
  flag,
  hostName,
  list,
  matching,
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

/** The configuration is invalid. Lists all invalid variables, so that one start is enough to find them. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    const lines = problems.map(({ name, got, takes }) => `  ${name}: got ${got}; takes ${takes}`);
    super(`The configuration cannot be used:\n${lines.join('\n')}`);
    this.problems = problems;
  }
}

/** A proxy on this machine. Not the private ranges: any host in them could send a forged address. */
const LOOPBACK = ['127.0.0.0/8', '::1/128'];

const HOUR_MS = 3_600_000;
const RATE_MAX = 1_000_000;
const PORT_MAX = 65_535;

/** A bucket's name (Google Cloud Storage and S3; dots are allowed, though they spoil TLS under a bucket's own host). */
const BUCKET = /^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$/;
const PREFIX = /^[A-Za-z0-9._-]{1,64}(\/[A-Za-z0-9._-]{1,64}){0,7}$/;
const MIB = 1024 * 1024;

const bucket = (name: string): Variable<string | null> =>
  optional(name, "a bucket's name: 3 to 222 of a-z 0-9 . _ -", matching(BUCKET));

const endpoint = (name: string): Variable<string | null> =>
  optional(name, 'an http or https URL without user, query and fragment', publicUrl);

const VARIABLES = {
  /** TCP port of HTTP and WebSocket; 0 takes a free one. */
  port: wholeNumber('PORT', [8080, 0, PORT_MAX], '0 picks a free port'),
  /** Processes that share the port; see src/server/app/instances.ts. */
  instances: wholeNumber('INSTANCES', [1, 1, 256], 'processes on one port'),
  /** Default time over which SIGUSR2 and `service-admin drain` spread the closing of sockets; in minutes. */
  drainMinutes: wholeNumber('DRAIN_MINUTES', [5, 0, 120], 'minutes'),
  /** Address to listen on. */
  host: variable('HOST', 'an IP address or a host name', { fallback: '0.0.0.0', parse: address }),
  /** One tenant, whatever the host, or one for each name under `baseDomain`. */
  tenantMode: oneOf('TENANT_MODE', ['single', 'multi'], 'single'),
  /** Multi mode: tenants are `<slug>.<base domain>`, lower case. Falls back to DOMAIN; read it through `apexOf`. */
  baseDomain: optional('BASE_DOMAIN', 'a host name without scheme, port and path', hostName),
  /** PostgreSQL 14 or newer; null: the embedded PostgreSQL under `dataDir`. */
  databaseUrl: {
    ...optional(
      'DATABASE_URL',
      'postgres://user:password@host:port/database, several as host:port,host:port, or nothing for the embedded PostgreSQL',
      databaseUrl,
    ),
    secret: true,
  },
  /** A direct URL, for LISTEN and locks, when `databaseUrl` leads through a transaction pooler; null: it does not. */
  listenDatabaseUrl: {
    ...optional('LISTEN_DATABASE_URL', 'postgres://user:password@host:port/database, past the pooler', databaseUrl),
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
  /** Grants access to the admin endpoints; null: they answer `forbidden`. Never generated. */
  adminToken: secret('ADMIN_TOKEN', 8, SECRET_MAX),
  /** When set, bootstrap in single mode requires it as `claimToken`, whose length is bounded. */
  bootstrapToken: secret('BOOTSTRAP_TOKEN', 8, CLAIM_TOKEN_MAX),
  /** Where clients reach the server, without a trailing slash; read it through `publicHosts`. */
  publicUrl: optional('PUBLIC_URL', 'an http or https URL without user, query and fragment', publicUrl),
  /** Host name of the deployment, lower case; read it through `publicHosts`. */
  domain: optional('DOMAIN', 'a host name without scheme, port and path', hostName),
  /** Origins from which browsers may call (`*`: any); empty: none. */
  corsOrigins: variable<readonly string[]>(
    'CORS_ORIGINS',
    'origins such as https://app.example.com separated by commas, or *',
    { fallback: Object.freeze([]), parse: (text) => list(text, origin) },
  ),
  /** Devices of one tenant that are not revoked. An item carries at most 1,000 keys, so more could never write. */
  maxDevices: wholeNumber('MAX_DEVICES', [100, 1, 1_000], 'devices'),
  /** Shape of requests and sockets that do not show one. */
  wireShape: oneOf('WIRE_SHAPE', ['a', 'b'], 'a'),
  /** Which item writes must carry `sig`. */
  requireSig: oneOf('REQUIRE_SIG', ['always', 'a', 'never'], 'a'),
  /** What `/me` reports as `server.region`. */
  region: variable('REGION', '1 to 64 of the characters A-Z a-z 0-9 . _ -', {
    fallback: 'local',
    parse: matching(/^[A-Za-z0-9._-]{1,64}$/),
  }),
  /** Port of the Prometheus metrics; 0: off. */
  metricsPort: wholeNumber('METRICS_PORT', [0, 1, PORT_MAX]),
  /** Address of the metrics; loopback by default, since they are served without authentication. */
  metricsHost: variable('METRICS_HOST', 'an IP address or a host name', { fallback: '127.0.0.1', parse: address }),
  logLevel: oneOf('LOG_LEVEL', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'], 'info'),
  /** Whether the server refuses to start with an untested build of uWebSockets.js. */
  uwsStrict: oneOf('UWS_STRICT', ['on', 'off'], 'off'),
  /** Whether the web app is served under `/`. */
  webApp: oneOf('WEB_APP', ['on', 'off'], 'on'),
  /** Peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted, as `address/prefix`. */
  trustedProxies: variable<readonly string[]>(
    'TRUSTED_PROXIES',
    'addresses or ranges such as 10.0.0.0/8 separated by commas, or none',
    { fallback: Object.freeze(LOOPBACK), parse: (text) => (text === 'none' ? Object.freeze([]) : list(text, cidr)) },
  ),
  /** Per device and instance; 0: off. */
  rateReadPerS: wholeNumber('RATE_READ_PER_S', [100, 0, RATE_MAX], 'per second, 0 is off'),
  /** Per device and instance; 0: off. */
  rateWritePerS: wholeNumber('RATE_WRITE_PER_S', [10, 0, RATE_MAX], 'per second, 0 is off'),
  /** Per client address, across instances; 0: off. */
  ratePairPerMin: wholeNumber('RATE_PAIR_PER_MIN', [5, 0, RATE_MAX], 'per minute, 0 is off'),
  /** Bytes a tenant may hold; 0: unlimited. */
  storageCapBytes: wholeNumber('STORAGE_CAP_BYTES', [0, 0, Number.MAX_SAFE_INTEGER], 'bytes, 0 is unlimited'),
  /** The blob store: a folder under `dataDir`, or a bucket. */
  storageKind: oneOf('STORAGE_KIND', ['local', 'gcs', 's3'], 'local'),
  /** Key of the MAC in the local store's URLs; null: generated and stored under `dataDir` (see secrets.ts). */
  blobUrlSecret: secret('BLOB_URL_SECRET', 16, SECRET_MAX),
  /** Bytes of the largest blob; the variable is in MiB. */
  maxBlobBytes: {
    ...wholeNumber('MAX_BLOB_SIZE_MB', [1_024, 1, 1_048_576], 'MiB'),
    fallback: 1_024 * MIB,
    parse: (text) => {
      const megabytes = /^\d{1,7}$/.test(text) ? Number(text) : 0;
      return megabytes >= 1 && megabytes <= 1_048_576 ? megabytes * MIB : undefined;
    },
  } satisfies Variable<number>,
  /** Prefix of all names in the bucket, without slashes at its ends; null: none. */
  storagePrefix: optional(
    'STORAGE_PREFIX',
    'up to 8 parts of A-Z a-z 0-9 . _ - joined by slashes, none of them . or ..',
    (text) => (PREFIX.test(text) && !text.split('/').some((part) => /^\.{1,2}$/.test(part)) ? text : undefined),
  ),
  gcsBucket: bucket('GCS_BUCKET'),
  /** Another server than Google's. */
  gcsEndpoint: endpoint('GCS_ENDPOINT'),
  s3Bucket: bucket('S3_BUCKET'),
  /** The region in signatures; null: as the AWS SDK determines it. */
  s3Region: optional('S3_REGION', 'a region such as eu-central-1; auto for R2', matching(/^[a-z0-9-]{2,64}$/)),
  /** Another server than AWS: R2, MinIO, Ceph. */
  s3Endpoint: endpoint('S3_ENDPOINT'),
  /** The endpoint for clients; null: the same. */
  s3PublicEndpoint: endpoint('S3_PUBLIC_ENDPOINT'),
  /** Whether the bucket is in the path instead of the host name; null: yes where an endpoint is set. */
  s3ForcePathStyle: optional('S3_FORCE_PATH_STYLE', 'true or false', flag),
  /** A deleted item is reduced to its tombstone after this time, ms; the variable is in days. */
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
  /** Whether hosted tenants pay. */
  paymentBillingEnabled: variable('PAYMENT_BILLING_ENABLED', 'true or false', { fallback: false, parse: flag }),
  /** Stripe's secret key. */
  paymentSecretKey: secret('PAYMENT_SECRET_KEY', 8, SECRET_MAX),
  /** The key of Stripe's webhook signatures. */
  paymentWebhookSecret: secret('PAYMENT_WEBHOOK_SECRET', 8, SECRET_MAX),
  /** The price of the subscription. */
  paymentPriceId: optional(
    'PAYMENT_PRICE_ID',
    'the id of a price, such as price_1AbC',
    matching(/^[A-Za-z0-9_.-]{1,255}$/),
  ),
  /** A tenant with a failed payment is served for this time, ms; the variable is in days. */
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
  wsPingIntervalMs: wholeNumber('WS_PING_INTERVAL_MS', [30_000, 20, HOUR_MS], 'milliseconds'),
  /** A socket without any sign of life for this time is closed. */
  wsPongGraceMs: wholeNumber('WS_PONG_GRACE_MS', [90_000, 40, 3 * HOUR_MS], 'milliseconds'),
};

/** A variable's text; an empty one counts as unset, since compose files cannot omit it. */
const textOf = (env: NodeJS.ProcessEnv, name: string): string => env[name]?.trim() ?? '';

/** The server's configuration, frozen. Times are milliseconds, sizes bytes; the fields are described in VARIABLES. */
export type Config = ValuesOf<typeof VARIABLES>;

/** An invalid value for messages: without secrets, passwords of URLs and control characters. */
function shown(text: string, isSecret: boolean | undefined): string {
  if (isSecret === true) return `a value of ${text.length} characters (not shown)`;
  const harmless = text.replace(/\/\/[^/\s]*@/g, '//***@');
  return JSON.stringify(harmless.length > 100 ? `${harmless.slice(0, 100)}...` : harmless);
}

/** A variable that another one's value requires. */
const missing = (name: string, takes: string): ConfigProblem => ({ name, got: 'nothing', takes });

/** Checks between variables, each of which is valid by itself. */
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
    found.push(missing('BASE_DOMAIN', 'the domain whose subdomains are the tenants: TENANT_MODE is multi'));
  }
  // LISTEN_DATABASE_URL bypasses a pooler, whose own address is DATABASE_URL.
  if (config.listenDatabaseUrl !== null && config.databaseUrl === null) {
    found.push(missing('DATABASE_URL', 'the pooler: LISTEN_DATABASE_URL is set'));
  }
  const { storageKind } = config;
  const bucketTakes = `the bucket that blobs are kept in: STORAGE_KIND is ${storageKind}`;
  if (storageKind === 'gcs' && config.gcsBucket === null) found.push(missing('GCS_BUCKET', bucketTakes));
  if (storageKind === 's3' && config.s3Bucket === null) found.push(missing('S3_BUCKET', bucketTakes));
  return [...found, ...metricsConflicts(config), ...billingConflicts(config)];
}

/** The metrics ports of all instances, counted up from the first, must be valid and other ports than PORT. */
function metricsConflicts({ metricsPort: first, instances, port }: Config): ConfigProblem[] {
  const last = first + instances - 1;
  const got = instances === 1 ? String(first) : `${first}, and ${last} for the last of ${instances} INSTANCES`;
  if (first === 0) return [];
  if (last > PORT_MAX) return [{ name: 'METRICS_PORT', got, takes: `at most ${PORT_MAX - instances + 1}` }];
  if (port < first || port > last) return [];
  return [{ name: 'METRICS_PORT', got, takes: `ports other than PORT (${port})` }];
}

/** The variables that billing requires. */
function billingConflicts(config: Config): ConfigProblem[] {
  if (!config.paymentBillingEnabled) return [];
  const needed: readonly (readonly [name: string, value: string | null, takes: string])[] = [
    ['PAYMENT_SECRET_KEY', config.paymentSecretKey, "Stripe's secret key"],
    ['PAYMENT_WEBHOOK_SECRET', config.paymentWebhookSecret, 'the signing secret of the webhook'],
    ['PAYMENT_PRICE_ID', config.paymentPriceId, 'the price that is subscribed to'],
  ];
  const absent = needed
    .filter(([, value]) => value === null)
    .map(([name, , takes]) => missing(name, `${takes}: PAYMENT_BILLING_ENABLED is true`));
  if (config.tenantMode === 'multi') return absent;
  const takes = 'false: there is nobody to bill, TENANT_MODE is single';
  return [{ name: 'PAYMENT_BILLING_ENABLED', got: 'true', takes }, ...absent];
}

/** The URL of connections that need a session of their own; null: the embedded PostgreSQL. */
export const sessionDatabaseUrl = ({
  databaseUrl,
  listenDatabaseUrl,
}: Pick<Config, 'databaseUrl' | 'listenDatabaseUrl'>): string | null => listenDatabaseUrl ?? databaseUrl;

/** The domain of a hosted service, lower case, without a final dot; empty in single mode and where none is named. */
export function apexOf({
  tenantMode,
  baseDomain,
  domain,
}: Pick<Config, 'tenantMode' | 'baseDomain' | 'domain'>): string {
  return tenantMode === 'multi' ? (baseDomain ?? domain ?? '') : '';
}

/** The URL of a host of a hosted service, without a trailing slash: https, or scheme and port of `PUBLIC_URL`. */
function hostedUrl(publicUrl: string | null, host: string): string {
  const { protocol, port } = new URL(publicUrl ?? `https://${host}`);
  return `${protocol}//${host}${port === '' ? '' : `:${port}`}`;
}

/** The URL of a hosted service's own page, where tenants sign up. */
export const apexUrl = (config: Config): string => hostedUrl(config.publicUrl, apexOf(config));

/** The URL of a tenant of a hosted service, by its name. */
export const tenantUrl = (config: Config, slug: string): string =>
  hostedUrl(config.publicUrl, `${slug}.${apexOf(config)}`);

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
 * The host names that clients dial, for proxies that pass on another `Host`: of `PUBLIC_URL` and `DOMAIN`, lower case,
 * without port. Empty where neither is set and in multi mode: the request's own host counts.
 */
export function publicHosts(config: Pick<Config, 'tenantMode' | 'publicUrl' | 'domain'>): readonly string[] {
  const { publicUrl, domain } = config;
  if (config.tenantMode === 'multi') return [];
  const named = publicUrl === null ? [] : [new URL(publicUrl).hostname];
  return [...new Set(domain === null ? named : [...named, domain])];
}

/** Every variable in the order of VARIABLES, for the check of the reference's page on configuration. */
export const CONFIG_VARIABLES: readonly Pick<Variable<unknown>, 'name' | 'takes' | 'fallback' | 'parse'>[] = [
  ...Object.values(VARIABLES),
];
