/** The HTTP and WebSocket server: the listening socket, and the way down. */
import uWS, { type TemplatedApp, type us_listen_socket } from 'uWebSockets.js';
import type { Timer } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { FRAME_MAX, SOCKET_UNSENT_MAX, UNSENT_MAX } from '../../protocol/limits.js';
import type { SocketData } from './device-socket.js';
import { Pipeline } from '../http/pipeline.js';
import type { Row } from '../http/route.js';
import { Sockets } from './socket.js';
import { SocketRoom } from './unsent.js';
import { noteOpening, SOCKET_PATH, Upgrader, type SocketParts } from './upgrade.js';

/**
 * The largest frame that is read at all, bytes. Above FRAME_MAX we close with 1009 (reference, Sockets); above this the
 * library cuts the connection as soon as it has read the frame's header, without a close frame, and has no setting for
 * another way: a client sees 1006. Half a frame is in no budget, since nobody is told of it: so a socket's is this small.
 */
const FRAME_READ_MAX = 4 * FRAME_MAX;
/** Above everything that a socket may leave unsent: the library drops what comes on top of it. */
const BACKPRESSURE_MAX = 2 * SOCKET_UNSENT_MAX;
/** The longest idle time that the library takes, s; 0 is none. */
const IDLE_MAX_S = 960;
/** It shall not judge before the wheel does. */
const IDLE_MARGIN_S = 30;

/**
 * A socket that we have ended counts as idle for as long as its peer does not hang up; without this bound its file
 * stays open for ever where the close frame had to wait. Of those that are open the wheel has judged long before.
 */
function idleSeconds(pongGraceMs: number): number {
  const seconds = Math.ceil(pongGraceMs / 1_000) + IDLE_MARGIN_S;
  return seconds > IDLE_MAX_S ? 0 : seconds;
}

/** LIBUS_LISTEN_EXCLUSIVE_PORT; the library takes it after the port, its types have that without a host only. */
const EXCLUSIVE_PORT = 1;
/** LIBUS_LISTEN_DEFAULT: with SO_REUSEPORT, the system spreads connections over those who listen. */
const SHARED_PORT = 0;

/** The running server. */
export interface Listener {
  readonly port: number;
  /** Sockets that are open. */
  readonly sockets: number;
  /** Calls that wait for their admission or their answer. */
  readonly calls: number;
  /** What is held of each budget (see the reference, Limits), by its name. */
  held(): Readonly<Record<string, number>>;
  /** Closes every socket with a code of the protocol (reference, Sockets, Close codes). */
  closeSockets(code: number): void;
  /**
   * Stops: takes no new connection, closes the sockets with 1012 spread over half of `graceMs`, lets calls under way
   * finish for up to `graceMs`, then cuts what is left.
   */
  close(graceMs: number): Promise<void>;
  /** Resolves when no handler is at work any more: `close` cuts connections, not what works for them. */
  settled(): Promise<void>;
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

interface AppParts {
  readonly handle: Pipeline<SocketParts>['handle'];
  readonly sockets: Sockets;
  readonly upgrader: Upgrader;
  readonly idleS: number;
}

/** The library's server, with every call and every event of a socket led to whom it concerns. */
function appOf({ handle, sockets, upgrader, idleS }: AppParts): TemplatedApp {
  const app = uWS.App();
  app.ws<SocketData>(SOCKET_PATH, {
    compression: uWS.DISABLED,
    idleTimeout: idleS,
    sendPingsAutomatically: false,
    maxPayloadLength: FRAME_READ_MAX,
    maxBackpressure: BACKPRESSURE_MAX,
    upgrade: (res, req, context) => upgrader.handle(res, req, context),
    open: noteOpening,
    message: (wire, message, isBinary) => sockets.message(wire, message, isBinary),
    ping: (wire, message) => sockets.heard(wire, message),
    pong: (wire, message) => sockets.heard(wire, message),
    drain: (wire) => sockets.drained(wire),
    close: (wire, code) => upgrader.closed(wire, code),
  });
  return app.any('/*', handle);
}

/**
 * Starts the server with these rows. `sharePort`: other processes of this service listen on the same port. Rejects when
 * the port cannot be had.
 */
export async function startListening<P extends SocketParts>(
  rows: readonly Row<P>[],
  parts: P,
  { sharePort = false }: { readonly sharePort?: boolean } = {},
): Promise<Listener> {
  const { config, clock, log, presence } = parts;
  const pipeline = new Pipeline(rows, parts);
  const sockets = new Sockets({
    ...{ clock, log, presence },
    pingIntervalMs: config.wsPingIntervalMs,
    pongGraceMs: config.wsPongGraceMs,
  });
  const room = new SocketRoom(clock, UNSENT_MAX);
  const upgrader = new Upgrader(parts, pipeline, sockets, room);
  const app = appOf({ handle: pipeline.handle, sockets, upgrader, idleS: idleSeconds(config.wsPongGraceMs) });
  const listening = await listen(app, { host: config.host, port: config.port, shared: sharePort });

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
    held: () => ({
      ...pipeline.budgets.held(),
      sockets_unsent: room.budget.held,
    }),
    closeSockets: (code) => void sockets.closeAll(code, '', 0),
    close: (graceMs) => (stopping ??= stop(graceMs)),
    settled: () => pipeline.drained(),
  };
}
