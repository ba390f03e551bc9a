/** The configuration, from environment variables: VARIABLES has their defaults, units and checks (reference, Configuration). */
import { isIP } from 'node:net';
import { resolve } from 'node:path';
import { DAY_MS, HOUR_MS } from '../../protocol/clock.js';
import { databaseAddress } from '../../protocol/database-url.js';
import { CLAIM_TOKEN_MAX } from '../../protocol/limits.js';

/** One environment variable. `parse` returns undefined for an invalid value. */
interface Variable<T> {
  readonly name: string;
  /** Describes the valid values, with their unit, in the error message. */
  readonly takes: string;
  /** The value when the variable is unset or empty. */
  readonly fallback: T;
  readonly secret?: boolean;
  readonly parse: (text: string) => T | undefined;
}

/** One invalid variable: its name, its value (never that of a secret) and what it takes. */
interface ConfigProblem {
  readonly name: string;
  readonly got: string;
  readonly takes: string;
}

/** A variable with a default. */
function variable<T>(name: string, takes: string, fallback: T, parse: Variable<T>['parse']): Variable<T> {
  return { name, takes, fallback, parse };
}

/** A variable that is null when unset. */
const optional = <T>(name: string, takes: string, parse: Variable<T>['parse']): Variable<T | null> =>
  variable<T | null>(name, takes, null, parse);

/** A whole number within bounds; `unit` names what it counts. */
function wholeNumber(
  name: string,
  [fallback, min, max]: readonly [fallback: number, min: number, max: number],
  unit?: string,
): Variable<number> {
  const parse = (text: string): number | undefined => {
    const value = /^\d{1,16}$/.test(text) ? Number(text) : NaN;
    return value >= min && value <= max ? value : undefined;
  };
  return variable(name, `a whole number from ${min} to ${max}${unit ? ` (${unit})` : ''}`, fallback, parse);
}

/** The environment has the value in a larger unit, of `unit` smaller ones; the configuration has it in the smaller. */
function inUnitsOf(unit: number, { fallback, parse, ...rest }: Variable<number>): Variable<number> {
  const scaled = (text: string): number | undefined => {
    const count = parse(text);
    return count === undefined ? undefined : count * unit;
  };
  return { ...rest, fallback: fallback * unit, parse: scaled };
}

/** One of a few fixed values. */
function oneOf<const T extends string>(name: string, values: readonly T[], fallback: T): Variable<T> {
  const parse = (text: string): T | undefined => values.find((value) => value === text);
  return variable(name, `one of ${values.join(', ')}`, fallback, parse);
}

/** A token or key of the operator. It is sent in headers, so it is visible ASCII without spaces. */
function secret(name: string, min: number, max: number): Variable<string | null> {
  const parse = (text: string): string | undefined =>
    text.length >= min && text.length <= max && /^[\x21-\x7e]+$/.test(text) ? text : undefined;
  const takes = `at least ${min} visible ASCII characters without spaces, at most ${max}`;
  return { ...optional(name, takes, parse), secret: true };
}

/** Longest secret: it has to fit into the head of a request (`HEAD_MAX`). */
const SECRET_MAX = 1_024;

/** The maximum of all variables in days: ten years. */
const DAYS_MAX = 3_650;

/** Days, which may have a fraction, as milliseconds. */
function days(text: string): number | undefined {
  const value = /^\d{1,4}(\.\d{1,9})?$/.test(text) ? Math.round(Number(text) * DAY_MS) : 0;
  return value >= 1 && value <= DAYS_MAX * DAY_MS ? value : undefined;
}

/** A whole number from 0 to `DAYS_MAX` days, as milliseconds. */
const wholeDays = (name: string, fallback: number): Variable<number> =>
  inUnitsOf(DAY_MS, wholeNumber(name, [fallback, 0, DAYS_MAX], 'days'));

/** A parser of texts that fit `pattern`. */
const matching =
  (pattern: RegExp) =>
  (text: string): string | undefined =>
    pattern.test(text) ? text : undefined;

