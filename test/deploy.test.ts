/** The files of deploy/, checked against the code and the programs that read them; deploy.long has more on compose. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import t from 'tap';
import { ConfigError, readConfig } from '../src/server/config/config.js';
import { PROJECT_ROOT } from '../src/root.js';
import { composed, deployed, filled, ran, type Ran } from './support/deployed.js';
import { until } from './support/events.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { freePort } from './support/free-port.js';
import { DEPLOY, missing } from './support/proxies.js';
import { runServer } from './support/server.js';
import { at } from './support/wire.js';

t.test('DEPLOY-01: Caddy accepts its files, for one server or several', { skip: missing('caddy') }, async (t) => {
  const version = Number(/^v?2\.(\d+)/.exec(ran('caddy', ['version']).output)?.[1]);
  const files = (await readdir(join(DEPLOY, 'caddy'))).filter((name) => name.startsWith('Caddyfile'));
  t.same(files.sort(), ['Caddyfile.multi', 'Caddyfile.multi-2.6', 'Caddyfile.single']);
  const home = await temporaryFolder(t);
  const check = (verb: string, name: string, env: Record<string, string> = {}): Ran =>
    ran('caddy', [verb, '--adapter', 'caddyfile', '--config', join(DEPLOY, 'caddy', name)], {
      HOME: home,
      DOMAIN: 'sync.example.com',
      ...env,
    });
  for (const name of files) {
    // Each of the two files for multi mode is refused by the Caddy of the other.
    if (name === (version < 8 ? 'Caddyfile.multi' : 'Caddyfile.multi-2.6')) continue;
    const { status, output } = check('validate', name);
    t.equal(status, 0, `${name}: ${output}`);
    const many = check('adapt', name, { SERVICE_UPSTREAM: '10.0.0.2:8080 10.0.0.3:8080' }).output;
    for (const upstream of ['10.0.0.2:8080', '10.0.0.3:8080']) t.ok(many.includes(`"dial":"${upstream}"`), upstream);
  }
  const [old, fresh] = [await deployed('caddy/Caddyfile.multi-2.6'), await deployed('caddy/Caddyfile.multi')];
  const same = (text: string): string => text.slice(text.indexOf('{$DOMAIN}'));
  t.equal(same(old), same(fresh), 'they differ in the query only');
  t.match(old, /interval 2m\s+burst 5/);
});

t.test('DEPLOY-07: the compose file publishes no inner port', { skip: missing('docker-compose') }, async (t) => {
  const example = await deployed('.env.example');
  t.not((await composed(t, example)).status, 0, 'without its secrets');
  const { status, output, config } = await composed(t, filled(example));
  t.equal(status, 0, output);
  const services = at(config, 'services') as Record<string, { readonly ports?: unknown }>;
  const published = Object.entries(services).filter(([, { ports }]) => ports !== undefined);
  t.same(
    published.map(([name]) => name),
    ['caddy'],
  );
  t.equal(at(config, 'networks.back.internal'), true);
  t.equal(readConfig(at(config, 'services.server.environment') as Record<string, string>).tenantMode, 'single');
});

t.test('DEPLOY-08: the systemd unit is valid', { skip: missing('systemd-analyze', 'systemd') }, async (t) => {
  const text = await deployed('systemd/service.service');
  // Checked with the file of this checkout, since the unit names the path of the installation instructions.
  const unit = join(await temporaryFolder(t), 'service.service');
  await writeFile(unit, text.replace('/opt/service/deploy/serve', join(DEPLOY, 'serve')));
  const { status, output } = ran('systemd-analyze', ['verify', unit]);
  t.equal(status, 0, output);
  const exposure = ran('systemd-analyze', ['security', '--offline=yes', '--threshold=20', unit]);
  t.equal(exposure.status, 0, exposure.output.split('\n').slice(-3).join(' '));
  t.match(text, /^KillMode=mixed$/m, 'the server stops the database, systemd does not');
});

t.test('DEPLOY-08 PLAT-04: one file starts the server, for npm, the image and the unit', async (t) => {
  const { scripts } = JSON.parse(await readFile(join(PROJECT_ROOT, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  t.equal(scripts['serve'], 'sh deploy/serve');
  t.match(await deployed('systemd/service.service'), /^ExecStart=\/opt\/service\/deploy\/serve$/m);
  t.match(await deployed('Dockerfile'), /^CMD \["\/app\/deploy\/serve"\]$/m);
  const { bin } = JSON.parse(await readFile(join(PROJECT_ROOT, 'src/server/package.json'), 'utf8')) as {
    bin: Record<string, string>;
  };
  t.equal(bin['service-server'], 'deploy/serve');
  const line = /^exec node (.*) \\$/m.exec(await deployed('serve'))?.[1] ?? '';
  t.match(line, '--no-turbo-fast-api-calls');
  const known = spawnSync(process.execPath, [...line.split(' '), '-e', ''], { encoding: 'utf8' });
  t.equal(`${known.status ?? ''}${known.stderr}`, '0', 'Node knows its flags');
  const { url } = await testDatabase(t);
  const folder = await temporaryFolder(t);
  const child = spawn(join(DEPLOY, 'serve'), {
    env: {
      PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
      PORT: '0',
      DATABASE_URL: url,
      DATA_DIR: folder,
    },
  });
  const ended = once(child, 'exit');
  const said: string[] = [];
  child.stdout.on('data', (chunk: Buffer) => said.push(chunk.toString()));
  await until('a server', () => said.join('').includes('listening on'));
  child.kill('SIGTERM');
  t.same(await ended, [0, null], 'the signal reaches Node, which exits with 0');
});

/** Names in PromQL that begin as the server's metrics do. */
const metricsIn = (text: string): string[] => [...new Set(text.match(/\b(service|nodejs|process)_[a-z0-9_]+/g))];
/** A metric, of its own name or of a part of a histogram. */
const seriesOf = (name: string): string => name.replace(/_(bucket|sum|count)$/, '');

