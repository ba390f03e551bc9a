/** The HTTP and WebSocket server: the route table, the listening socket, the way down. */
import uWS, { type TemplatedApp, type us_listen_socket } from 'uWebSockets.js';
import type { Timer } from '../protocol/clock.js';
import { CLOSE } from '../protocol/close-codes.js';
import { BODY_MAX, BODY_MAX_BATCH, BODY_MAX_ITEM, BODY_MAX_WEBHOOK } from '../protocol/limits.js';
import { Pipeline } from './pipeline.js';
import type { FrontOptions } from './ports.js';
import type { Handler, Method, Row } from './router.js';
import * as billing from './routes/billing.js';
import * as bins from './routes/bins.js';
import * as blobs from './routes/blobs.js';
import * as devices from './routes/devices.js';
import { docsPage } from './routes/docs.js';
import * as hosting from './routes/hosting.js';
import * as items from './routes/items.js';
import * as pairing from './routes/pairing.js';
import * as password from './routes/password.js';
import * as status from './routes/status.js';
import { Sockets, type SocketData } from './socket.js';
import { SOCKET_PATH, Upgrader } from './upgrade.js';

type Columns = readonly [
  method: Method,
  path: string,
  auth: Row['auth'],
  limit: Row['limit'],
  state: Row['state'],
  body: number,
  run: Handler,
];

/**
 * The route table. Paths are under /api; `body` is the largest body in bytes, 0 for none. `limit` write is for items
 * only: every other call with a token counts as a read, also where it changes bins, devices or the password
 * (contract 5, Rates). What may be changed in which state of the tenant is the column beside it.
 */
// prettier-ignore
const ROUTES: readonly Columns[] = [
  // method   path                           auth      limit        state    body            handler
  ['POST',   '/items',                       'device', 'write',     'write', BODY_MAX_ITEM,  items.writeItem],
  ['GET',    '/items',                       'device', 'read',      'read',  0,              items.listItems],
  ['POST',   '/items/batch',                 'device', 'write',     'write', BODY_MAX_BATCH, items.writeBatch],
  ['DELETE', '/items/:id',                   'device', 'write',     'write', BODY_MAX,       items.deleteItem],
  ['POST',   '/items/:id/reconcile',         'device', 'write',     'write', BODY_MAX,       items.moveItem],

  ['GET',    '/bins',                        'device', 'read',      'read',  0,              bins.listBins],
  ['POST',   '/bins',                        'device', 'read',      'write', BODY_MAX,       bins.createBin],
  ['PATCH',  '/bins/:id',                    'device', 'read',      'write', BODY_MAX,       bins.patchBin],
  ['DELETE', '/bins/:id',                    'device', 'read',      'write', BODY_MAX,       bins.deleteBin],

  ['POST',   '/blobs/upload-url',            'device', 'read',      'write', BODY_MAX,       blobs.uploadUrl],
  ['GET',    '/blobs/:ref/url',              'device', 'read',      'read',  0,              blobs.downloadUrl],

  ['GET',    '/devices',                     'device', 'read',      'read',  0,              devices.listDevices],
  ['PATCH',  '/devices/:id',                 'device', 'read',      'read',  BODY_MAX,       devices.patchDevice],
  ['POST',   '/devices/:id/revoke',          'device', 'read',      'read',  BODY_MAX,       devices.revokeDevice],
  ['POST',   '/devices/pair-init',           'device', 'read',      'read',  BODY_MAX,       pairing.initPairing],
  ['POST',   '/devices/pair-fetch-epk',      'none',   'pair',      'read',  BODY_MAX,       pairing.fetchEpk],
  ['POST',   '/devices/pair-fetch-npk',      'none',   'none',      'read',  BODY_MAX,       pairing.fetchNpk],
  ['GET',    '/devices/pair-requests',       'device', 'read',      'read',  0,              pairing.pairRequests],
  ['POST',   '/devices/pair-wrap',           'device', 'read',      'read',  BODY_MAX,       pairing.wrapKey],
  ['POST',   '/devices/bootstrap',           'none',   'none',      'any',   BODY_MAX,       devices.claim],
  ['POST',   '/devices/bootstrap/restart',   'admin',  'none',      'any',   BODY_MAX,       devices.restartBootstrap],
  ['POST',   '/devices/reauth/challenge',    'none',   'challenge', 'any',   BODY_MAX,       devices.challengeReauth],
  ['POST',   '/devices/reauth',              'none',   'none',      'any',   BODY_MAX,       devices.answerReauth],
  ['POST',   '/devices/recover/challenge',   'none',   'challenge', 'read',  BODY_MAX,       devices.challengeRecovery],
  ['POST',   '/devices/recover',             'none',   'none',      'read',  BODY_MAX,       devices.recover],
  ['POST',   '/ws-ticket',                   'device', 'read',      'read',  BODY_MAX,       devices.issueTicket],

  ['POST',   '/password/set',                'device', 'read',      'read',  BODY_MAX,       password.setPassword],
  ['POST',   '/password/verify',             'none',   'password',  'read',  BODY_MAX,       password.verifyPassword],
  ['GET',    '/password/exists',             'none',   'none',      'read',  0,              password.passwordExists],

  ['GET',    '/me',                          'device', 'read',      'any',   0,              status.me],
  ['GET',    '/service/status',              'none',   'none',      'any',   0,              status.serviceStatus],
];