/** A host name (RFC 1123). */
const HOST_NAME = /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$/i;

const parsedUrl = (text: string): URL | undefined => (URL.canParse(text) ? new URL(text) : undefined);

/** A host name in lower case. */
const hostName = (text: string): string | undefined => (HOST_NAME.test(text) ? text.toLowerCase() : undefined);

/** A boolean. */
const flag = (text: string): boolean | undefined => (text === 'true' || text === 'false' ? text === 'true' : undefined);

/** Where to listen: an IP address or a host name. */
const address = (text: string): string | undefined => (isIP(text) !== 0 || HOST_NAME.test(text) ? text : undefined);

/** The address of a PostgreSQL database, or of several servers of which one takes writes. */
const databaseUrl = (text: string): string | undefined => (databaseAddress(text) === undefined ? undefined : text);

/** A base URL: without user, query, fragment and trailing slash. */
export function publicUrl(text: string): string | undefined {
  const url = parsedUrl(text);
  if (url === undefined || (url.protocol !== 'http:' && url.protocol !== 'https:')) return undefined;
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') return undefined;
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '');
}

/** A comma-separated list; undefined where an entry is invalid. */
function list(text: string, entry: (part: string) => string | undefined): readonly string[] | undefined {
  const parts = text.split(',').map((part) => entry(part.trim()));
  return parts.every((part) => part !== undefined) ? Object.freeze(parts) : undefined;
}

/** An origin as browsers write it, or `*`. */
function origin(text: string): string | undefined {
  if (text === '*') return text;
  const url = parsedUrl(text);
  return (url?.protocol === 'http:' || url?.protocol === 'https:') && url.origin === text.toLowerCase()
    ? url.origin
    : undefined;
}

/** An address or a range, as `address/prefix`. */
function cidr(text: string): string | undefined {
  const match = /^([0-9a-f.:]+)(?:\/(\d{1,3}))?$/i.exec(text);
  const address = match?.[1] ?? '';
  const bits = isIP(address) === 4 ? 32 : isIP(address) === 6 ? 128 : undefined;
  if (bits === undefined) return undefined;
  const prefix = match?.[2] === undefined ? bits : Number(match[2]);
  return prefix <= bits ? `${address}/${prefix}` : undefined;
}

/** The configuration is invalid. Lists all invalid variables, so that one start is enough to find them. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';

  constructor(readonly problems: readonly ConfigProblem[]) {
    const lines = problems.map(({ name, got, takes }) => `  ${name}: got ${got}; takes ${takes}`);
    super(`The configuration cannot be used:\n${lines.join('\n')}`);
  }
}

/** A proxy on this machine. Not the private ranges: any host in them could send a forged address. */
const LOOPBACK = ['127.0.0.0/8', '::1/128'];

const RATE_MAX = 1_000_000;
const PORT_MAX = 65_535;

/** A bucket's name (Google Cloud Storage and S3; dots are allowed, though they spoil TLS under a bucket's own host). */
const BUCKET = /^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$/;
const PREFIX = /^[A-Za-z0-9._-]{1,64}(\/[A-Za-z0-9._-]{1,64}){0,7}$/;
const MIB = 1024 * 1024;

/** Secret, since it contains a password; `more` follows the form of the URL in its description. */
const database = (name: string, more: string): Variable<string | null> => ({
  ...optional(name, `postgres://user:password@host:port/database with a percent-encoded password${more}`, databaseUrl),
  secret: true,
});

const bucket = (name: string): Variable<string | null> =>
  optional(name, "a bucket's name: 3 to 222 of a-z 0-9 . _ -", matching(BUCKET));

const endpoint = (name: string): Variable<string | null> =>
  optional(name, 'an http or https URL without user, query and fragment', publicUrl);

