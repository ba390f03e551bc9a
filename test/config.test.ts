import { chmod, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import t from 'tap';
import { ConfigError, publicHosts, readConfig } from '../src/server/config/config.js';
import { fingerprintOf, keptSecret, serverSecrets } from '../src/server/config/secrets.js';
import { temporaryFolder } from './support/postgres.js';

const DAY_MS = 86_400_000;

/** The problems of an environment; fails when it is accepted. */
function problemsOf(env: NodeJS.ProcessEnv): ConfigError {
  try {
    readConfig(env);
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
  throw new Error(`accepted: ${JSON.stringify(env)}`);
}

const modeOf = async (path: string): Promise<number> => (await stat(path)).mode & 0o777;

const DEFAULTS = {
  port: 8080,
  instances: 1,
  instancePorts: 'shared',
  drainMinutes: 5,
  host: '0.0.0.0',
  tenantMode: 'single',
  baseDomain: null,
  databaseUrl: null,
  listenDatabaseUrl: null,
  dataDir: resolve('data'),
  tokenSecret: null,
  tokenTtlMs: 30 * DAY_MS,
  adminToken: null,
  bootstrapToken: null,
  publicUrl: null,
  domain: null,
  corsOrigins: [],
  maxDevices: 100,
  wireShape: 'a',
  requireSig: 'a',
  region: 'local',
  metricsPort: 0,
  metricsHost: '127.0.0.1',
  logLevel: 'info',
  uwsStrict: 'off',
  webApp: 'on',
  trustedProxies: ['127.0.0.0/8', '::1/128'],
  rateReadPerS: 100,
  rateWritePerS: 10,
  ratePairPerMin: 5,
  storageCapBytes: 0,
  storageKind: 'local',
  blobUrlSecret: null,
  maxBlobBytes: 1_024 * 1_024 * 1_024,
  storagePrefix: null,
  gcsBucket: null,
  gcsEndpoint: null,
  s3Bucket: null,
  s3Region: null,
  s3Endpoint: null,
  s3PublicEndpoint: null,
  s3ForcePathStyle: null,
  softDeleteMs: 30 * DAY_MS,
  purgeAt: 210,
  paymentBillingEnabled: false,
  paymentSecretKey: null,
  paymentWebhookSecret: null,
  paymentPriceId: null,
  paymentGraceMs: 7 * DAY_MS,
  paymentApiBase: null,
  wsPingIntervalMs: 30_000,
  wsPongGraceMs: 90_000,
};

/** Name, values that are refused, a part of the rule that the message must give. */
const BAD: readonly (readonly [string, readonly string[], RegExp])[] = [
  ['PORT', ['http', '-1', '65536', '80.5', '8080 8081', '0x50', '1e3'], /from 0 to 65535/],
  ['INSTANCES', ['0', '257', 'all'], /from 1 to 256/],
  ['INSTANCE_PORTS', ['each', '8080-8083'], /one of shared, own/],
  ['DRAIN_MINUTES', ['-1', '121', '5m'], /from 0 to 120/],
  ['HOST', ['http://a', 'a b', '-a', 'a..b', '1.2.3.4:80'], /an IP address or a host name/],
  ['TENANT_MODE', ['both', 'Single'], /one of single, multi/],
  ['BASE_DOMAIN', ['http://a', 'a b', 'a:80', 'a/b'], /a host name without/],
  ['DATABASE_URL', ['mysql://u:hunter2@h/d', 'postgres://u:hunter2@h', 'hunter2'], /postgres:\/\//],
  ['LISTEN_DATABASE_URL', ['mysql://u:hunter2@h/d', 'hunter2'], /past the pooler/],
  ['DATA_DIR', ['a\0b'], /the path of a folder/],
  ['TOKEN_SECRET', ['hunter2', 'hunter2 with spaces in it', 'hunter2-éééééééééééééé'], /at least 16 visible ASCII/],
  [
    'TOKEN_TTL_DAYS',
    ['0', '-1', 'month', '3651', '1e9', 'Infinity', '0.000000001'],
    /a number of days above 0, at most 3650/,
  ],
  ['ADMIN_TOKEN', ['hunter2', 'hunter2\thunter2', 'hunter2!'.repeat(129)], /at least 8 visible ASCII .* at most 1024/],
  // A claimToken has at most 256 characters: with a longer one nobody could ever claim the server.
  ['BOOTSTRAP_TOKEN', ['hunter2', 'hunter2-'.repeat(32) + '!'], /at least 8 visible ASCII .* at most 256/],
  [
    'PUBLIC_URL',
    ['sync.example.com', 'ftp://a', 'https://a/?x=1', 'https://a/#x', 'https://u:hunter2@a'],
    /an http or https URL/,
  ],
  ['DOMAIN', ['https://a.example', 'a.example:443', 'a.example/x', '*.example'], /a host name without scheme/],
  [
    'CORS_ORIGINS',
    ['a.example', 'https://a.example/', 'https://a.example,', 'null', 'file:///a'],
    /separated by commas/,
  ],
  ['MAX_DEVICES', ['0', '1001', 'many'], /from 1 to 1000/],
  ['WIRE_SHAPE', ['A', 'c'], /one of a, b/],
  ['REQUIRE_SIG', ['true', 'b'], /one of always, a, never/],
  ['REGION', ['eu west', 'x'.repeat(65)], /1 to 64 of the characters/],
  ['METRICS_PORT', ['0', '65536', 'on'], /from 1 to 65535/],
  ['METRICS_HOST', ['10.0.0.0/8', 'a b', 'http://x'], /an IP address or a host name/],
  ['LOG_LEVEL', ['verbose', 'INFO'], /one of fatal, error, warn, info, debug, trace, silent/],
  ['UWS_STRICT', ['true', 'ON'], /one of on, off/],
  ['WEB_APP', ['true', 'OFF'], /one of on, off/],
  ['TRUSTED_PROXIES', ['10.0.0.0/33', '::/129', 'proxy', '10.0.0.1,', '10.0.0.0/'], /or none/],
  ['RATE_READ_PER_S', ['-1', '1.5', 'off'], /from 0 to 1000000 \(per second, 0 is off\)/],
  ['RATE_WRITE_PER_S', ['-1', 'off'], /per second, 0 is off/],
  ['RATE_PAIR_PER_MIN', ['-1', 'off'], /per minute, 0 is off/],
  ['STORAGE_CAP_BYTES', ['-1', '1GB', '9007199254740992'], /bytes, 0 is unlimited/],
  ['STORAGE_KIND', ['azure', 'S3'], /one of local, gcs, s3/],
  ['BLOB_URL_SECRET', ['hunter2'], /at least 16 visible/],
  ['MAX_BLOB_SIZE_MB', ['0', '1GB', '1048577'], /from 1 to 1048576 \(MiB\)/],
  ['STORAGE_PREFIX', ['/a', 'a/', '../b', 'a//b', 'a b'], /joined by slashes/],
  ['GCS_BUCKET', ['A', 'x y', '-ab'], /a bucket's name/],
  ['GCS_ENDPOINT', ['ftp://h', 'host'], /an http or https URL/],
  ['S3_BUCKET', ['a/b', 'x'], /a bucket's name/],
  ['S3_REGION', ['EU', 'a b'], /a region/],
  ['S3_ENDPOINT', ['minio:9000', 'http://u:hunter2@h'], /an http or https URL/],
  ['S3_PUBLIC_ENDPOINT', ['s3', 'http://h?x=1'], /an http or https URL/],
  ['S3_FORCE_PATH_STYLE', ['1', 'yes'], /true or false/],
  ['SOFT_DELETE_DAYS', ['abc', '-1', '1.5', '3651'], /from 0 to 3650 \(days\)/],
  ['PURGE_AT', ['3:30', '24:00', '12:60', 'night'], /a time of day such as 03:30/],
  ['PAYMENT_BILLING_ENABLED', ['yes', 'TRUE', '1'], /true or false/],
  ['PAYMENT_SECRET_KEY', ['hunter2', 'hunter2 hunter2'], /at least 8 visible ASCII/],
  ['PAYMENT_WEBHOOK_SECRET', ['hunter2', 'hunter2 hunter2'], /at least 8 visible ASCII/],
  ['PAYMENT_PRICE_ID', ['a price', 'price/1'], /the id of a price/],
  ['PAYMENT_GRACE_DAYS', ['week', '-1', '0.5', '3651'], /from 0 to 3650 \(days\)/],
  ['PAYMENT_API_BASE', ['stripe', 'ftp://a', 'http://a/v1', 'http://u:hunter2@a'], /an http or https URL/],
  ['WS_PING_INTERVAL_MS', ['0', '30s', '3600001'], /from 20 to 3600000 \(milliseconds\)/],
  ['WS_PONG_GRACE_MS', ['0', '90s'], /milliseconds/],
];

t.test('CFG-01 BLOB-30: a variable that is unset or blank takes its default', (t) => {
  t.strictSame(readConfig({}), DEFAULTS);
  const names = [...new Set(BAD.map(([name]) => name))];
  t.equal(names.length, Object.keys(DEFAULTS).length, 'the list of bad values has every variable');
  t.strictSame(readConfig(Object.fromEntries(names.map((name) => [name, ' ']))), DEFAULTS);
  t.end();
});

t.test('CFG-01: a variable that is set is read with its unit', (t) => {
  const config = readConfig({
    PORT: '8000',
    INSTANCES: '2',
    INSTANCE_PORTS: 'own',
    DRAIN_MINUTES: '0',
    HOST: '::1',
    TENANT_MODE: 'single',
    DATABASE_URL: 'postgresql://u:p@db.example:5432/sync?sslmode=require',
    LISTEN_DATABASE_URL: 'postgresql://u:p@db.example:5433/sync',
    DATA_DIR: '/var/lib/service/../service',
    TOKEN_SECRET: 'x'.repeat(16),
    TOKEN_TTL_DAYS: '0.5',
    ADMIN_TOKEN: 'let-me-in',
    BOOTSTRAP_TOKEN: 'b'.repeat(256),
    PUBLIC_URL: 'https://Sync.Example.com:8443/base/',
    DOMAIN: 'Sync.Example.com',
    CORS_ORIGINS: 'https://App.example.com, http://localhost:3000',
    MAX_DEVICES: '1000',
    WIRE_SHAPE: 'b',
    REQUIRE_SIG: 'never',
    REGION: 'eu-west-1',
    LOG_LEVEL: 'silent',
    UWS_STRICT: 'on',
    WEB_APP: 'off',
    TRUSTED_PROXIES: '203.0.113.7, 2001:db8::/32',
    RATE_READ_PER_S: '0',
    RATE_WRITE_PER_S: '1',
    RATE_PAIR_PER_MIN: '2',
    STORAGE_CAP_BYTES: '9007199254740991',
    STORAGE_KIND: 's3',
    BLOB_URL_SECRET: 'y'.repeat(16),
    MAX_BLOB_SIZE_MB: '2',
    STORAGE_PREFIX: 'a/b',
    GCS_BUCKET: 'my-bucket',
    GCS_ENDPOINT: 'https://storage.example/',
    S3_BUCKET: 'my.bucket',
    S3_REGION: 'auto',
    S3_ENDPOINT: 'http://minio:9000',
    S3_PUBLIC_ENDPOINT: 'https://files.example',
    S3_FORCE_PATH_STYLE: 'false',
    WS_PING_INTERVAL_MS: '50',
    SOFT_DELETE_DAYS: '7',
    PURGE_AT: '23:59',
    METRICS_PORT: '9000',
    METRICS_HOST: '::',
    PAYMENT_BILLING_ENABLED: 'false',
    PAYMENT_SECRET_KEY: 'sk_test_1234',
    PAYMENT_WEBHOOK_SECRET: 'whsec_1234',
    PAYMENT_PRICE_ID: 'price_1',
    PAYMENT_GRACE_DAYS: '0',
    PAYMENT_API_BASE: 'http://127.0.0.1:12111/',
    WS_PONG_GRACE_MS: '51',
  });
  t.strictSame(config, {
    port: 8000,
    instances: 2,
    instancePorts: 'own',
    drainMinutes: 0,
    host: '::1',
    tenantMode: 'single',
    baseDomain: null,
    databaseUrl: 'postgresql://u:p@db.example:5432/sync?sslmode=require',
    listenDatabaseUrl: 'postgresql://u:p@db.example:5433/sync',
    dataDir: '/var/lib/service',
    tokenSecret: 'x'.repeat(16),
    tokenTtlMs: DAY_MS / 2,
    adminToken: 'let-me-in',
    bootstrapToken: 'b'.repeat(256),
    publicUrl: 'https://sync.example.com:8443/base',
    domain: 'sync.example.com',
    corsOrigins: ['https://app.example.com', 'http://localhost:3000'],
    maxDevices: 1_000,
    wireShape: 'b',
    requireSig: 'never',
    region: 'eu-west-1',
    logLevel: 'silent',
    uwsStrict: 'on',
    webApp: 'off',
    trustedProxies: ['203.0.113.7/32', '2001:db8::/32'],
    rateReadPerS: 0,
    rateWritePerS: 1,
    ratePairPerMin: 2,
    storageCapBytes: Number.MAX_SAFE_INTEGER,
    storageKind: 's3',
    blobUrlSecret: 'y'.repeat(16),
    maxBlobBytes: 2 * 1_024 * 1_024,
    storagePrefix: 'a/b',
    gcsBucket: 'my-bucket',
    gcsEndpoint: 'https://storage.example',
    s3Bucket: 'my.bucket',
    s3Region: 'auto',
    s3Endpoint: 'http://minio:9000',
    s3PublicEndpoint: 'https://files.example',
    s3ForcePathStyle: false,
    metricsPort: 9000,
    metricsHost: '::',
    softDeleteMs: 7 * DAY_MS,
    purgeAt: 23 * 60 + 59,
    paymentBillingEnabled: false,
    paymentSecretKey: 'sk_test_1234',
    paymentWebhookSecret: 'whsec_1234',
    paymentPriceId: 'price_1',
    paymentGraceMs: 0,
    paymentApiBase: 'http://127.0.0.1:12111',
    wsPingIntervalMs: 50,
    wsPongGraceMs: 51,
  });
  t.strictSame(readConfig({ TRUSTED_PROXIES: 'none' }).trustedProxies, []);
  t.strictSame(readConfig({ CORS_ORIGINS: '*' }).corsOrigins, ['*']);
  t.end();
});

t.test('CFG-02 BLOB-30: a bad value is refused with the name, what it got and what it accepts', (t) => {
  const secrets = [
    ...['DATABASE_URL', 'LISTEN_DATABASE_URL', 'TOKEN_SECRET', 'ADMIN_TOKEN', 'BOOTSTRAP_TOKEN'],
    ...['PAYMENT_SECRET_KEY', 'PAYMENT_WEBHOOK_SECRET', 'BLOB_URL_SECRET'],
  ];
  for (const [name, values, rule] of BAD) {
    for (const value of values) {
      const { problems, message } = problemsOf({ [name]: value });
      t.equal(problems.length, 1, `${name}=${JSON.stringify(value)}`);
      const [problem] = problems;
      t.equal(problem?.name, name);
      t.match(problem?.takes, rule);
      t.notMatch(message, /hunter2/, 'a secret is not shown');
      if (secrets.includes(name)) t.match(problem?.got, /^a value of \d+ characters \(not shown\)$/);
      else if (!value.includes('hunter2')) t.equal(problem?.got, JSON.stringify(value));
      t.ok(message.includes(`${name}: got ${problem?.got}; takes ${problem?.takes}`));
    }
  }
  t.end();
});

t.test('CFG-02: all bad values are reported at once, long ones shortened, control characters escaped', (t) => {
  const all = Object.fromEntries(BAD.map(([name, values]) => [name, values[0]]));
  t.strictSame(
    problemsOf(all).problems.map(({ name }) => name),
    [...new Set(BAD.map(([name]) => name))],
  );
  const { message } = problemsOf({ LOG_LEVEL: `\u001b[31m\n${'x'.repeat(5_000)}y` });
  t.ok(message.length < 500);
  t.notMatch(message, /\u001b/);
  t.end();
});

t.test('CFG-02: a pong grace that no ping can meet is refused', (t) => {
  const [problem] = problemsOf({ WS_PING_INTERVAL_MS: '5000', WS_PONG_GRACE_MS: '5000' }).problems;
  t.equal(problem?.name, 'WS_PONG_GRACE_MS');
  t.match(problem?.takes, /more than WS_PING_INTERVAL_MS \(5000\)/);
  t.end();
});

t.test('CFG-08: the configuration does not change after it was read', (t) => {
  const env: NodeJS.ProcessEnv = { PORT: '1234', CORS_ORIGINS: 'https://a.example' };
  const config = readConfig(env);
  env['PORT'] = '4321';
  t.equal(config.port, 1234);
  for (const value of [config, config.corsOrigins, config.trustedProxies]) t.ok(Object.isFrozen(value));
  t.end();
});

t.test('RECOV-10: the public hosts are those of PUBLIC_URL and DOMAIN, whatever Host a proxy passes on', (t) => {
  const hosts = (env: NodeJS.ProcessEnv): readonly string[] => publicHosts(readConfig(env));
  t.strictSame(hosts({}), []);
  const multi = { TENANT_MODE: 'multi', DOMAIN: 'a.example', PUBLIC_URL: 'https://a.example' };
  t.strictSame(hosts(multi), [], "of a hosted service the tenant's own host counts");
  t.strictSame(hosts({ DOMAIN: 'A.example' }), ['a.example']);
  t.strictSame(hosts({ PUBLIC_URL: 'https://Sync.Example.com:8443/base' }), ['sync.example.com']);
  t.strictSame(hosts({ DOMAIN: 'a.example', PUBLIC_URL: 'http://b.example:81/' }), ['b.example', 'a.example']);
  t.strictSame(hosts({ DOMAIN: 'a.example', PUBLIC_URL: 'http://a.example/' }), ['a.example']);
  t.end();
});

t.test(
  'CFG-05 CFG-06: an unset secret is generated once, for all callers, and only its owner can read it',
  async (t) => {
    const dataDir = join(await temporaryFolder(t), 'new', 'data');
    const asked = await Promise.all(Array.from({ length: 24 }, async () => keptSecret(dataDir, 'token-secret')));
    t.equal(new Set(asked).size, 1, 'all concurrent callers get the same secret');
    t.match(asked[0], /^[0-9a-f]{64}$/);
    t.equal(await keptSecret(dataDir, 'token-secret'), asked[0], 'the same after a restart');
    t.not(await keptSecret(dataDir, 'another'), asked[0]);
    t.strictSame((await readdir(join(dataDir, 'secrets'))).sort(), ['another', 'token-secret'], 'nothing else is left');
    t.equal(await modeOf(join(dataDir, 'secrets')), 0o700);
    t.equal(await modeOf(join(dataDir, 'secrets', 'token-secret')), 0o600);
  },
);

t.test('CFG-05: a secret that others can read has its permissions tightened; a damaged one is not used', async (t) => {
  const dataDir = await temporaryFolder(t);
  const folder = join(dataDir, 'secrets');
  await mkdir(folder);
  await writeFile(join(folder, 'opened'), 'an operator wrote this one\n');
  await chmod(join(folder, 'opened'), 0o644);
  await chmod(folder, 0o755);
  t.equal(await keptSecret(dataDir, 'opened'), 'an operator wrote this one');
  t.equal(await modeOf(folder), 0o700);
  t.equal(await modeOf(join(folder, 'opened')), 0o600);

  await writeFile(join(folder, 'cut'), 'ab');
  await t.rejects(keptSecret(dataDir, 'cut'), { message: /secrets\/cut is damaged/ });
  t.equal(await readFile(join(folder, 'cut'), 'utf8'), 'ab', 'the damaged file is left for its owner');
  await t.rejects(keptSecret(dataDir, '../escape'), { message: /not a secret's name/ });
});

t.test('CFG-05 CFG-07 INST-64: secrets are configured, or kept, or kept with a warning', async (t) => {
  const dataDir = await temporaryFolder(t);
  const given = 'configured-by-the-operator';
  const external = 'postgres://u:p@h/d';
  const unset = { dataDir, databaseUrl: null, tokenSecret: null, blobUrlSecret: null, storageKind: 'local' } as const;
  const set = { ...unset, databaseUrl: external, tokenSecret: given, blobUrlSecret: given };
  t.strictSame(await serverSecrets(set), { tokenSecret: given, blobUrlSecret: given, warnings: [] });
  const elsewhere = { ...set, blobUrlSecret: null, storageKind: 's3' } as const;
  t.strictSame(await serverSecrets(elsewhere), { tokenSecret: given, blobUrlSecret: '', warnings: [] });
  t.strictSame(await readdir(dataDir), [], 'no secret is generated that is not needed');
  const unused = await serverSecrets({ ...set, storageKind: 's3' });
  t.equal(fingerprintOf(unused), fingerprintOf(await serverSecrets(elsewhere)), 'INST-64: no store uses this secret');
  const kept = await serverSecrets(unset);
  t.strictSame(kept.warnings, []);
  t.not(kept.tokenSecret, kept.blobUrlSecret);
  const warned = await serverSecrets({ ...unset, databaseUrl: external });
  t.equal(warned.tokenSecret, kept.tokenSecret);
  t.equal(warned.blobUrlSecret, kept.blobUrlSecret);
  t.match(fingerprintOf(kept), /^[0-9a-f]{8}$/);
  t.not(fingerprintOf(kept), fingerprintOf({ ...kept, tokenSecret: given }));
  t.not(fingerprintOf(kept), fingerprintOf({ ...kept, blobUrlSecret: given }), 'INST-63');
  t.equal(warned.warnings.length, 2);
  t.match(warned.warnings[0], /^TOKEN_SECRET is not set/);
  t.match(warned.warnings[1], /^BLOB_URL_SECRET is not set/);
  for (const warning of warned.warnings) {
    t.notOk(warning.includes(kept.tokenSecret) || warning.includes(kept.blobUrlSecret), 'no warning contains a secret');
  }
});

t.test('BLOB-30: `gcs` and `s3` need their bucket', (t) => {
  t.match(problemsOf({ STORAGE_KIND: 's3' }).problems, [{ name: 'S3_BUCKET', got: 'nothing' }]);
  t.match(problemsOf({ STORAGE_KIND: 'gcs', S3_BUCKET: 'abc' }).problems, [{ name: 'GCS_BUCKET', got: 'nothing' }]);
  t.end();
});
