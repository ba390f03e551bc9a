/** A corpus of hostile input. Everything is answered from 400 to 499; the server keeps running and leaks nothing. */
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { connect } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import t from 'tap';
import { ShiftedClock } from './support/clock.js';
import { claimBody, newId, npkBody, sealedFor, wrapBody, writeBody } from './support/devices.js';
import {
  all,
  BODIES,
  PATH_IDS,
  pathsOf,
  QUERIES,
  RAW,
  textWith,
  tokens,
  UNFINISHED,
  UNREADABLE,
  VALUES,
} from './support/hostile.js';
import { until } from './support/events.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { SHAPES, spelled, UpgradeRefused, type Ask, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t, { env: { LOG_LEVEL: 'error' } });
const { wire, first, server } = scene;
const kept = await scene.written();

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const words = 'zoo zoo zoo zoo zoo zoo';
const key = (length: number): Buffer => Buffer.alloc(length, 7);

interface Endpoint {
  readonly method: string;
  readonly path: string;
  readonly token: boolean;
  readonly body: (shape: Shape) => Json;
  /** Nothing in its body is required, so that almost any body is valid. */
  readonly lenient?: boolean;
}

/** Every endpoint with a body, with a body that passes its schema but has no effect. */
const ENDPOINTS: readonly Endpoint[] = [
  {
    method: 'POST',
    path: '/items',
    token: true,
    body: (shape) => writeBody(shape, scene.item({ keys: sealedFor(newId()) })),
  },
  {
    method: 'POST',
    path: '/items/batch',
    token: true,
    body: (shape) => ({ items: [writeBody(shape, scene.item({ keys: {} }))] }),
    lenient: true,
  },
  { method: 'DELETE', path: `/items/${newId()}`, token: true, body: () => ({ sig: key(32) }) },
  {
    method: 'POST',
    path: `/items/${newId()}/reconcile`,
    token: true,
    body: () => ({ binId: 'inbox', version: 1, sig: key(32) }),
  },
  {
    method: 'POST',
    path: '/bins',
    token: true,
    body: () => ({ id: 'inbox', slug: 'inbox', meta: key(9) }),
    lenient: true,
  },
  { method: 'PATCH', path: '/bins/nowhere', token: true, body: () => ({ slug: 'x', meta: key(9) }) },
  { method: 'DELETE', path: '/bins/nowhere', token: true, body: () => ({ force: true }) },
  {
    method: 'PATCH',
    path: `/devices/${newId()}`,
    token: true,
    body: () => ({ name: 'x', glyph: 'phone', cert: key(32) }),
  },
  { method: 'POST', path: `/devices/${newId()}/revoke`, token: true, body: () => ({}) },
  {
    method: 'POST',
    path: '/devices/pair-init',
    token: true,
    body: () => ({ code: words, epk: key(31) }),
    lenient: true,
  },
  { method: 'POST', path: '/devices/pair-fetch-epk', token: false, body: () => ({ code: words }) },
  {
    method: 'POST',
    path: '/devices/pair-fetch-npk',
    token: false,
    body: () => npkBody(words, { passwordTicket: 'x' }),
  },
  { method: 'POST', path: '/devices/pair-wrap', token: true, body: () => wrapBody(words) },
  {
    method: 'POST',
    path: '/devices/bootstrap',
    token: false,
    body: () =>
      claimBody({
        deviceId: newId(),
        deviceCert: key(32),
        recoveryPubkey: key(32),
        wrappedMasterKey: key(80),
        claimToken: 'x',
      }),
  },
  { method: 'POST', path: '/devices/bootstrap/restart', token: true, body: () => ({}) },
  { method: 'POST', path: '/devices/reauth/challenge', token: false, body: () => ({ deviceId: newId() }) },
  {
    method: 'POST',
    path: '/devices/reauth',
    token: false,
    body: () => ({ deviceId: newId(), challengeId: newId(), answer: key(32) }),
  },
  { method: 'POST', path: '/devices/recover/challenge', token: false, body: () => ({}), lenient: true },
  {
    method: 'POST',
    path: '/devices/recover',
    token: false,
    body: () => ({
      challengeId: newId(),
      signature: key(64),
      deviceId: newId(),
      host: '127.0.0.1',
      pubkey: key(32),
      deviceCert: key(32),
      name: 'x',
      glyph: 'phone',
      passwordTicket: 'x',
    }),
  },
  { method: 'POST', path: '/password/verify', token: false, body: () => ({ password: 'x', pubkey: key(32) }) },
  { method: 'POST', path: '/ws-ticket', token: true, body: () => ({}), lenient: true },
];

