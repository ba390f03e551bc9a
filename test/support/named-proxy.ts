/**
 * A proxy in front of PostgreSQL that tells connections apart by the `application_name` they open with, so that a test
 * can break one of them and leave the others: cut it, or swallow what it carries without closing it (half-open).
 */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { listenOnLoopback, portOf } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

interface Pair {
  readonly name: string;
  readonly client: Socket;
  readonly server: Socket;
}

/** The `application_name` of a startup packet: length, version, then names and values, each ended by a zero byte. */
function nameIn(packet: Buffer): string {
  const words = packet.subarray(8).toString('latin1').split('\0');
  const at = words.indexOf('application_name');
  return at === -1 ? '' : (words[at + 1] ?? '');
}

export class NamedProxy {
  private readonly pairs = new Set<Pair>();
  private swallowing = false;
  private heldBack: string | undefined;
  private readonly server: Server;

  private constructor(private readonly target: URL) {
    this.server = createServer((client) => this.take(client));
  }

  /** In front of the server of a URL. */
  static async before(t: WithTeardown, url: string): Promise<NamedProxy> {
    const proxy = new NamedProxy(new URL(url));
    await listenOnLoopback(proxy.server);
    t.teardown(() => {
      proxy.server.close();
      proxy.cut('');
    });
    return proxy;
  }

  /** The same URL, through the proxy. */
  get url(): string {
    const changed = new URL(this.target);
    changed.host = `127.0.0.1:${portOf(this.server)}`;
    return changed.href;
  }

  /** Connections that are open and bear this name; '' is any. */
  count(name: string): number {
    return this.of(name).length;
  }

  private of(name: string): Pair[] {
    return [...this.pairs].filter((pair) => name === '' || pair.name === name);
  }

  /** Those that are open now stay open and carry nothing any more; new ones work. Answers how many. */
  swallow(name: string): number {
    const pairs = this.of(name);
    for (const { client, server } of pairs) for (const socket of [client, server]) socket.unpipe().pause();
    return pairs.length;
  }

  /** New ones too are taken and carry nothing, or work again. */
  swallowNew(swallowing: boolean): void {
    this.swallowing = swallowing;
  }

  /** What the server sends on new ones of this name waits for `pass`. */
  holdBack(name: string): void {
    this.heldBack = name;
  }

  /** Resolves when something is held back. */
  async held(): Promise<void> {
    const { server } = this.behind();
    if (server.readableLength === 0) await once(server, 'readable');
  }

  /** Passes on what is held back: at once, and unread. */
  pass(): void {
    const { client, server } = this.behind();
    client.write(server.read() as Buffer);
  }

  private behind(): Pair {
    const [pair] = this.of(this.heldBack ?? '');
    if (pair === undefined) throw new Error('there is no such connection');
    return pair;
  }

  /** Cuts them. Answers how many. */
  cut(name: string): number {
    const pairs = this.of(name);
    for (const { client, server } of pairs) for (const socket of [client, server]) socket.destroy();
    return pairs.length;
  }

  private take(client: Socket): void {
    client.on('error', () => client.destroy());
    // The startup packet is small and comes whole.
    client.once('data', (packet: Buffer) => {
      client.pause();
      const server = connect(Number(this.target.port), this.target.hostname);
      const pair = { name: nameIn(packet), client, server };
      this.pairs.add(pair);
      for (const [from, to] of [[client, server] as const, [server, client] as const]) {
        from.on('error', () => to.destroy());
        from.on('close', () => {
          to.destroy();
          this.pairs.delete(pair);
        });
      }
      if (this.swallowing) return;
      server.write(packet);
      client.pipe(server);
      // Reading of zero bytes asks for more, and takes nothing.
      if (pair.name === this.heldBack) server.once('connect', () => void server.read(0));
      else server.pipe(client);
    });
  }
}