t.test('DEPLOY-09: the dashboard and the alerts query metrics that exist', async (t) => {
  const port = await freePort();
  await runServer(t, { env: { METRICS_PORT: String(port) } });
  const scraped = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const known = [...scraped.matchAll(/^# TYPE (\S+) (\S+)$/gm)].flatMap(([, name = '', type]) =>
    type === 'histogram' ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name],
  );
  const dashboard = JSON.parse(await deployed('grafana/dashboard.json')) as {
    readonly panels: readonly { readonly type: string; readonly targets?: readonly { readonly expr: string }[] }[];
  };
  const asked = dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  const alerts = [...(await deployed('prometheus/alerts.yml')).matchAll(/^ +expr: (.*)$/gm)].map(
    ([, expr = '']) => expr,
  );
  t.ok(alerts.length > 0);
  for (const expression of [...asked, ...alerts]) {
    const names = metricsIn(expression);
    t.ok(names.length > 0 || expression.startsWith('up{'), expression);
    for (const name of names) t.ok(known.includes(name), `${name} in ${expression}`);
  }
  const own = known.filter((name) => name.startsWith('service_')).map(seriesOf);
  const shown = new Set(asked.flatMap(metricsIn).map(seriesOf));
  t.ok(own.includes('service_commit_seconds'), 'histograms are among them');
  t.same(
    own.filter((name) => !shown.has(name)),
    [],
    'each of the server’s own metrics is shown',
  );
});

/** True where the configuration knows the variable: it names it in refusing a value that no variable accepts. */
const knows = (name: string): boolean => {
  try {
    readConfig({ [name]: '\0' });
    return false;
  } catch (error) {
    return error instanceof ConfigError && error.problems.some((problem) => problem.name === name);
  }
};

/** Variables of which `.env.example` shows an example: by default they are not set. */
const UNSET: readonly string[] = ['DATABASE_URL', 'LISTEN_DATABASE_URL', 'METRICS_PORT', 'CORS_ORIGINS'];

t.test('DEPLOY-10: .env.example and the server know the same variables', async (t) => {
  const example = await deployed('.env.example');
  const listed = [...example.matchAll(/^#?([A-Z][A-Z0-9_]+)=/gm)].map(([, name = '']) => name);
  t.same(listed.length, new Set(listed).size, 'each once');
  const source = await readFile(join(PROJECT_ROOT, 'src/server/config/config.ts'), 'utf8');
  const served = [...new Set([...source.matchAll(/'([A-Z][A-Z0-9_]{3,})'/g)].map(([, name = '']) => name))].filter(
    knows,
  );
  t.ok(served.length > 20);
  t.same(
    served.filter((name) => !listed.includes(name)),
    [],
    'all variables of the server are in the example',
  );
  const compose = await deployed('compose.yaml');
  const others = listed.filter((name) => !knows(name) && !compose.includes(`\${${name}`));
  t.same(others, ['COMPOSE_PROJECT_NAME'], 'all others are read by compose');
  // The defaults that it shows are values that the server accepts.
  const shown = [...example.matchAll(/^#?([A-Z][A-Z0-9_]+)=(.+)$/gm)].filter(([, name = '']) => knows(name));
  t.doesNotThrow(() => readConfig(Object.fromEntries(shown.map(([, name = '', value]) => [name, value]))));
  const defaults = readConfig({});
  for (const [, name = '', value = ''] of shown) {
    if (UNSET.includes(name)) continue;
    t.same(readConfig({ [name]: value }), defaults, `${name}=${value} is the default`);
  }
  // What is shown without a value has no default: all defaults are shown but those of CORS_ORIGINS and METRICS_PORT.
  const withDefault = shown.filter(([, name = '']) => !UNSET.includes(name));
  t.equal(withDefault.length, Object.values(defaults).filter((value) => value !== null).length - 2);
});

t.test('DEPLOY-11: the image is built from the sources alone, runs without root, and has a health check', async (t) => {
  const lines = (await readFile(join(PROJECT_ROOT, '.dockerignore'), 'utf8')).split('\n').filter(Boolean);
  const rules = lines.filter((line) => !line.startsWith('#'));
  t.equal(rules[0], '*', 'everything is excluded first');
  t.same(
    rules.slice(1).sort(),
    [
      '!CHANGELOG.md',
      '!LICENSE',
      '!deploy/serve',
      '!package-lock.json',
      '!package.json',
      '!sql',
      '!src',
      '!tsconfig.json',
    ],
    'no data, no .env, no history',
  );
  const stages = (await deployed('Dockerfile')).split(/^FROM /m);
  const last = stages.at(-1) ?? '';
  t.match(last, /npm ci --omit=dev/);
  t.match(last, /^USER 10001:10001$/m);
  t.match(await deployed('systemd/service.service'), /^User=service$/m, 'so does the unit');
  t.ok(last.indexOf('USER') < last.indexOf('CMD ["/app'));
  t.match(last, /^HEALTHCHECK /m);
  const probe = JSON.parse(/^ {2}CMD (\[.*\])$/m.exec(last)?.[1] ?? '[]') as string[];
  const health = async (port: number): Promise<number> => {
    const child = spawn(process.execPath, probe.slice(1), { env: { PORT: String(port) } });
    return new Promise((resolve) => child.once('exit', (code) => resolve(code ?? -1)));
  };
  const server = await runServer(t);
  t.equal(await health(server.port), 0);
  await server.stop();
  t.equal(await health(server.port), 1);
});
