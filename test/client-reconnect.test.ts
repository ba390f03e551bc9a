/** How a device reconnects to a server that is unreachable or failing: its requests over time, by the test's clock. */
import t from 'tap';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTcpServer } from 'node:net';
import { WebSocket, WebSocketServer } from 'ws';
import { Device } from '../src/sdk/device.js';
import { Http } from '../src/sdk/http.js';
import { browserSockets } from '../src/sdk/browser-platform.js';
import { nodeSockets } from '../src/sdk/node-platform.js';
import { CLOSE_WITHIN_MS, SERVER_FRAME_MAX, type Platform, type SocketPort } from '../src/sdk/platform.js';
import { systemClock } from '../src/protocol/clock.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { fakeFetch, fakeSockets, newIdentity, settle, usedStore } from './support/client.js';
import { refusal } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { Events, until } from './support/events.js';
import { counted, hurried } from './support/hurried.js';
import { openFor } from './support/loopback-server.js';
import type { WithTeardown } from './support/postgres.js';

// The interface is that of browsers; Node has none of its own before version 22.
globalThis.WebSocket ??= WebSocket as unknown as typeof globalThis.WebSocket;

/** What the server does with a request, and with a socket; default: it issues tickets, and closes with 1006. */
interface Trouble {
  readonly answer?: (path: string, response: ServerResponse) => boolean;
  readonly upgrade?: (request: IncomingMessage) => string | undefined;
  readonly socket?: (socket: WebSocket) => void;
}

/** A failing server on a real port. */
async function server(t: WithTeardown, trouble: Trouble): Promise<string> {
  const http = createServer((request, response) => {
    request.resume();
    const path = (request.url ?? '').replace(/^\/api/, '');
    if (trouble.answer?.(path, response) === true) return;
    response.end(JSON.stringify({ ticket: 'ticket' }));
  });
  const sockets = new WebSocketServer({ noServer: true });
  http.on('upgrade', (request: IncomingMessage, socket, head) => {
    const refused = trouble.upgrade?.(request);
    if (refused !== undefined) {
      socket.end(refused);
      return;
    }
    sockets.handleUpgrade(request, socket, head, (client) => {
      if (trouble.socket === undefined) client.terminate();
      else trouble.socket(client);
    });
  });
  t.teardown(() => sockets.clients.forEach((client) => client.terminate()));
  return `http://127.0.0.1:${await openFor(t, http)}`;
}

const refuse = (status: number, response: ServerResponse, headers: Record<string, string> = {}): true => {
  response.writeHead(status, headers);
  response.end(JSON.stringify({ error: { code: status === 401 ? 'expired_token' : 'unavailable', message: 'no' } }));
  return true;
};

/** A device, and the times in seconds at which its requests and sockets were begun. */
async function device(t: WithTeardown, serverUrl: string) {
  const clock = new TestClock();
  const started = clock.now();
  const begun: { readonly what: string; readonly at: number }[] = [];
  const note = (what: string): void => void begun.push({ what, at: (clock.now() - started) / 1_000 });
  let open = 0;
  const sockets: SocketPort = {
    open: (url, events) => {
      note('socket');
      open++;
      return nodeSockets.open(url, {
        ...events,
        opened: () => events.opened(),
        message: (text) => events.message(text),
        closed: (code, reason, retryAfter) => {
          open--;
          events.closed(code, reason, retryAfter);
        },
      });
    },
  };
  const fetching: Platform['fetch'] = (url, init) => {
    note(new URL(url).pathname.replace('/api', ''));
    return fetch(url, init);
  };
  const base = { sodium: nodeSodium, fetch: fetching, sockets, clock, random: () => 0.999 };
  const { platform, traffic } = counted(base);
  const problems: Error[] = [];
  const identity = newIdentity({ serverUrl });
  const store = await usedStore();
  const made = await Device.open({ platform, identity, store, onProblem: (error) => problems.push(error) });
  t.teardown(() => made.close());
  /** Advances the clock while no request or socket is open. */
  const pass = async (seconds: number): Promise<void> => {
    for (const end = clock.now() + seconds * 1_000; clock.now() < end;) {
      await settle();
      if (traffic.busy === 0 && open === 0) clock.advance(100);
    }
    await settle();
  };
  const connect = (): void => void made.connect().catch(() => undefined);
  /** When requests of a kind were begun, in whole seconds. */
  const times = (what: string): number[] => begun.filter((one) => one.what === what).map(({ at }) => Math.round(at));
  return { device: made, identity, clock, begun, times, pass, connect, problems, traffic };
}

