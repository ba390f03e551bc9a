/** The processes of a run of `service-load`: what they make, remove and report while orders and deaths cross. */
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { mock } from 'node:test';
import t from 'tap';
import { Coordinator } from '../src/load/coordinator.js';
import { sumOf } from '../src/load/audit.js';
import { Meter } from '../src/load/meter.js';
import { Timeline } from '../src/load/report.js';
import { LocalCrew, Peer, type Crew, type News, type Order, type Progress } from '../src/load/orders.js';
import { Target } from '../src/load/target.js';
import { LoadWorker, type PartResult } from '../src/load/worker.js';
import { PROJECT_ROOT } from '../src/root.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { hosted } from './support/hosted.js';
import { answering, load } from './support/load-program.js';
import { PLAN, urlOf } from './support/load-plan.js';
import { openFor } from './support/loopback-server.js';
import { ADMIN_TOKEN } from './support/server.js';

const NOTHING = (): undefined => undefined;
const WORKER = join(PROJECT_ROOT, 'build/src/load/worker-process.js');
const LOAD = { version: '1', commit: 'unknown' };

t.test('LOAD-16: a server that switches protocols unasked refuses the request, which is not waited for', async (t) => {
  const server = createServer((socket) => {
    socket.on('error', NOTHING);
    socket.once('data', () =>
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n'),
    );
  });
  const target = new Target(`http://127.0.0.1:${await openFor(t, server)}`, { connections: 1, from: [] });
  t.teardown(() => target.close());
  await t.rejects(target.send({ method: 'GET', path: '/' }), { code: 'http_101', transient: true });
});

t.test('LOAD-16: a request whose reply never ends is refused after ten minutes', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.teardown(() => mock.timers.reset());
  let sent = 0;
  const { target } = await answering(t, (_, reply) => {
    reply.writeHead(200);
    const more = setInterval(() => void (++sent && reply.write('.')), 5);
    reply.on('close', () => clearInterval(more));
  });
  let over = false;
  const refused = t
    .rejects(target.send({ method: 'GET', path: '/' }), { name: 'Refused' })
    .finally(() => (over = true));
  await until('a part of the reply', () => sent > 3);
  mock.timers.tick(599_999);
  await turn();
  t.notOk(over);
  mock.timers.tick(1);
  await refused;
});

t.test('LOAD-04: the address of a server on this machine is no name to ask a certificate for', async (t) => {
  const warnings: string[] = [];
  const onWarning = ({ message }: Error): void => void warnings.push(message);
  process.on('warning', onWarning);
  t.teardown(() => process.off('warning', onWarning));
  for (const host of ['127.0.0.1', '[::1]']) {
    const target = new Target(`https://${host}:1`, { connections: 1, from: [] });
    await t.rejects(target.send({ method: 'GET', path: '/' }), { name: 'Refused' });
    target.close();
  }
  t.same(warnings, []);
});

t.test('LOAD-08: an address where no agent can join is named', async (t) => {
  const port = await openFor(t, createServer());
  const program = await load(t);
  const out = join(program.folder, 'none');
  const at = ['--url', 'http://127.0.0.1:1', '--agents', '1', '--listen', `127.0.0.1:${port}`, '--out', out];
  t.match(await program.call('run', ...at), { code: 2, stderr: /nobody can join at 127\.0\.0\.1:\d+ \(EADDRINUSE\)/ });
});

t.test('LOAD-17: a removal that is ordered while a process starts waits for what that makes', async (t) => {
  const server = await hosted(t);
  const child = fork(WORKER, { execArgv: [] });
  t.teardown(() => child.kill('SIGKILL'));
  const ended: string[] = [];
  child.on('message', ({ news, ...of }: News) => {
    if ('phase' in of) ended.push(`${of.phase} ${news}`);
  });
  const access = { adminToken: ADMIN_TOKEN };
  const plan = { ...PLAN, url: urlOf(server), rate: 0 };
  child.send({ phase: 'prepare', plan, share: { part: 0, parts: 1 }, access });
  child.send({ phase: 'remove' });
  await until('both outcomes', () => ended.length === 2);
  t.equal(ended[1], 'remove done', 'the removal ends last');
  t.same(await server.sql('SELECT count(*)::int AS n FROM tenants'), [{ n: 0 }]);
});

/** A parent that dies while its process computes, just before that reports an outcome. */
const BUSY = `
const send = process.send.bind(process);
process.send = (...all) => {
  send('busy');
  for (const end = Date.now() + 500; Date.now() < end;);
  return send(...all);
};
`;
const PARENT = `
import { fork } from 'node:child_process';
const [, worker, busy] = process.argv;
const child = fork(worker, { execArgv: ['--import', 'data:text/javascript,' + encodeURIComponent(busy)] });
child.once('message', () => process.kill(process.pid, 'SIGKILL'));
child.send({ phase: 'connect' });
`;

