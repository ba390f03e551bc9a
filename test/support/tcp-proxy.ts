/** TCP proxies that a test can break. */
import { connect, createServer, type Socket } from 'node:net';
import { listenOnLoopback, portOf } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

/** What every such proxy does: it joins connections that end together, and can cut them. */
export abstract class Relay {
  protected readonly pairs = new Set<readonly [client: Socket, server: Socket]>();
  protected readonly server = createServer((client) => this.take(client));

  /** Handles a new connection. */
  protected abstract take(client: Socket): void;

  /** Listens until the test is over. */
  protected async listenFor(t: WithTeardown): Promise<this> {
    await listenOnLoopback(this.server);
    t.teardown(() => {
      this.server.close();
      this.cut();
    });
    return this;
  }

  get port(): number {
    return portOf(this.server);
  }

  /** Each ends with the other. Nothing is passed on yet. */
  protected join(client: Socket, server: Socket): readonly [Socket, Socket] {
    const pair = [client, server] as const;
    this.pairs.add(pair);
    for (const [one, other] of [pair, [server, client] as const]) {
      one.on('error', () => other.destroy());
      one.on('close', () => {
        other.destroy();
        this.pairs.delete(pair);
      });
    }
    return pair;
  }

  /** Cuts every connection. */
  cut(): void {
    for (const pair of this.pairs) for (const socket of pair) socket.destroy();
  }
}

/** The same URL with another port of this machine. */
export function throughPort(url: string | URL, port: number): string {
  const changed = new URL(url);
  changed.host = `127.0.0.1:${port}`;
  return changed.href;
}

/** The connection stays open and forwards nothing any more. */
export const hush = (pair: readonly Socket[]): void => {
  for (const socket of pair) socket.unpipe().pause();
};

/** Bytes of the servers' output that are remembered. */
const LAST_BYTES = 65_536;

/** A proxy that cuts, refuses, or goes on holding connections without forwarding a byte. */
export class TcpProxy extends Relay {
  private refusing = false;
  private mute = false;
  private readonly swallowed = new Set<Socket>();
  private lastBytes = '';

  private constructor(
    private readonly host: string,
    private targetPort: number,
  ) {
    super();
  }

  /** In front of the server of a URL. */
  static before(t: WithTeardown, url: string): Promise<TcpProxy> {
    const { hostname, port } = new URL(url);
    return new TcpProxy(hostname, Number(port)).listenFor(t);
  }

  /** The same URL, through the proxy. */
  through(url: string): string {
    return throughPort(url, this.port);
  }

  protected take(client: Socket): void {
    if (this.refusing) {
      client.resetAndDestroy();
      return;
    }
    if (this.mute) {
      this.swallowed.add(
        client
          .on('error', () => undefined)
          .on('close', () => this.swallowed.delete(client))
          .pause(),
      );
      return;
    }
    const server = connect(this.targetPort, this.host);
    server.on('data', (bytes) => (this.lastBytes = (this.lastBytes + bytes.toString('latin1')).slice(-LAST_BYTES)));
    for (const socket of this.join(client, server)) socket.setNoDelay();
    client.pipe(server).pipe(client);
  }

  /** From now on new connections go to another port: another server in the place of the first. */
  retarget(port: number): void {
    this.targetPort = port;
  }

  get connections(): number {
    return this.pairs.size;
  }

  /** Connections that were made while it swallowed all. */
  get swallowing(): number {
    return this.swallowed.size;
  }

  /** Connections that are open now stay open and carry nothing any more; new ones work. */
  freeze(): void {
    this.pairs.forEach(hush);
  }

  /** Whether the server has sent this recently, in one or several pieces. */
  carried(text: string): boolean {
    return this.lastBytes.includes(text);
  }

  /** Frozen connections carry again, also what was sent meanwhile. */
  thaw(): void {
    for (const [client, server] of this.pairs) client.pipe(server).pipe(client);
  }

  /** From now on every connection, new ones too, is open and carries nothing; or all works again, for new ones. */
  swallow(swallowing: boolean): void {
    this.mute = swallowing;
    if (swallowing) this.freeze();
    else this.cut();
  }

  override cut(): void {
    for (const socket of this.swallowed) socket.destroy();
    super.cut();
  }

  /** From now on connections are refused, or let in again. */
  refuse(refusing: boolean): void {
    this.refusing = refusing;
  }
}
