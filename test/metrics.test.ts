/** The metrics that Prometheus reads. */
import { Server as HttpServer } from 'node:http';
import { createServer, Server } from 'node:net';
import t from 'tap';
import { ConfigError, readConfig } from '../src/server/config/config.js';
import { Metrics } from '../src/server/ops/metrics.js';
import { claim, join, mustWrite, newItem } from './support/devices.js';
import { until } from './support/events.js';
import { freePort } from './support/free-port.js';
import { openFor } from './support/loopback-server.js';
import { runServer } from './support/server.js';

/** A sample's value; labels as they are written. */
const valueOf = (text: string, name: string): number =>
  Number(new RegExp(`^${name.replace(/[{}"]/g, '\\$&')} (\\S+)$`, 'm').exec(text)?.[1] ?? NaN);

t.test('METRIC-01 METRIC-02 METRIC-03: METRICS_PORT serves the metrics, which name no tenant or token', async (t) => {
  const port = await freePort();
  const server = await runServer(t, { env: { METRICS_PORT: String(port) } });
  const reply = await fetch(`http://127.0.0.1:${port}/metrics`);
  t.match(reply.headers.get('content-type'), /^text\/plain; version=\d/);
  const label = '\\w+="[^"\\n]*"';
  const line = new RegExp(
    `^(# (HELP|TYPE) \\w+ .+|\\w+(\\{${label}(,${label})*\\})? (-?[\\d.]+(e[-+]?\\d+)?|NaN|\\+Inf))?$`,
  );
  t.same(
    (await reply.text()).split('\n').filter((text) => !line.test(text)),
    [],
    'each line is a comment or a sample',
  );
  const scrape = async (): Promise<string> => (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const first = await claim(server.wire);
  const second = await join(server.wire, first);
  const socket = await server.wire.connect({ token: second.token });
  await socket.hello();
  const ids = [first.id, second.id];
  for (let n = 0; n < 5; n++) await mustWrite(server.wire, first, newItem(ids));
  for (let n = 0; n < 5; n++) await socket.next();
  await server.wire.get('/items?since=0', { token: first.token });
  await server.wire.get('/nowhere');
  const text = await scrape();
  t.equal(valueOf(text, 'service_sockets'), 1);
  t.equal(valueOf(text, 'service_actors'), 1);
  t.equal(valueOf(text, 'service_pending_changes'), 0);
  t.ok(valueOf(text, 'service_commit_batch_changes_sum') >= 5);
  for (const name of ['commit_seconds', 'write_seconds', 'write_to_push_seconds'])
    t.ok(valueOf(text, `service_${name}_sum`) > 0 && valueOf(text, `service_${name}_count`) >= 1, name);
  t.ok(valueOf(text, 'service_read_rows_total') >= 5);
  t.equal(valueOf(text, 'service_refusals_total{code="not_found"}'), 1);
  t.ok(valueOf(text, 'nodejs_eventloop_lag_p99_seconds') >= 0);
  for (const secret of [...ids, first.token, second.token, server.tenantId, '127.0.0.1'])
    t.notOk(text.includes(secret));
  const two = await runServer(t, { database: { url: server.databaseUrl } });
  await (await two.wire.connect({ token: second.token })).hello();
  await until('a notification', async () => {
    await mustWrite(server.wire, first, newItem(ids));
    return valueOf(await scrape(), 'service_notifications_total{direction="sent"}') >= 1;
  });
  await two.stop();
  t.equal((await fetch(`http://127.0.0.1:${port}/`)).status, 404);
  t.equal((await fetch(`http://127.0.0.1:${port}/metrics`, { method: 'POST' })).status, 404);
  t.equal((await server.wire.get('//metrics')).status, 404, 'the client port does not serve metrics');
  await server.stop();
  await t.rejects(scrape());
});

t.test('METRIC-01: without METRICS_PORT nothing listens for metrics', async (t) => {
  const listened = t.capture(Server.prototype, 'listen', Server.prototype.listen);
  await runServer(t);
  t.same(
    listened().filter(({ receiver }) => receiver instanceof HttpServer),
    [],
  );
});

t.test('METRIC-04: metrics listen on the loopback address alone, unless METRICS_HOST is set', async (t) => {
  const port = await freePort();
  const at = async (host: string): Promise<number> => (await fetch(`http://${host}:${port}/metrics`)).status;
  const server = await runServer(t, { env: { METRICS_PORT: String(port), HOST: '0.0.0.0' } });
  t.equal(await at('127.0.0.1'), 200);
  t.equal(
    (await fetch(`http://127.0.0.2:${server.port}/api/health`)).status,
    200,
    'the client port listens on all addresses',
  );
  await t.rejects(at('127.0.0.2'), 'Prometheus may not');
  await server.stop();
  await runServer(t, { env: { METRICS_PORT: String(port), METRICS_HOST: '0.0.0.0' } });
  t.equal(await at('127.0.0.2'), 200, 'with METRICS_HOST it listens there');
});

t.test('METRIC-05 CFG-23: metrics ports that are invalid or equal to a client port are refused', (t) => {
  const takes = (env: NodeJS.ProcessEnv): string => {
    try {
      readConfig(env);
      return '';
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      return error.problems.map((problem) => `${problem.name} takes ${problem.takes}`).join();
    }
  };
  t.equal(takes({ METRICS_PORT: '65535' }), '');
  t.equal(takes({ METRICS_PORT: '65533', INSTANCES: '3' }), '');
  t.equal(takes({ METRICS_PORT: '65534', INSTANCES: '3' }), 'METRICS_PORT takes at most 65533');
  t.equal(takes({ METRICS_PORT: '9000', PORT: '9000' }), 'METRICS_PORT takes ports other than PORT (9000)');
  t.equal(
    takes({ METRICS_PORT: '9000', PORT: '9001', INSTANCES: '2' }),
    'METRICS_PORT takes ports other than PORT (9001)',
  );
  t.equal(takes({ METRICS_PORT: '9000', PORT: '9001' }), '');
  const own = { INSTANCES: '3', INSTANCE_PORTS: 'own' };
  t.equal(takes({ ...own, METRICS_PORT: '9003', PORT: '9000' }), '');
  t.equal(
    takes({ ...own, METRICS_PORT: '9002', PORT: '9000' }),
    'METRICS_PORT takes ports other than PORT (9000 to 9002)',
  );
  t.equal(takes({ ...own, PORT: '65534' }), 'PORT takes at most 65533: INSTANCE_PORTS is own');
  t.equal(takes({ ...own, PORT: '0' }), 'PORT takes the first of the ports: INSTANCE_PORTS is own');
  t.equal(takes({ INSTANCES: '256', PORT: '65535' }), '', 'without metrics their ports are not checked');
  t.end();
});

t.test('METRIC-06: an error of the metrics port after the start is reported, and ends nothing', async (t) => {
  const listened = t.capture(Server.prototype, 'listen', Server.prototype.listen);
  const faults: unknown[] = [];
  const metrics = new Metrics({ host: '127.0.0.1', port: 0, version: '1', onFault: (error) => faults.push(error) });
  const { port, close } = await metrics.listen();
  const fault = new Error('too many open files');
  (listened()[0]?.receiver as Server).emit('error', fault);
  t.same(faults, [fault]);
  t.equal((await fetch(`http://127.0.0.1:${port}/metrics`)).status, 200, 'metrics are still served');
  await close();
  const taken = await openFor(t, createServer());
  await t.rejects(new Metrics({ host: '127.0.0.1', port: taken, version: '1', onFault: () => undefined }).listen(), {
    code: 'EADDRINUSE',
  });
});

t.test('METRIC-02: write to push is measured when frames are handed to sockets, and only then', async (t) => {
  const port = await freePort();
  const server = await runServer(t, { env: { METRICS_PORT: String(port) } });
  const figures = async (): Promise<{ commits: number; pushes: number }> => {
    const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
    const count = (name: string): number => valueOf(text, `service_${name}_count`);
    return { commits: count('commit_seconds'), pushes: count('write_to_push_seconds') };
  };
  const first = await claim(server.wire);
  const second = await join(server.wire, first);
  const ids = [first.id, second.id];
  const own = await server.wire.connect({ token: first.token });
  await own.hello(0, { acks: true });
  for (let n = 0; n < 3; n++) await mustWrite(server.wire, first, newItem(ids));
  t.same(await figures(), { commits: 3, pushes: 0 }, 'an ack is not a push');
  const other = await server.wire.connect({ token: second.token });
  await other.hello();
  t.same(await figures(), { commits: 3, pushes: 0 }, 'a replay is not a push');
  for (let n = 0; n < 2; n++) await mustWrite(server.wire, first, newItem(ids));
  t.same(await figures(), { commits: 5, pushes: 2 });
  await other.close();
  await mustWrite(server.wire, first, newItem(ids));
  t.same(await figures(), { commits: 6, pushes: 2 }, 'without a receiver nothing is measured');
});