const SIGNED = { path: '/blobs/:tenant/:ref', auth: 'url', limit: 'none', body: 0 } as const;

/** Blobs of the local store, by signed URLs; elsewhere clients reach the store by themselves (contract 8). */
export const TRANSFER_ROWS: readonly Row[] = [
  { ...SIGNED, method: 'PUT', state: 'write', stream: true, run: blobs.upload },
  { ...SIGNED, method: 'GET', state: 'read', run: blobs.download },
];

const HOSTED = { auth: 'none', state: 'any' } as const;

/** Every row, with those that answer for the process itself, whatever host is asked. */
export const ROWS: readonly Row[] = [
  ...ROUTES.map(([method, path, auth, limit, state, body, run]): Row => {
    return { method, path: `/api${path}`, auth, limit, state, body, run };
  }),
  ...Object.entries({
    '/api/health': status.health,
    '/': status.welcome,
    '/docs': docsPage,
    '/docs/': docsPage,
    '/docs/:id': docsPage,
  }).map(([path, run]): Row => {
    return { method: 'GET', path, auth: 'none', limit: 'none', state: 'any', body: 0, tenantless: true, run };
  }),
];

/** What a hosted service answers besides: signup and its page at the apex, and the proxy's question (contract 12). */
export const HOSTED_ROWS: readonly Row[] = [
  // The operator's way back to an unclaimed server is for single mode: it knows no tenant.
  ...ROWS.filter(({ path }) => path !== '/' && path !== '/api/devices/bootstrap/restart'),
  { ...HOSTED, method: 'POST', path: '/api/signup', limit: 'signup', body: BODY_MAX, apex: true, run: hosting.signUp },
  {
    ...HOSTED,
    method: 'POST',
    path: '/signup',
    limit: 'signup',
    body: BODY_MAX,
    apex: true,
    form: true,
    run: hosting.signUpByForm,
  },
  { ...HOSTED, method: 'GET', path: '/api/tls-check', limit: 'none', body: 0, tenantless: true, run: hosting.tlsCheck },
  { ...HOSTED, method: 'GET', path: '/', limit: 'none', body: 0, tenantless: true, run: hosting.welcome },
];

const APEX = { ...HOSTED, apex: true } as const;

/** What a hosted service that is paid for answers besides (contract 12). */
export const BILLED_ROWS: readonly Row[] = [
  ...HOSTED_ROWS,
  {
    ...HOSTED,
    method: 'POST',
    path: '/api/billing/webhook',
    limit: 'none',
    body: BODY_MAX_WEBHOOK,
    tenantless: true,
    raw: true,
    run: billing.webhook,
  },
  {
    method: 'GET',
    path: '/api/billing/portal',
    auth: 'device',
    limit: 'read',
    state: 'any',
    body: 0,
    run: billing.portal,
  },
  { ...APEX, method: 'GET', path: '/signup/done', limit: 'return', body: 0, run: billing.returned },
  { ...APEX, method: 'POST', path: '/signup/pay', limit: 'payment', body: BODY_MAX, form: true, run: billing.resume },
];

function rowsOf({ hosting, billing: billed, transfers }: FrontOptions): readonly Row[] {
  const rows = hosting === undefined ? ROWS : billed === undefined ? HOSTED_ROWS : BILLED_ROWS;
  return transfers === undefined ? rows : [...rows, ...TRANSFER_ROWS];
}

/** Every row of either mode, each once: what the reference documents. */
export const ALL_ROWS: readonly Row[] = [
  ...ROWS,
  ...TRANSFER_ROWS,
  ...BILLED_ROWS.filter((row) => !ROWS.some((known) => known.method === row.method && known.path === row.path)),
];

