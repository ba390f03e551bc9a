/** A TCP proxy that a test can break: it cuts, refuses, or goes on holding connections without forwarding a byte. */
import { connect, createServer, type Server, type Socket } from 'node:net';
import { listenOnLoopback, portOf } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

/** Of what the servers say, so much is remembered. */
const LAST_BYTES = 65_536;

export class TcpProxy {
  private readonly pairs = new Set<readonly [Socket, Socket]>();
  private refusing = false;
  private mute = false;
  private readonly swallowed = new Set<Socket>();
  private lastBytes = '';
  private readonly server: Server;

  private constructor(
    private readonly host: string,
    private targetPort: number,
  ) {
    this.server = createServer((client) => this.forward(client));
  }

  /** In front of the server of a URL. */
  static async before(t: WithTeardown, url: string): Promise<TcpProxy> {
    const { hostname, port } = new URL(url);
    const proxy = new TcpProxy(hostname, Number(port));
    await listenOnLoopback(proxy.server);
    t.teardown(() => proxy.close());
    return proxy;
  }

  /** The same URL, through the proxy. */
  through(url: string): string {
    const changed = new URL(url);
    changed.hostname = '127.0.0.1';
    changed.port = String(portOf(this.server));
    return changed.href;
  }

  private forward(client: Socket): void {
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
    const pair = [client, server] as const;
    this.pairs.add(pair);
    for (const [from, to] of [pair, [server, client] as const]) {
      from.setNoDelay().pipe(to);
      from.on('error', () => to.destroy());
      from.on('close', () => {
        to.destroy();
        this.pairs.delete(pair);
      });
    }
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
    for (const pair of this.pairs) {
      for (const socket of pair) socket.unpipe().pause();
    }
  }

  /** Whether the server has said this of late, in one or several pieces. */
  carried(text: string): boolean {
    return this.lastBytes.includes(text);
  }

  /** Frozen connections carry again, also what was sent meanwhile. */
  thaw(): void {
    for (const [client, server] of this.pairs) {
      client.pipe(server);
      server.pipe(client);
    }
  }

  /** From now on every connection, new ones too, is open and carries nothing; or all works again, for new ones. */
  swallow(swallowing: boolean): void {
    this.mute = swallowing;
    if (swallowing) this.freeze();
    else this.cut();
  }

  /** Cuts every connection. */
  cut(): void {
    for (const socket of this.swallowed) socket.destroy();
    for (const pair of this.pairs) for (const socket of pair) socket.destroy();
  }

  /** From now on connections are refused, or let in again. */
  refuse(refusing: boolean): void {
    this.refusing = refusing;
  }

  private close(): void {
    this.server.close();
    this.cut();
  }
}