/** The names of requests that were answered wrongly, and how many were sent. */
interface Findings {
  readonly faults: string[];
  sent: number;
}

function judge(found: Findings, what: string, reply: Reply, lenient = false): void {
  found.sent++;
  const good =
    (reply.status >= 400 && reply.status < 500 && typeof reply.at('error.code') === 'string') ||
    (lenient && reply.status === 200);
  if (!good) found.faults.push(`${what}: ${reply.status} ${reply.raw.slice(0, 120)}`);
}

const asOf = ({ token }: Endpoint, shape: Shape): Ask => ({ shape, ...(token ? { token: first.token } : {}) });

async function bodies(found: Findings): Promise<void> {
  const jobs: (() => Promise<void>)[] = [];
  for (const endpoint of ENDPOINTS) {
    const { method, path, lenient } = endpoint;
    for (const shape of SHAPES) {
      for (const [name, body] of Object.entries(BODIES)) {
        jobs.push(async () =>
          judge(
            found,
            `${method} ${path} ${shape} body ${name}`,
            await wire.ask(method, path, { ...asOf(endpoint, shape), body }),
            lenient,
          ),
        );
      }
      const good = spelled(shape, endpoint.body(shape));
      for (const at of pathsOf(good)) {
        for (const [name, json] of Object.entries(VALUES)) {
          const body = textWith(good, at, json);
          jobs.push(async () =>
            judge(
              found,
              `${method} ${path} ${shape} ${at.join('.')} = ${name}`,
              await wire.ask(method, path, { ...asOf(endpoint, shape), body }),
              lenient,
            ),
          );
        }
      }
    }
  }
  await all(jobs);
}

async function pathsAndQueries(found: Findings): Promise<void> {
  const token = { token: first.token };
  const jobs: (() => Promise<void>)[] = [];
  for (const id of PATH_IDS) {
    for (const [method, path, body] of [
      ['DELETE', `/items/${id}`],
      ['POST', `/items/${id}/reconcile`, '{}'],
      ['PATCH', `/devices/${id}`, '{}'],
      ['POST', `/devices/${id}/revoke`, '{}'],
      ['PATCH', `/bins/${id}`, '{}'],
      ['DELETE', `/bins/${id}`],
      ['GET', `/${id}`],
      ['PUT', `/items/${id}`],
      ['GET', `//${id}`],
    ] as const) {
      jobs.push(async () => judge(found, `${method} ${path}`, await wire.ask(method, path, { ...token, body })));
    }
  }
  for (const query of QUERIES) {
    for (const shape of [undefined, ...SHAPES]) {
      jobs.push(async () =>
        judge(
          found,
          `GET /items?${query.slice(0, 60)} ${shape ?? ''}`,
          await wire.get(`/items?${query}`, { ...token, ...(shape ? { shape } : {}) }),
          /^[=&]/.test(query),
        ),
      );
    }
  }
  for (const token of tokens(first.token)) {
    jobs.push(async () => {
      const header = Buffer.from(`Bearer ${token}`, 'utf8').toString('latin1');
      judge(found, `token ${token.slice(0, 40)}`, await wire.get('/me', { headers: { authorization: header } }));
      for (const options of [{ token }, { ticket: token }]) {
        const refusal = await wire.connect(options).then(
          () => undefined,
          (error: unknown) => error,
        );
        if (refusal instanceof UpgradeRefused) judge(found, `socket ${token.slice(0, 40)}`, refusal.reply);
        else found.faults.push(`socket ${token.slice(0, 40)}: ${String(refusal)}`);
      }
    });
  }
  await all(jobs);
}

const STATUS = /^HTTP\/1\.1 (\d{3})/;

async function raw(found: Findings): Promise<void> {
  const send = (name: string, bytes: string | Buffer, good: (status: number) => boolean) => async (): Promise<void> => {
    found.sent++;
    const text = await wire
      .raw(bytes, (all) => all.includes('\r\n\r\n'), 9_000)
      .catch((error: unknown) => String(error));
    if (!good(Number(STATUS.exec(text)?.[1]))) found.faults.push(`${name}: ${JSON.stringify(text.slice(0, 160))}`);
  };
  const refused = (status: number): boolean => status >= 400 && status < 500;
  await all([
    ...Object.entries(RAW).map(([name, bytes]) => send(name, bytes, refused)),
    ...Object.entries(UNREADABLE).map(([name, bytes]) =>
      send(name, bytes, (status) => refused(status) || status === 505),
    ),
  ]);
}