const GROWING = [0, 1, 3, 7, 15, 31, 63];

t.test('CLIENT-47: where no server listens there is one request at 0, 1, 3, 7, 15, 31 and 63 s', async (t) => {
  const world = await device(t, 'http://127.0.0.1:1');
  world.connect();
  await world.pass(64);
  t.same(world.times('/ws-ticket'), GROWING);
  t.equal(world.begun.length, GROWING.length, 'and nothing else');
});

t.test('CLIENT-47: the waits are the same where connections are accepted and closed at once', async (t) => {
  let connections = 0;
  const tcp = createTcpServer((socket) => {
    connections++;
    socket.destroy();
  });
  const world = await device(t, `http://127.0.0.1:${await openFor(t, tcp)}`);
  world.connect();
  await world.pass(64);
  t.same(world.times('/ws-ticket'), GROWING);
  // `fetch` itself may repeat a request whose connection is closed before an answer.
  t.ok(connections <= 2 * GROWING.length, `${connections} connections`);
});

t.test('CLIENT-47: a reconnect attempt is one ticket request and one socket', async (t) => {
  for (const close of [1006, 1011, 1012, 1013, 4400, 4408, 4429]) {
    const url = await server(t, {
      socket: (client) => client.on('message', () => (close === 1006 ? client.terminate() : client.close(close))),
    });
    const world = await device(t, url);
    world.connect();
    await world.pass(64);
    t.same(world.times('socket'), world.times('/ws-ticket'), `${close}`);
    t.equal(world.begun.length, 2 * world.times('socket').length, 'nothing else is requested');
    t.ok(world.times('socket').length <= GROWING.length, `${close}: ${world.times('socket').join(' ')}`);
  }
});

t.test('CLIENT-47: an attempt with an expired token tries once to renew it, and repeats no request', async (t) => {
  const url = await server(t, { answer: (path, response) => refuse(path === '/ws-ticket' ? 401 : 503, response) });
  const world = await device(t, url);
  world.connect();
  await world.pass(64);
  t.same(world.times('/ws-ticket'), GROWING);
  t.same(world.times('/devices/reauth/challenge'), GROWING);
  t.equal(world.begun.length, 2 * GROWING.length);
});

t.test('CLIENT-47: after 4401 an attempt that cannot renew the token ends there', async (t) => {
  const url = await server(t, {
    answer: (path, response) => path !== '/ws-ticket' && refuse(503, response),
    socket: (client) => client.on('message', () => client.close(4401)),
  });
  const world = await device(t, url);
  world.connect();
  await world.pass(64);
  t.same(world.times('/ws-ticket'), [0]);
  t.same(world.times('/devices/reauth/challenge'), GROWING.slice(1));
});

t.test('CLIENT-47: what waits in the outbox is sent once per wait of the sender', async (t) => {
  const world = await device(t, 'http://127.0.0.1:1');
  const put = world.device.put({ binId: 'inbox', type: 'text', payload: { text: 'queued' } });
  t.equal((await refusal(hurried(world.clock, world.traffic, put, 100))).code, 'queued');
  const before = world.begun.length;
  const from = world.clock.now();
  await world.pass(64);
  t.equal(world.begun.length - before, 6, 'six requests, 1, 3, 7, 15, 31 and 63 s later');
  t.ok(world.clock.now() - from >= 64_000);
});