/**
 * The largest frame that is read at all, bytes. Above FRAME_MAX we close with 1009 (contract 11); above this the
 * library cuts the connection as soon as it has read the frame's header, without a close frame, and has no setting for
 * another way: a client sees 1006. A wider bound would let each socket fill as much memory before it is refused.
 * Somebody who sends a whole batch as a frame shall still hear why.
 */
const FRAME_READ_MAX = BODY_MAX_BATCH + BODY_MAX;
/** Never reached: the tenant's actor stops sending long before (contract 11, slow readers). */
const BACKPRESSURE_MAX = 64 * 1024 * 1024;

/** LIBUS_LISTEN_EXCLUSIVE_PORT; the library takes it after the port, its types have that without a host only. */
const EXCLUSIVE_PORT = 1;
/** LIBUS_LISTEN_DEFAULT: with SO_REUSEPORT, the system spreads connections over those who listen. */
const SHARED_PORT = 0;

/** The running server. */
export interface Front {
  readonly port: number;
  /** Sockets that are open. */
  readonly sockets: number;
  /** Calls that wait for their admission or their answer. */
  readonly calls: number;
  /** Closes every socket with a code of contract 11. */
  closeSockets(code: number): void;
  /**
   * Stops: takes no new connection, closes the sockets with 1012 spread over half of `graceMs`, lets calls under way
   * finish for up to `graceMs`, then cuts what is left.
   */
  close(graceMs: number): Promise<void>;
}

interface Address {
  readonly host: string;
  readonly port: number;
  readonly shared: boolean;
}

function listen(app: TemplatedApp, { host, port, shared }: Address): Promise<us_listen_socket> {
  return new Promise((resolve, reject) => {
    const done = (socket: us_listen_socket | false): void => {
      if (socket === false) reject(new Error(`cannot listen on ${host} port ${port}: in use, or not allowed`));
      else resolve(socket);
    };
    // Unless it is told otherwise the library shares the port with whoever else listens on it: two servers would get
    // half of each other's devices, and nobody would be told.
    const exclusive = app as unknown as { listen(...args: unknown[]): TemplatedApp };
    exclusive.listen(host, port, shared ? SHARED_PORT : EXCLUSIVE_PORT, done);
  });
}

/** Starts the server. Rejects when the port cannot be had. */
export async function startFront(options: FrontOptions): Promise<Front> {
  const { config, clock } = options;
  const pipeline = new Pipeline(rowsOf(options), options);
  const { log, presence } = options;
  const sockets = new Sockets({
    ...{ clock, log, presence },
    pingIntervalMs: config.wsPingIntervalMs,
    pongGraceMs: config.wsPongGraceMs,
  });
  const upgrader = new Upgrader(options, pipeline, sockets);
  const app = uWS.App();
  app.ws<SocketData>(SOCKET_PATH, {
    compression: uWS.DISABLED,
    idleTimeout: 0,
    sendPingsAutomatically: false,
    maxPayloadLength: FRAME_READ_MAX,
    maxBackpressure: BACKPRESSURE_MAX,
    upgrade: (res, req, context) => upgrader.handle(res, req, context),
    // No more than this: see Upgrader.open.
    open: (wire) => {
      wire.getUserData().socket.wire = wire;
    },
    message: (wire, message, isBinary) => sockets.message(wire, message, isBinary),
    ping: (wire) => sockets.heard(wire),
    pong: (wire) => sockets.heard(wire),
    drain: (wire) => sockets.drained(wire),
    close: (wire, code) => sockets.closed(wire, code),
  });
  app.any('/*', (res, req) => pipeline.handle(res, req));
  const listening = await listen(app, { host: config.host, port: config.port, shared: options.sharePort ?? false });

  const stop = async (graceMs: number): Promise<void> => {
    uWS.us_listen_socket_close(listening);
    upgrader.closing = true;
    pipeline.beginEnd();
    let timer: Timer | undefined;
    const grace = new Promise<void>((resolve) => {
      timer = clock.setTimer(graceMs, resolve);
    });
    await sockets.closeAll(CLOSE.restart, 'restart', graceMs / 2);
    await Promise.race([pipeline.drained(), grace]);
    timer?.cancel();
    sockets.stop();
    pipeline.rates.stop();
    app.close();
  };
  let stopping: Promise<void> | undefined;

  return {
    port: uWS.us_socket_local_port(listening),
    get sockets() {
      return sockets.size;
    },
    get calls() {
      return pipeline.underWay;
    },
    closeSockets: (code) => void sockets.closeAll(code, '', 0),
    close: (graceMs) => (stopping ??= stop(graceMs)),
  };
}