/** Uploads that break off: after the head, in the middle, in the middle of a chunk. */
async function aborted(found: Findings): Promise<void> {
  const head = `POST /api/items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${first.token}\r\nContent-Type: application/json\r\n`;
  const starts = [
    `${head}Content-Length: 200000\r\n\r\n`,
    `${head}Content-Length: 200000\r\n\r\n${'x'.repeat(150_000)}`,
    `${head}Transfer-Encoding: chunked\r\n\r\nffff\r\n${'x'.repeat(30_000)}`,
    head.slice(0, 60),
    'G',
  ];
  await all(
    Array.from({ length: 100 }, (_, index) => async () => {
      found.sent++;
      await new Promise<void>((resolve) => {
        const socket = connect(server.port, '127.0.0.1', () => {
          socket.write(starts[index % starts.length] ?? '', () =>
            index % 2 === 0 ? socket.destroy() : socket.resetAndDestroy(),
          );
        });
        socket.on('error', () => undefined);
        socket.on('close', () => resolve());
      });
    }),
  );
}

async function everything(): Promise<Findings> {
  const found: Findings = { faults: [], sent: 0 };
  for (const part of [bodies, pathsAndQueries, raw, aborted]) await part(found);
  return found;
}

const openFiles = (): number => readdirSync('/proc/self/fd').length;

async function heapUsed(): Promise<number> {
  for (let round = 0; round < 3; round++) {
    collect();
    await new Promise((resolve) => setImmediate(resolve));
  }
  return process.memoryUsage().heapUsed;
}

/** Unfinished requests, which take 10 s: they run in parallel to the other tests. */
const silent = Object.entries(UNFINISHED).map(async ([name, bytes]) => {
  const text = await wire.raw(bytes, undefined, 28_000).catch((error: unknown) => String(error));
  return [name, text] as const;
});

/** A body that arrives at 2 KB a second, for longer than the library waits in silence; in parallel as well. */
const slow = new Promise<string>((resolve, reject) => {
  const body = JSON.stringify(spelled('a', writeBody('a', scene.item({ ct: Buffer.alloc(20_000, 3) }))));
  const head = `POST /api/items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${first.token}\r\nContent-Type: application/json\r\n`;
  const socket = connect(server.port, '127.0.0.1');
  socket.write(`${head}Connection: close\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n`);
  let at = 0;
  const timer = setInterval(() => {
    socket.write(body.slice(at, (at += 2_000)));
    if (at >= body.length) clearInterval(timer);
  }, 1_000);
  let text = '';
  socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
  socket.on('error', reject);
  socket.on('close', () => {
    clearInterval(timer);
    resolve(text);
  });
});

t.test(
  'HTTP-13 HTTP-14 ERR-01: all hostile input is answered from 400 to 499, and neither memory nor files leak',
  async (t) => {
    const warm = await everything();
    t.same(warm.faults, []);
    t.ok(warm.sent > 5_000, `${warm.sent} requests`);
    const [heap, files] = [await heapUsed(), openFiles()];
    const again = await everything();
    t.same(again.faults, []);
    const grown = (await heapUsed()) - heap;
    t.ok(grown < 8 * 1024 * 1024, `the heap grew by ${Math.round(grown / 1024)} KiB`);
    // The server closes connections that a client cut a moment later.
    await until(`no more than ${files} open files`, () => openFiles() <= files + 8);
    t.same(
      server.logs.filter((line) => Number(line['level']) >= 50),
      [],
      'none of it was an error of the server',
    );
  },
);

t.test('HTTP-01 HTTP-02 HTTP-14 HTTP-22: what follows ambiguous framing is never run as a request', async (t) => {
  const smuggled = `DELETE /api/items/${kept.id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${first.token}\r\n\r\n`;
  const heads: readonly (readonly [string, string])[] = [
    [`Transfer-Encoding: chunked\r\nContent-Length: ${smuggled.length + 5}`, '0\r\n\r\n'],
    [`Content-Length: 5\r\nTransfer-Encoding: chunked`, '0\r\n\r\n'],
    ['Transfer-Encoding: xchunked', '0\r\n\r\n'],
    ['Content-Length: 0\r\nContent-Length: 44', ''],
    ['Transfer-Encoding: chunked', 'zz\r\n\r\n'],
  ];
  for (const path of ['/api/health', '/api/items', '/nothing']) {
    for (const [headers, body] of heads) {
      const text = await wire.raw(
        `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n${headers}\r\n\r\n${body}${smuggled}`,
      );
      // A request in what follows may make the library cut the connection before the first refusal is sent.
      t.match(text, /^(HTTP\/1\.1 4\d\d|$)/, `${path} ${headers}`);
      t.ok(text.split('HTTP/1.1 ').length <= 2, 'one answer at most, then the end');
    }
  }
  t.match(await scene.row(kept.id), { deletedAt: null, version: kept.version }, 'the item was not deleted');
});