t.test('CLIENT-56: `reconnect` makes one more attempt, and the waits continue to grow', async (t) => {
  const world = await device(t, 'http://127.0.0.1:1');
  world.device.reconnect();
  await world.pass(1);
  t.equal(world.begun.length, 0, 'a device on which `connect` was not called does not connect');
  world.connect();
  await world.pass(10);
  world.device.reconnect();
  await world.pass(20);
  t.same(world.times('/ws-ticket'), [1, 2, 4, 8, 11, 27]);
  world.device.close();
  t.throws(() => world.device.reconnect(), { code: 'closed' });
});

t.test('CLIENT-48: a wait that the server names is observed with jitter, up to 15 minutes', async (t) => {
  const asks = { 'retry-after': '20' };
  const cases: readonly [string, Trouble][] = [
    ['503 to the ticket', { answer: (_, response) => refuse(503, response, asks) }],
    ['429 to the ticket', { answer: (_, response) => refuse(429, response, asks) }],
    ['503 to the upgrade', { upgrade: () => 'HTTP/1.1 503 Busy\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n' }],
    ['429 to the upgrade', { upgrade: () => 'HTTP/1.1 429 Busy\r\nRetry-After: 20\r\nContent-Length: 2\r\n\r\n{}' }],
  ];
  for (const [name, trouble] of cases) {
    const world = await device(t, await server(t, trouble));
    world.connect();
    await world.pass(64);
    // A quarter of it more at most: all devices that are refused together are told the same seconds.
    t.same(world.times('/ws-ticket'), [0, 25, 50], name);
  }
  const absurd = await device(
    t,
    await server(t, { answer: (_, response) => refuse(503, response, { 'retry-after': '999999999' }) }),
  );
  absurd.connect();
  await absurd.pass(1_000);
  t.same(absurd.times('/ws-ticket'), [0, 900], 'never for longer than a quarter of an hour');
});

t.test('CLIENT-48: a wait that the server names is observed by what waits in the outbox too', async (t) => {
  const cases: readonly [asked: string, seconds: number, gaps: readonly number[]][] = [
    ['200', 550, [250, 250]],
    ['999999999', 950, [900]],
  ];
  for (const [asked, seconds, gaps] of cases) {
    const answer: Trouble['answer'] = (_, response) => refuse(503, response, { 'retry-after': asked });
    const world = await device(t, await server(t, { answer }));
    const put = world.device.put({ binId: 'inbox', type: 'text', payload: { text: 'queued' } });
    t.equal((await refusal(hurried(world.clock, world.traffic, put, 100))).code, 'queued');
    await world.pass(seconds);
    const sent = world.times('/items');
    t.same(
      sent.slice(1).map((at, before) => Math.round(at - (sent[before] ?? 0))),
      gaps,
      `Retry-After ${asked}`,
    );
  }
});

