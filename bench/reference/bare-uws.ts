/**
 * uWebSockets.js alone: the cost of the same traffic without a service.
 * POST /api/items answers; POST /push/items also sends the body to the group's other sockets; /idle holds sockets.
 * /device verifies the service's own tokens, holds the socket and answers its hello: the minimum for any server of this
 * protocol. On the other paths a token is "group.member".
 *
 *   bare-uws [port=N]
 *
 * port: shared with other processes that have the same; by default a free one.
 */
import { createInterface } from 'node:readline';
import uWS from 'uWebSockets.js';
import { TokenVerifier } from '../../src/server/http/tokens.js';
import { BENCH_TOKEN_SECRET } from '../tokens.js';
import { option, say } from './say.js';

interface Member {
  readonly group: string;
  readonly token: string;
}

const groups = new Map<string, Map<string, uWS.WebSocket<Member>>>();
const idle = new Set<unknown>();
const tokens = new TokenVerifier(new TextEncoder().encode(BENCH_TOKEN_SECRET));
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
      for (const [member, socket] of groups.get(token.slice(0, token.indexOf('.'))) ?? []) {
        if (member !== token) socket.send(frame);
      }
      answer(res, body);
    });
  })
  .ws<Member>('/ws', {
    compression: uWS.DISABLED,
    upgrade: (res, req, context) => {
      const token = bearer(req);
      res.upgrade<Member>(
        { group: token.slice(0, token.indexOf('.')), token },
        req.getHeader('sec-websocket-key'),
        req.getHeader('sec-websocket-protocol'),
        req.getHeader('sec-websocket-extensions'),
        context,
      );
    },
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
  .ws<{ readonly since: number }>('/idle', {
    // The minimum for a server that can send to its sockets: an upgrade, user data, and a set of the sockets.
    compression: uWS.DISABLED,
    idleTimeout: 0,
    upgrade: (res, req, context) => {
      res.upgrade(
        { since: 0 },
        req.getHeader('sec-websocket-key'),
        req.getHeader('sec-websocket-protocol'),
        req.getHeader('sec-websocket-extensions'),
        context,
      );
    },
    open: (socket) => {
      idle.add(socket);
    },
    message: () => undefined,
    close: (socket) => {
      idle.delete(socket);
    },
  });

app.ws<{ readonly device: string }>('/device', {
  compression: uWS.DISABLED,
  idleTimeout: 0,
  upgrade: (res, req, context) => {
    const claims = tokens.verify(bearer(req), Date.now());
    if (typeof claims === 'string') {
      res.writeStatus('401 Unauthorized').end();
      return;
    }
    res.upgrade(
      { device: claims.deviceId },
      req.getHeader('sec-websocket-key'),
      req.getHeader('sec-websocket-protocol'),
      req.getHeader('sec-websocket-extensions'),
      context,
    );
  },
  open: (socket) => {
    idle.add(socket);
  },
  message: (socket, message) => {
    const frame = JSON.parse(Buffer.from(message).toString()) as { readonly type: string };
    if (frame.type === 'hello') socket.send(CAUGHT_UP);
  },
  close: (socket) => {
    idle.delete(socket);
  },
});

app.listen('127.0.0.1', Number(option('port', '0')), (token) => {
  if (token === false) throw new Error('cannot listen');
  say({ event: 'listening', port: uWS.us_socket_local_port(token) });
});

createInterface({ input: process.stdin }).on('line', (line) => {
  if (line !== 'collect') return;
  global.gc?.();
  say({ event: 'collected' });
});