const VARIABLES = {
  /** TCP port of HTTP and WebSocket; 0 takes a free one. */
  port: wholeNumber('PORT', [8080, 0, PORT_MAX], '0 picks a free port'),
  /** Processes of this machine; see src/server/app/instances.ts. */
  instances: wholeNumber('INSTANCES', [1, 1, 256], 'processes'),
  /** Whether they share `port`, or each has a port of its own, counted up from it. */
  instancePorts: oneOf('INSTANCE_PORTS', ['shared', 'own'], 'shared'),
  /** Default time over which SIGUSR2 and `service-admin drain` spread the closing of sockets; in minutes. */
  drainMinutes: wholeNumber('DRAIN_MINUTES', [5, 0, 120], 'minutes'),
  /** Address to listen on. */
  host: variable('HOST', 'an IP address or a host name', '0.0.0.0', address),
  /** One tenant, whatever the host, or one for each name under `baseDomain`. */
  tenantMode: oneOf('TENANT_MODE', ['single', 'multi'], 'single'),
  /** Multi mode: tenants are `<slug>.<base domain>`, lower case. Falls back to DOMAIN; read it through `apexOf`. */
  baseDomain: optional('BASE_DOMAIN', 'a host name without scheme, port and path', hostName),
  /** PostgreSQL 14 or newer; null: the embedded PostgreSQL under `dataDir`. */
  databaseUrl: database('DATABASE_URL', ', several as host:port,host:port, or nothing for the embedded PostgreSQL'),
  /** A direct URL, for LISTEN and locks, when `databaseUrl` leads through a transaction pooler; null: it does not. */
  listenDatabaseUrl: database('LISTEN_DATABASE_URL', ', past the pooler'),
  /** Absolute path of the folder with the embedded PostgreSQL, the local blob store and the generated secrets. */
  dataDir: variable('DATA_DIR', 'the path of a folder', resolve('data'), (text) =>
    text.includes('\0') ? undefined : resolve(text),
  ),
  /** Key of the tokens' MAC; null: generated and kept under `dataDir` (see secrets.ts). */
  tokenSecret: secret('TOKEN_SECRET', 16, SECRET_MAX),
  /** Lifetime of a bearer token in milliseconds; the variable is in days and may be a fraction. */
  tokenTtlMs: variable('TOKEN_TTL_DAYS', `a number of days above 0, at most ${DAYS_MAX}`, 30 * DAY_MS, days),
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
    Object.freeze([]),
    (text) => list(text, origin),
  ),
  /** Devices of one tenant that are not revoked. An item carries at most 1,000 keys, so more could never write. */
  maxDevices: wholeNumber('MAX_DEVICES', [100, 1, 1_000], 'devices'),
  /** Shape of requests and sockets that do not show one. */
  wireShape: oneOf('WIRE_SHAPE', ['a', 'b'], 'a'),
  /** Which item writes must carry `sig`. */
  requireSig: oneOf('REQUIRE_SIG', ['always', 'a', 'never'], 'a'),
  /** What `/me` reports as `server.region`. */
  region: variable('REGION', '1 to 64 of the characters A-Z a-z 0-9 . _ -', 'local', matching(/^[\w.-]{1,64}$/)),
  /** Port of the Prometheus metrics; 0: off. */
  metricsPort: wholeNumber('METRICS_PORT', [0, 1, PORT_MAX]),
  /** Address of the metrics; loopback by default, since they are served without authentication. */
  metricsHost: variable('METRICS_HOST', 'an IP address or a host name', '127.0.0.1', address),
  logLevel: oneOf('LOG_LEVEL', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'], 'info'),
  /** Whether the server refuses to start with an untested build of uWebSockets.js. */
  uwsStrict: oneOf('UWS_STRICT', ['on', 'off'], 'off'),
  /** Whether the web app is served under `/`. */
  webApp: oneOf('WEB_APP', ['on', 'off'], 'on'),
  /** Peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted, as `address/prefix`. */
  trustedProxies: variable<readonly string[]>(
    'TRUSTED_PROXIES',
    'addresses or ranges such as 10.0.0.0/8 separated by commas, or none',
    Object.freeze(LOOPBACK),
    (text) => (text === 'none' ? Object.freeze([]) : list(text, cidr)),
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
  maxBlobBytes: inUnitsOf(MIB, wholeNumber('MAX_BLOB_SIZE_MB', [1_024, 1, 1_048_576], 'MiB')),
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
  softDeleteMs: wholeDays('SOFT_DELETE_DAYS', 30),
  /** When the nightly jobs run, minutes after midnight in the machine's local time. */
  purgeAt: variable('PURGE_AT', 'a time of day such as 03:30', 3 * 60 + 30, (text) => {
    const match = /^([01]\d|2[0-3]):([0-5]\d)$/.exec(text);
    return match === null ? undefined : Number(match[1]) * 60 + Number(match[2]);
  }),
  /** Whether hosted tenants pay. */
  paymentBillingEnabled: variable('PAYMENT_BILLING_ENABLED', 'true or false', false, flag),
  /** Stripe's secret key. */
  paymentSecretKey: secret('PAYMENT_SECRET_KEY', 8, SECRET_MAX),
  /** The key of Stripe's webhook signatures. */
  paymentWebhookSecret: secret('PAYMENT_WEBHOOK_SECRET', 8, SECRET_MAX),
  /** The price of the subscription. */
  paymentPriceId: optional('PAYMENT_PRICE_ID', 'the id of a price, such as price_1AbC', matching(/^[\w.-]{1,255}$/)),
  /** A tenant with a failed payment is served for this time, ms; the variable is in days. */
  paymentGraceMs: wholeDays('PAYMENT_GRACE_DAYS', 7),
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

/** The server's configuration, frozen. Times are milliseconds, sizes bytes; the fields are described in VARIABLES. */
export type Config = {
  readonly [K in keyof typeof VARIABLES]: (typeof VARIABLES)[K] extends Variable<infer T> ? T : never;
};

/** An invalid value for messages: without secrets, passwords of URLs and control characters. */
function shown(text: string, isSecret: boolean | undefined): string {
  if (isSecret === true) return `a value of ${text.length} characters (not shown)`;
  const redacted = text.replace(/\/\/[^/\s]*@/g, '//***@');
  return JSON.stringify(redacted.length > 100 ? `${redacted.slice(0, 100)}...` : redacted);
}

/** The variables that contradict others, or lack one that they require; each is valid by itself. */
function conflicts(config: Config): ConfigProblem[] {
  const { instances, metricsPort, port, paymentBillingEnabled: bills, storageKind, wsPingIntervalMs } = config;
  const lastPort = portOf(config, instances - 1);
  const multi = config.tenantMode === 'multi';
  const bucketTakes = `the bucket that blobs are kept in: STORAGE_KIND is ${storageKind}`;
  const forTenants = 'the domain whose subdomains are the tenants: TENANT_MODE is multi';
  const forBilling = 'PAYMENT_BILLING_ENABLED is true';
  const pooled = config.listenDatabaseUrl !== null;
  const lacks = (value: string | null): boolean => bills && value === null;
  // The metrics ports of all instances, counted up from the first.
  const last = metricsPort + instances - 1;
  const ports =
    instances === 1 ? String(metricsPort) : `${metricsPort}, and ${last} for the last of ${instances} INSTANCES`;
  // `got` is left out where the variable is not set, and another one requires it.
  const checks: readonly (readonly [name: string, conflict: boolean, takes: string, got?: string])[] = [
    [
      'WS_PONG_GRACE_MS',
      config.wsPongGraceMs <= wsPingIntervalMs,
      `more than WS_PING_INTERVAL_MS (${wsPingIntervalMs}): a client must be pinged before it can be late`,
      String(config.wsPongGraceMs),
    ],
    ['BASE_DOMAIN', multi && apexOf(config) === '', forTenants],
    // LISTEN_DATABASE_URL bypasses a pooler, whose own address is DATABASE_URL.
    ['DATABASE_URL', pooled && config.databaseUrl === null, 'the pooler: LISTEN_DATABASE_URL is set'],
    ['GCS_BUCKET', storageKind === 'gcs' && config.gcsBucket === null, bucketTakes],
    ['S3_BUCKET', storageKind === 's3' && config.s3Bucket === null, bucketTakes],
    ['PORT', lastPort > PORT_MAX, `at most ${PORT_MAX - instances + 1}: INSTANCE_PORTS is own`, String(port)],
    ['PORT', port === 0 && lastPort > 0, 'the first of the ports: INSTANCE_PORTS is own', '0'],
    ['METRICS_PORT', metricsPort > 0 && last > PORT_MAX, `at most ${PORT_MAX - instances + 1}`, ports],
    [
      'METRICS_PORT',
      metricsPort > 0 && last <= PORT_MAX && lastPort >= metricsPort && port <= last,
      `ports other than PORT (${port}${lastPort > port ? ` to ${lastPort}` : ''})`,
      ports,
    ],
    ['PAYMENT_BILLING_ENABLED', bills && !multi, 'false: there is nobody to bill, TENANT_MODE is single', 'true'],
    ['PAYMENT_SECRET_KEY', lacks(config.paymentSecretKey), `Stripe's secret key: ${forBilling}`],
    ['PAYMENT_WEBHOOK_SECRET', lacks(config.paymentWebhookSecret), `the signing secret of the webhook: ${forBilling}`],
    ['PAYMENT_PRICE_ID', lacks(config.paymentPriceId), `the price that is subscribed to: ${forBilling}`],
  ];
  return checks.flatMap(([name, conflict, takes, got = 'nothing']) => (conflict ? [{ name, got, takes }] : []));
}

/** The port of the instance `n` of this machine, counted from 0. */
export const portOf = ({ port, instancePorts }: Pick<Config, 'port' | 'instancePorts'>, n: number): number =>
  instancePorts === 'own' ? port + n : port;

/** The URL of connections that need a session of their own; null: the embedded PostgreSQL. */
export const sessionDatabaseUrl = ({ databaseUrl, listenDatabaseUrl }: Config): string | null =>
  listenDatabaseUrl ?? databaseUrl;

/** The domain of a hosted service, lower case, without a final dot; empty in single mode and where none is named. */
export const apexOf = ({ tenantMode, baseDomain, domain }: Config): string =>
  tenantMode === 'multi' ? (baseDomain ?? domain ?? '') : '';

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
  for (const [field, { name, takes, fallback, secret, parse }] of Object.entries<Variable<unknown>>(VARIABLES)) {
    // An empty text counts as unset, since compose files cannot omit a variable.
    const text = env[name]?.trim() ?? '';
    values[field] = text === '' ? fallback : parse(text);
    if (values[field] === undefined) problems.push({ name, got: shown(text, secret), takes });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const config = Object.freeze(values) as Config;
  const conflicting = conflicts(config);
  if (conflicting.length > 0) throw new ConfigError(conflicting);
  return config;
}

/**
 * The host names that clients dial, whatever `Host` a proxy or a relaying server sends: of `PUBLIC_URL` and `DOMAIN`, lower
 * case, without port. Empty where neither is set and in multi mode: the request's own host counts.
 */
export function publicHosts(config: Pick<Config, 'tenantMode' | 'publicUrl' | 'domain'>): readonly string[] {
  const { publicUrl, domain } = config;
  if (config.tenantMode === 'multi') return [];
  const named = publicUrl === null ? [] : [new URL(publicUrl).hostname];
  return [...new Set(domain === null ? named : [...named, domain])];
}

/** Every variable in the order of VARIABLES, for the check of the reference's page on configuration. */
export const CONFIG_VARIABLES: readonly Variable<unknown>[] = Object.values(VARIABLES);