t.test('CLIENT-59: the reconnect time that a close frame names is observed, with jitter and a bound', async (t) => {
  const closing = (code: number, reason: string): Promise<string> =>
    server(t, { socket: (client) => client.on('message', () => client.close(code, reason)) });
  const cases: readonly [code: number, reason: string, times: readonly number[]][] = [
    // 20 s plus a quarter of it at most; the backoff without a named time is shorter.
    [1012, 'retry-after=20', [0, 25, 50]],
    [1013, 'retry-after=20', [0, 25, 50]],
    // A second plus a second at most; the growing backoff is the lower bound.
    [1012, 'retry-after=1', [0, 2, 4, 8, 16, 32, 64]],
    [1013, 'retry-after=1', [0, 2, 4, 8, 16, 32, 64]],
    // No time is named: the usual waits of these codes.
    [1012, 'restart', [0, 3, 6, 10, 18, 34]],
    [1012, 'retry-after=0', [0, 3, 6, 10, 18, 34]],
    [1012, 'retry-after=-5', [0, 3, 6, 10, 18, 34]],
    [1012, 'retry-after=1e9', [0, 3, 6, 10, 18, 34]],
    [1012, 'retry-after=9999999999', [0, 3, 6, 10, 18, 34]],
    [1012, ' retry-after=20', [0, 3, 6, 10, 18, 34]],
    [1013, 'retry-after=soon', [0, 8, 24, 56]],
    // With another code the text means nothing.
    [4408, 'retry-after=20', [0, 1, 3, 7, 15, 31, 63]],
  ];
  for (const [code, reason, times] of cases) {
    const world = await device(t, await closing(code, reason));
    world.connect();
    await world.pass(64);
    t.same(world.times('socket'), times, `${code} ${reason}`);
  }
  const absurd = await device(t, await closing(1013, 'retry-after=999999999'));
  absurd.connect();
  await absurd.pass(1_000);
  t.same(absurd.times('socket'), [0, 900], 'a quarter of an hour at most, jitter included');
});

t.test('CLIENT-48: an upgrade that gets any other answer ends the attempt', async (t) => {
  const answers = [
    'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok',
    'HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n',
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n',
    'nonsense',
    '',
  ];
  for (const answer of answers) {
    const world = await device(t, await server(t, { upgrade: () => answer }));
    world.connect();
    await world.pass(64);
    t.same([world.times('/ws-ticket'), world.times('socket')], [GROWING, GROWING], JSON.stringify(answer));
  }
});

const caughtUp = JSON.stringify({ type: 'caught_up', version: 0, epoch: 'e', itemCount: 0, versionSum: 0 });
const lists: Trouble['answer'] = (path, response) => {
  if (path === '/ws-ticket') return false;
  response.end(JSON.stringify({ bins: [], devices: [] }));
  return true;
};

t.test(
  'CLIENT-49: a server that delivers everything and then closes at once is retried after growing waits',
  async (t) => {
    const url = await server(t, {
      answer: lists,
      socket: (client) =>
        client.on('message', () => {
          client.send(caughtUp);
          client.close(1013);
        }),
    });
    const world = await device(t, url);
    world.connect();
    await world.pass(130);
    t.same(world.times('/ws-ticket'), [0, 8, 24, 56, 116], 'from the first wait on as for an overloaded server');
  },
);

t.test('CLIENT-54: a frame of 1 MiB is read, and a longer one ends the connection', async (t) => {
  const most = 1024 * 1024;
  const url = await server(t, {
    socket: (client) => {
      for (const length of [most, most + 1]) client.send('x'.repeat(length));
    },
  });
  for (const sockets of [nodeSockets, browserSockets(systemClock)]) {
    const lengths: number[] = [];
    await new Promise<void>((resolve) => {
      const message = (text: string): void => void lengths.push(text.length);
      sockets.open(url.replace('http', 'ws'), { opened: () => undefined, message, closed: () => resolve() });
    });
    t.same(lengths, [most]);
  }
});

t.test('CLIENT-54: a browser reports the end where a server leaves the closing handshake unanswered', async (t) => {
  const url = await server(t, {
    socket: (client) => {
      client.send('x'.repeat(SERVER_FRAME_MAX + 1));
      // The client's close frame stays unread.
      client.pause();
      t.teardown(() => client.terminate());
    },
  });
  const clock = new TestClock();
  const ends: unknown[] = [];
  browserSockets(clock).open(url.replace('http', 'ws'), {
    opened: () => undefined,
    message: () => t.fail('the frame is too large'),
    closed: (...end) => ends.push(end),
  });
  await until('the handshake is timed', () => clock.hasTimer(CLOSE_WITHIN_MS));
  clock.advance(CLOSE_WITHIN_MS - 1);
  t.same(ends, []);
  clock.advance(1);
  t.same(ends, [[1006, 'the closing handshake was not answered']]);
  t.equal(clock.waiting, 0);
});