t.test('LOAD-17: a process whose parent has died in the middle of its work goes on to its own end', async (t) => {
  const parent = spawn(process.execPath, ['--input-type=module', '-e', PARENT, WORKER, BUSY], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  t.equal(await text(parent.stderr), '', 'no failure of a send ends it before the removal');
});

t.test('LOAD-08: where a process dies the others of its machine go on, and report', async (t) => {
  const crew = new LocalCrew(2, {}, NOTHING);
  const [dead, other] = crew['peers'];
  t.teardown(() => {
    crew.end();
    // Its process lives all the same.
    dead?.['options'].end();
  });
  const ordered: string[] = [];
  let [done, ended] = [NOTHING as () => void, false];
  if (other !== undefined)
    other.perform = ({ phase }) => {
      ordered.push(phase);
      return new Promise<void>((resolve) => (done = resolve));
    };
  dead?.lost('it has died');
  for (const phase of ['connect', 'write', 'finish', 'remove'] as const) {
    ended = false;
    const isNews = phase === 'connect' || phase === 'remove';
    const performed = crew.perform({ phase });
    const checked = isNews ? t.rejects(performed, /it has died/) : performed;
    void checked.finally(() => (ended = true));
    await turn();
    t.notOk(ended, phase);
    done();
    await checked;
  }
  t.same(ordered, ['connect', 'write', 'finish', 'remove']);
});

t.test(
  'LOAD-08: a machine or process that hangs during an order is lost, one that reports is waited for',
  async (t) => {
    const clock = new TestClock();
    let ends = 0;
    const peer = new Peer('it', 1, { onNews: NOTHING, send: NOTHING, end: () => void ends++ }, clock);
    let over = false;
    const lost = t.rejects(peer.perform({ phase: 'write' }), /it: nothing was heard/).finally(() => (over = true));
    for (let minutes = 0; minutes < 60; minutes++) {
      clock.advance(60_000);
      peer.receive({ news: 'alive' });
    }
    clock.advance(119_999);
    await turn();
    t.notOk(over);
    clock.advance(1);
    await lost;
    t.equal(ends, 1, 'it is to end by itself');
    await t.rejects(peer.perform({ phase: 'remove' }), /nothing was heard/);
    t.equal(clock.waiting, 0);
  },
);

/** Makes five seconds five milliseconds. */
const QUICK = 'const set = setInterval; globalThis.setInterval = (fn, ms) => set(fn, ms / 1000);';

t.test('LOAD-08: a process that works reports that it lives', async (t) => {
  const child = fork(WORKER, { execArgv: ['--import', `data:text/javascript,${encodeURIComponent(QUICK)}`] });
  t.teardown(() => child.kill('SIGKILL'));
  t.same(await once(child, 'message'), [{ news: 'alive' }, undefined]);
});

t.test('LOAD-08: a process that failed in a phase is to remove what it made, and audits nothing', async (t) => {
  const crew = new LocalCrew(2, {}, NOTHING);
  t.teardown(() => crew.end());
  const ordered: string[] = [];
  crew['peers'].forEach((peer, at) => {
    peer.perform = ({ phase }) => {
      ordered.push(`${at} ${phase}`);
      return at === 0 && phase === 'write' ? Promise.reject(new Error('no thread')) : Promise.resolve();
    };
  });
  await t.rejects(crew.perform({ phase: 'write' }), /no thread/);
  await crew.perform({ phase: 'finish' });
  t.same(ordered, ['0 write', '1 write', '0 remove', '1 finish']);
});

t.test('LOAD-08: the live line goes on where a process no longer reports', (t) => {
  const timeline = new Timeline();
  const counts = { sockets: 1, opened: 1, lost: 0, done: 0, pushed: 0, errors: {}, timed: { connect: [], push: [] } };
  for (const part of [0, 1]) timeline.add(part, { ...counts, second: 0 });
  for (let second = 1; second < 30; second++) timeline.add(0, { ...counts, second });
  t.equal(timeline.latest(2)?.second, 25);
  t.end();
});

/** A crew of one process that does what `perform` says. */
const crewOf = (perform: (order: Order) => Promise<void>): Crew => {
  return { name: 'agent 1', processes: 1, end: NOTHING, perform };
};

const RESULT: PartResult = {
  ...{ part: 0, tenants: 1, sockets: 1, totals: new Meter().totals, storms: [], audit: sumOf([]) },
  client: { rate: PLAN.rate, cpu: 0, loopDelayP99Ms: 0, starved: 0 },
};

t.test('LOAD-08: a part that sends no result is lost', async (t) => {
  const { url } = await answering(t, (_, reply) => void reply.end('{}'));
  const { signal } = new AbortController();
  const coordinator = new Coordinator({ plan: { ...PLAN, url }, load: LOAD, adminToken: undefined, signal });
  const good = crewOf(async ({ phase }) => {
    if (phase === 'finish') coordinator.onNews({ news: 'result', result: RESULT });
  });
  const { lostParts, trusted } = await coordinator.run([good, { ...crewOf(async () => undefined), name: 'agent 2' }]);
  t.match({ lostParts, trusted }, { lostParts: [/sent no result/], trusted: false });
});

t.test('LOAD-08: what is left of a machine that lost a process is in the report', async (t) => {
  const { url } = await answering(t, (_, reply) => void reply.end('{}'));
  const { signal } = new AbortController();
  const coordinator = new Coordinator({ plan: { ...PLAN, url }, load: LOAD, adminToken: undefined, signal });
  const crew = crewOf(async ({ phase }) => {
    if (phase === 'write') throw new Error('a process of the run: it has died');
    if (phase === 'finish') coordinator.onNews({ news: 'result', result: RESULT });
  });
  const { lostParts, tenants, trusted } = await coordinator.run([{ ...crew, processes: 2 }]);
  t.same(
    { lostParts, tenants, trusted },
    { ...{ lostParts: ['a process of the run: it has died'], tenants: 1, trusted: false } },
  );
});

t.test('LOAD-17: what a lost part has made is named where nobody can look for it', async (t) => {
  const { url } = await answering(t, (_, reply) => void reply.end('{}'));
  const { signal } = new AbortController();
  const coordinator = new Coordinator({ plan: { ...PLAN, url }, load: LOAD, adminToken: undefined, signal });
  const crew = crewOf(async ({ phase }) => {
    if (phase === 'write' || phase === 'remove') throw new Error('it has died');
  });
  const { lostParts, left } = await coordinator.run([crew]);
  t.same({ lostParts, left }, { lostParts: ['it has died'], left: ['load-plan: it has died'] });
});

t.test('LOAD-17: what a second removal has removed is not named', async (t) => {
  const { url } = await answering(t, (_, reply) => void reply.end('{}'));
  const over = new AbortController();
  const coordinator = new Coordinator({
    plan: { ...PLAN, url },
    load: LOAD,
    adminToken: undefined,
    signal: over.signal,
  });
  // Ordered by the interruption, and at the end.
  const left: Progress[] = ['network', 'forbidden'].map((one) => ({ news: 'left', left: [one] }));
  let end = NOTHING as () => void;
  const crew = crewOf(({ phase }) => {
    if (phase === 'write')
      return new Promise<void>((_, reject) => {
        end = () => reject(new Error('interrupted'));
        over.abort();
      });
    const one = phase === 'remove' ? left.shift() : undefined;
    if (one !== undefined) coordinator.onNews(one);
    if (phase === 'remove') end();
    return Promise.resolve();
  });
  await t.rejects(coordinator.run([crew]), { name: 'AbortError' });
  t.same(coordinator.left, ['forbidden'], 'only what the last one has left');
});

t.test('LOAD-23: an agent reports no seconds that have not been yet', (t) => {
  const timeline = new Timeline();
  const counts = { sockets: 1, opened: 1, lost: 0, done: 0, pushed: 0, errors: {}, timed: { connect: [], push: [] } };
  for (const second of [86_399, 3_600, 0, 5]) timeline.add(0, { ...counts, second });
  t.equal(timeline.seconds.length, 6);
  t.end();
});

t.test('LOAD-15: sockets are opened at the rate of the plan by the processes that have them', async (t) => {
  const plan = { ...PLAN, url: urlOf(await hosted(t)), tenants: 3, devices: 2, rate: 0, connectRate: 300 };
  const gaps: number[] = [];
  for (const part of [0, 1]) {
    const share = { part, parts: 2 };
    const worker = await LoadWorker.open({ plan, share, access: { adminToken: ADMIN_TOKEN }, onTick: NOTHING });
    await worker.prepare();
    const opened: number[] = [];
    for (const receiver of worker.places.flatMap(({ receivers }) => receivers)) {
      receiver.open = (at) => {
        opened.push(Number(at));
        receiver.live = true;
      };
    }
    await worker.connect();
    gaps.push(Math.round(((opened.at(-1) ?? 0) - (opened[0] ?? 0)) / (opened.length - 1)));
    t.same(await worker.remove(), []);
  }
  t.same(gaps, [10_000, 5_000], '100 a second for one of three tenants, 200 for two');
});