t.test('HTTP-14: requests sent without waiting are answered in order, or the connection ends', async (t) => {
  const get = (path: string): string =>
    `GET ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${first.token}\r\n\r\n`;
  const send = async (paths: readonly string[]): Promise<string[]> => {
    const whole = (all: string): boolean => all.split('HTTP/1.1 ').length > paths.length && all.trimEnd().endsWith('}');
    const text = await wire.raw(paths.map(get).join(''), whole);
    return [...text.matchAll(/HTTP\/1\.1 (\d{3})/g)].map((found) => found[1] ?? '');
  };
  const atOnce = ['/api/health', '/api/nothing', '/api/items?since=x', '/api/health'];
  t.same(await send(atOnce), ['200', '404', '400', '200'], 'requests that are answered at once');
  const answered = await send(['/api/health', '/api/me', '/api/nothing', '/api/health']);
  t.same(
    answered,
    ['200', '200', '404', '200'].slice(0, answered.length),
    'while a reply is pending the library takes no other request',
  );
});

t.test('FAIR-16: of thousands of requests that are sent without waiting, at most 64 are answered', async (t) => {
  const token = `Authorization: Bearer ${first.token}x\r\n`;
  const posted = 'Content-Type: application/json\r\nContent-Length: 2\r\n';
  const bursts = {
    'GET /api/health': '\r\n',
    'GET /': '\r\n',
    'GET /api/nothing': '\r\n',
    'GET /api/me': `${token}\r\n`,
    'POST /api/items': `${posted}${token}\r\n{}`,
    'GET /ws': `Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n`,
  };
  for (const [head, rest] of Object.entries(bursts)) {
    const one = `${head} HTTP/1.1\r\nHost: x\r\n${rest}`;
    const text = await wire.raw(one.repeat(3_000));
    const answers = text.split('HTTP/1.1 ').length - 1;
    t.ok(answers <= 64, `${head}: ${answers} answers`);
  }
  t.equal((await scene.me()).status, 200);
});

t.test('HTTP-14 HTTP-21: an incomplete request is refused, or closed after ten seconds of silence', async (t) => {
  for (const [name, text] of await Promise.all(silent)) {
    t.ok(text === '' || /^HTTP\/1\.1 4\d\d/.test(text), `${name}: ${JSON.stringify(text.slice(0, 80))}`);
  }
});

t.test('HTTP-21: a body that arrives slowly is accepted while it keeps arriving', async (t) => {
  t.match(await slow, /^HTTP\/1\.1 200 /);
});

t.test('HTTP-14 HTTP-21: a body that trickles in is accepted for half a minute, and then refused', async (t) => {
  const clock = new ShiftedClock();
  const slow = await runServer(t, { clock });
  const head = 'POST /api/devices/bootstrap HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n';
  /** The answer to a body whose last byte comes after `ms`. */
  const trickled = async (ms: number, end: string): Promise<string> => {
    const socket = connect(slow.port, '127.0.0.1');
    await once(socket, 'connect');
    socket.write(`${head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n`);
    // A connection of its own, accepted and read after the one before: the body has begun by then.
    await slow.wire.raw('GET /api/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    clock.advance(ms);
    let text = '';
    socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
    socket.write(end);
    await once(socket, 'close');
    return text;
  };
  const whole = await trickled(29_000, '1\r\n}\r\n0\r\n\r\n');
  t.match(whole, /^HTTP\/1\.1 400 [^]*"path":"name"/, 'after 29 s the body is read: a field is missing');
  t.match(await trickled(31_000, '1\r\n \r\n'), /^HTTP\/1\.1 400 [^]*"code":"validation"[^]*"path":"body"/);
  t.equal((await slow.wire.get('/service/status')).at('claimed'), false);
});

t.test('HTTP-14 HTTP-13: afterwards the server serves as before', async (t) => {
  t.equal((await scene.me()).status, 200);
  const item = await scene.written();
  t.match(await scene.row(item.id), { version: item.version });
  const socket = await scene.watch();
  const marker = await scene.written();
  t.equal((await socket.next('item'))['id'], marker.id);
  await socket.close();
  t.equal((await wire.get('/health')).status, 200);
});