t.test('CLIENT-49: after a connection that proved good the waits are short again', async (t) => {
  /** Whether the third connection delivers everything, how long it lives after that, and the wait after its end, s. */
  const cases: readonly [delivers: boolean, lives: number, wait: number][] = [
    [true, 9, 4],
    [true, 10, 1],
    [false, 59, 4],
    [false, 60, 1],
  ];
  for (const [delivers, lives, wait] of cases) {
    let connections = 0;
    const greeted = new Events<WebSocket>();
    const socket = (client: WebSocket): void => {
      if (++connections === 3) client.once('message', () => greeted.add(client));
      else client.terminate();
    };
    const world = await device(t, await server(t, { answer: lists, socket }));
    const delivered = new Events<unknown>();
    world.device.on('caught_up', delivered.add);
    world.connect();
    await world.pass(3);
    await greeted.until(1);
    const [client] = greeted.all;
    if (client === undefined) throw new Error('no connection');
    if (delivers) {
      client.send(caughtUp);
      await delivered.until(1);
    }
    for (let left = lives; left > 0; left -= 10) {
      world.clock.advance(Math.min(left, 10) * 1_000);
      const alive = once(client, 'message');
      client.send('{"type":"ping"}');
      await alive;
    }
    client.terminate();
    await world.pass(wait);
    t.same(world.times('/ws-ticket'), [0, 1, 3, 3 + lives + wait], `${String(delivers)}, ${lives} s`);
  }
});

t.test('CLIENT-50: a request that is refused with 429 waits as specified and continues, up to 260 s', async (t) => {
  let [left, asked, seconds] = [30, 0, '2'];
  const url = await server(t, {
    answer: (path, response) => {
      if (path !== '/me') return false;
      asked++;
      return left-- > 0 && refuse(429, response, { 'retry-after': seconds });
    },
  });
  const clock = new TestClock();
  const started = clock.now();
  const { platform, traffic } = counted({ sodium: nodeSodium, fetch, sockets: nodeSockets, clock, random: () => 0.5 });
  const http = new Http({ ...platform, baseUrl: url });
  const request = { method: 'GET', path: '/me', repeatable: true } as const;
  await hurried(clock, traffic, http.send(request), 100);
  t.equal(asked, 31);
  t.equal(Math.round((clock.now() - started) / 1_000), 60, 'two seconds for each refusal');

  seconds = '1';
  left = Infinity;
  asked = 0;
  t.equal((await refusal(hurried(clock, traffic, http.send(request), 100))).code, 'unavailable');
  t.equal(asked, 261, 'the request is given up after 260 waits of a second');

  left = Infinity;
  asked = 0;
  await refusal(hurried(clock, traffic, http.send({ ...request, once: true }), 100));
  t.equal(asked, 1, 'a request with `once` is sent once');
});

t.test('two calls of `connect` share one connection, both reject when it ends, and may be repeated', async (t) => {
  const { port, connections } = fakeSockets();
  const { fetch } = fakeFetch(() => ({ body: { ticket: 'ticket' } }));
  const platform = { sodium: nodeSodium, fetch, sockets: port, clock: new TestClock(), random: () => 0 };
  const store = await usedStore();
  const device = await Device.open({ platform, identity: newIdentity(), store, onProblem: () => undefined });
  const ended: (string | undefined)[] = [];
  const connect = (): void => void refusal(device.connect()).then((error) => ended.push(error.code));
  connect();
  connect();
  await settle();
  t.equal(connections.length, 1);
  device.disconnect();
  await settle();
  t.same(ended, ['closed', 'closed']);
  connect();
  await settle();
  t.equal(connections.length, 2);
  device.close();
  await settle();
  t.same(ended, ['closed', 'closed', 'closed']);
});
