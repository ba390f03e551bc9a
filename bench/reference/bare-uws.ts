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
import uWS from 'uWebSockets.js';
import { TokenVerifier } from '../../src/server/http/tokens.js';
import { BENCH_TOKEN_SECRET } from '../tokens.js';
import { collect, obey, option, say } from './say.js';

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

/** The minimum for a server that can send to its sockets: user data, and a set of the sockets. */
const held = {
  compression: uWS.DISABLED,
  idleTimeout: 0,
  open: (socket: unknown): void => void idle.add(socket),
  close: (socket: unknown): void => void idle.delete(socket),
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
  .ws('/idle', { ...held, upgrade: upgrade(() => ({ since: 0 })), message: () => undefined })
  .ws('/device', {
    ...held,
    upgrade: upgrade((req) => {
      const claims = tokens.verify(bearer(req), Date.now());
      return typeof claims === 'string' ? undefined : { device: claims.deviceId };
    }),
    message: (socket, message) => {
      const frame = JSON.parse(Buffer.from(message).toString()) as { readonly type: string };
      if (frame.type === 'hello') socket.send(CAUGHT_UP);
    },
  });

app.listen('127.0.0.1', Number(option('port', '0')), (token) => {
  if (token === false) throw new Error('cannot listen');
  say({ event: 'listening', port: uWS.us_socket_local_port(token) });
});

obey({ collect });
