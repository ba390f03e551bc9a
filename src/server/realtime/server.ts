/** The HTTP and WebSocket server: listening and shutdown. */
import './head-limit.js';
import uWS, { type TemplatedApp, type us_listen_socket } from 'uWebSockets.js';
import { within } from '../../protocol/clock.js';
import { FRAME_MAX, SOCKET_UNSENT_MAX, UNSENT_MAX } from '../../protocol/limits.js';
import type { SocketData } from './device-socket.js';
import { FairBudget } from '../http/limits.js';
import { Pipeline } from '../http/pipeline.js';
import type { Row } from '../http/route.js';
import { Admission } from './admission.js';
import { Departures } from './departures.js';
import type { DescriptorRoom } from './descriptors.js';
import { Sockets } from './socket.js';
import type { HttpConfig, SocketParts } from '../http/ports.js';
import { noteOpening, SOCKET_PATH, Upgrader } from './upgrade.js';

/**
 * The largest frame that is read, bytes. Above FRAME_MAX the server closes with 1009 (reference, Sockets). Above this
 * the library closes the connection as soon as it has read the frame's header, always without a close frame: a client
 * sees 1006. The library does not report partial frames, so no budget counts them, and this bound must be small.
 */
const FRAME_READ_MAX = 4 * FRAME_MAX;
/** More than a socket may leave unsent: the library drops frames beyond it. */
const BACKPRESSURE_MAX = 2 * SOCKET_UNSENT_MAX;
/** The longest idle time-out that the library accepts, s; 0 disables it. */
const IDLE_MAX_S = 960;
/** The library's time-out fires this much later than the wheel's, s. */
const IDLE_MARGIN_S = 30;

/**
 * The library's idle time-out, s. For sockets that the server has ended and whose peer does not close: without it their
 * descriptors would stay open for ever if the close frame could not be sent. Open sockets are closed by the wheel.
 */
function idleSeconds(pongGraceMs: number): number {
  const seconds = Math.ceil(pongGraceMs / 1_000) + IDLE_MARGIN_S;
  return seconds > IDLE_MAX_S ? 0 : seconds;
}

/** LIBUS_LISTEN_EXCLUSIVE_PORT; an argument after the port, which the library's types lack if a host is given. */
const EXCLUSIVE_PORT = 1;
/** LIBUS_LISTEN_DEFAULT: with SO_REUSEPORT, so that the kernel distributes connections over all listening processes. */
const SHARED_PORT = 0;

function listen(app: TemplatedApp, { host, port }: HttpConfig, shared: boolean): Promise<us_listen_socket> {
  return new Promise((resolve, reject) => {
    const done = (socket: us_listen_socket | false): void => {
      if (socket === false) reject(new Error(`cannot listen on ${host} port ${port}: in use, or not allowed`));
      else resolve(socket);
    };
    // By default the library shares the port with any other process that listens on it: of two servers each would get
    // half of the other's connections, without an error.
    const exclusive = app as unknown as { listen(...args: unknown[]): TemplatedApp };
    exclusive.listen(host, port, shared ? SHARED_PORT : EXCLUSIVE_PORT, done);
  });
}

/** The parts of a server, connected and not listening yet. */
function compose<P extends SocketParts>(rows: readonly Row<P>[], parts: P, room: DescriptorRoom) {
  const { clock, config } = parts;
  const forConnections = (): number => room.connections - sockets.size;
  const pipeline = new Pipeline(rows, parts, forConnections, room.isExhausted);
  const sockets = new Sockets(parts, room.sockets);
  const unsent = new FairBudget(UNSENT_MAX, clock);
  const admission = new Admission(clock);
  const departures = new Departures(clock, () => sockets.all());
  const upgrader = new Upgrader(parts, { pipeline, sockets, unsent, admission });
  const app = uWS.App().ws<SocketData>(SOCKET_PATH, {
    compression: uWS.DISABLED,
    idleTimeout: idleSeconds(config.wsPongGraceMs),
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
  app.filter((res, count) => pipeline.connections.changed(res, Number(count)));
  app.any('/*', pipeline.handle);
  return { pipeline, sockets, unsent, admission, departures, upgrader, app };
}

export type Listener = Awaited<ReturnType<typeof startListening>>;

/**
 * Starts the server with these rows. `sharePort`: other processes of this service listen on the same port.
 * Rejects if it cannot listen.
 */
export async function startListening<P extends SocketParts>(
  rows: readonly Row<P>[],
  parts: P,
  { sharePort, room }: { readonly sharePort: boolean; readonly room: DescriptorRoom },
) {
  const { clock, config } = parts;
  const { pipeline, sockets, unsent, admission, departures, upgrader, app } = compose(rows, parts, room);
  const listening = await listen(app, config, sharePort);
  const port = uWS.us_socket_local_port(listening);
  let listens = true;
  const stopListening = (): void => {
    if (listens) uWS.us_listen_socket_close(listening);
    listens = false;
  };
  const stop = async (graceMs: number): Promise<void> => {
    stopListening();
    upgrader.closing = true;
    admission.close();
    pipeline.beginEnd();
    const departed = departures.over(graceMs / 2);
    await within(
      clock,
      graceMs,
      departed.then(() => pipeline.drained()),
      undefined,
    );
    // Whatever is left is closed now: a socket must not outlive the parts it uses.
    await departures.over(0);
    sockets.stop();
    pipeline.rates.stop();
    app.close();
  };
  let stopping: Promise<void> | undefined;

  return {
    port,
    /** Sockets that wait for admission, and how many per second the database is estimated to admit. */
    admission,
    /** `drain` was called: it closes its sockets and admits no new ones. */
    get draining() {
      return upgrader.draining;
    },
    get sockets() {
      return sockets.size;
    },
    /** Requests that wait for their admission or their answer. */
    get calls() {
      return pipeline.underWay;
    },
    /** The amount held of each budget (reference, Limits), by name. */
    held: (): Record<string, number> => ({ ...pipeline.budgets.held(), sockets_unsent: unsent.held }),
    /**
     * Closes the sockets over `ms`, and admits no new ones; requests are still answered. `alone`: the other processes
     * on its port continue, so it accepts no new connections. If called again, the remaining sockets close over the new
     * time.
     */
    drain({ ms, alone }: { readonly ms: number; readonly alone: boolean }): void {
      // A stop closes the sockets sooner, so a drain has no effect during it.
      if (stopping !== undefined) return;
      upgrader.draining = true;
      admission.close();
      // A client's next request uses a new connection, which a proxy opens to another instance.
      pipeline.writer.closing = true;
      if (alone && sharePort) stopListening();
      void departures.over(ms);
    },
    /**
     * Stops: accepts no new connection, closes the sockets with 1012 spread over half of `graceMs`, waits up to
     * `graceMs` for requests under way, then closes all connections.
     */
    close: (graceMs: number): Promise<void> => (stopping ??= stop(graceMs)),
    /** Resolves when no handler runs any more: `close` closes connections, but does not end their handlers. */
    settled: () => pipeline.drained(),
  };
}
