/**
 * uWebSockets.js alone: the cost of the same traffic without a service.
 * POST /api/items answers; POST /push/items also sends the body to the group's other sockets; /idle holds sockets.
 * /device verifies the service's own tokens, holds the socket, answers its hello and sends it a ping every `PING_S`: the
 * minimum for any server of this protocol. On the other paths a token is "group.member".
 *
 *   bare-uws [port=N]
 *
 * port: shared with other processes that have the same; by default a free one.
 */
import uWS from 'uWebSockets.js';
import { verifyToken } from '../../src/server/http/tokens.js';
import { BENCH_TOKEN_SECRET } from '../tokens.js';
import { PING_S } from './heartbeat.js';
import { collect, obey, option, say } from './say.js';

interface Member {
  readonly group: string;
  readonly token: string;
}

interface Device {
  readonly device: string;
  readonly second: number;
  /** Time of its last frame, ms. */
  heard: number;
}

const groups = new Map<string, Map<string, uWS.WebSocket<Member>>>();
const idle = new Set<unknown>();
const secret = new TextEncoder().encode(BENCH_TOKEN_SECRET);
const PING = '{"type":"ping"}';
const PONG_BYTES = '{"type":"pong"}'.length;
/** Devices by the second of the interval in which they get their ping. */
const devices = Array.from({ length: PING_S }, () => new Set<uWS.WebSocket<Device>>());
let opened = 0;
const CAUGHT_UP = '{"type":"caught_up","version":0,"epoch":"bare","itemCount":0,"versionSum":0}';
let version = 0;

/** The value of "id" in a body that begins with it. */
const idOf = (body: string): string => body.slice(7, 33);

function post(res: uWS.HttpResponse, done: (body: string) => void): void {
  let aborted = false;
  const parts: Buffer[] = [];
  res.onAborted(() => {
    aborted = true;
  });
  res.onData((chunk, last) => {
    // uWS reuses the chunk's memory after this returns.
    parts.push(Buffer.from(chunk.slice(0)));
    if (!last || aborted) return;
    const only = parts.length === 1 ? parts[0] : undefined;
    done((only ?? Buffer.concat(parts)).toString('latin1'));
  });
}

function answer(res: uWS.HttpResponse, body: string): void {
  res.writeHeader('Content-Type', 'application/json').end(`{"id":"${idOf(body)}","version":${version}}`);
}

const bearer = (req: uWS.HttpRequest): string => req.getHeader('authorization').slice(7);
const groupOf = (token: string): string => token.slice(0, token.indexOf('.'));

/** Answers an upgrade; the socket gets what `dataOf` returns. Undefined: the request is refused. */
const upgrade =
  (dataOf: (req: uWS.HttpRequest) => object | undefined) =>
  (res: uWS.HttpResponse, req: uWS.HttpRequest, context: uWS.us_socket_context_t): void => {
    const data = dataOf(req);
    if (data === undefined) {
      res.writeStatus('401 Unauthorized').end();
      return;
    }
    res.upgrade(
      data,
      req.getHeader('sec-websocket-key'),
      req.getHeader('sec-websocket-protocol'),
      req.getHeader('sec-websocket-extensions'),
      context,
    );
  };

const app = uWS
  .App()
  .post('/api/items', (res) => {
    post(res, (body) => {
      version++;
      answer(res, body);
    });
  })
  .post('/push/items', (res, req) => {
    const token = bearer(req);
    post(res, (body) => {
      version++;
      const frame = `{"type":"item","version":${version},${body.slice(1)}`;
      for (const [member, socket] of groups.get(groupOf(token)) ?? []) {
        if (member !== token) socket.send(frame);
      }
      answer(res, body);
    });
  })
  .ws<Member>('/ws', {
    compression: uWS.DISABLED,
    upgrade: upgrade((req) => {
      const token = bearer(req);
      return { group: groupOf(token), token };
    }),
    open: (socket) => {
      const { group, token } = socket.getUserData();
      const members = groups.get(group) ?? new Map<string, uWS.WebSocket<Member>>();
      groups.set(group, members);
      members.set(token, socket);
    },
    close: (socket) => {
      const { group, token } = socket.getUserData();
      groups.get(group)?.delete(token);
    },
  })
  .ws('/idle', {
    compression: uWS.DISABLED,
    idleTimeout: 0,
    upgrade: upgrade(() => ({ since: 0 })),
    // The minimum for a server that can send to its sockets: user data, and a set of the sockets.
    open: (socket) => void idle.add(socket),
    close: (socket) => void idle.delete(socket),
    message: () => undefined,
  })
  .ws<Device>('/device', {
    compression: uWS.DISABLED,
    idleTimeout: 0,
    upgrade: upgrade((req) => {
      const claims = verifyToken(secret, bearer(req), Date.now());
      if (typeof claims === 'string') return undefined;
      return { device: claims.deviceId, second: opened++ % PING_S, heard: 0 } satisfies Device;
    }),
    open: (socket) => void devices[socket.getUserData().second]?.add(socket),
    close: (socket) => void devices[socket.getUserData().second]?.delete(socket),
    message: (socket, message) => {
      socket.getUserData().heard = Date.now();
      if (message.byteLength === PONG_BYTES) return;
      const frame = JSON.parse(Buffer.from(message).toString()) as { readonly type: string };
      if (frame.type === 'hello') socket.send(CAUGHT_UP);
    },
  });

let second = 0;
setInterval(() => {
  second = (second + 1) % PING_S;
  for (const socket of devices[second] ?? []) socket.send(PING);
}, 1_000);

app.listen('127.0.0.1', Number(option('port', '0')), (token) => {
  if (token === false) throw new Error('cannot listen');
  say({ event: 'listening', port: uWS.us_socket_local_port(token) });
});

obey({ collect });
