/**
 * A proxy in front of PostgreSQL that tells connections apart by the `application_name` they open with, so that a test
 * can break one of them and leave the others: cut it, or swallow what it carries without closing it (half-open).
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { WithTeardown } from './postgres.js';
import { hush, Relay, throughPort } from './tcp-proxy.js';

/** The `application_name` of a startup packet: length, version, then names and values, each ended by a zero byte. */
function nameIn(packet: Buffer): string {
  const words = packet.subarray(8).toString('latin1').split('\0');
  const at = words.indexOf('application_name');
  return at === -1 ? '' : (words[at + 1] ?? '');
}

export class NamedProxy extends Relay {
  /** By the client's end. */
  private readonly names = new WeakMap<Socket, string>();
  private swallowing = false;
  private heldBack: string | undefined;

  private constructor(private readonly target: URL) {
    super();
  }

  /** In front of the server of a URL. */
  static before(t: WithTeardown, url: string): Promise<NamedProxy> {
    return new NamedProxy(new URL(url)).listenFor(t);
  }

  /** The same URL, through the proxy. */
  get url(): string {
    return throughPort(this.target, this.port);
  }

  /** Connections that are open and bear this name; '' is any. */
  count(name: string): number {
    return this.of(name).length;
  }

  private of(name: string) {
    return [...this.pairs].filter(([client]) => name === '' || this.names.get(client) === name);
  }

  /**
   * Those that are open now stay open until the client closes them, and carry nothing any more; new ones work. Answers
   * how many.
   */
  swallow(name: string): number {
    const pairs = this.of(name);
    for (const pair of pairs) {
      hush(pair);
      // Read and dropped: the end of a paused socket is never seen, and its backend would go on listening.
      pair[0].resume();
    }
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
    const [, server] = this.behind();
    if (server.readableLength === 0) await once(server, 'readable');
  }

  /** Passes on what is held back: at once, and unread. */
  pass(): void {
    const [client, server] = this.behind();
    client.write(server.read() as Buffer);
  }

  private behind(): readonly [Socket, Socket] {
    const [pair] = this.of(this.heldBack ?? '');
    if (pair === undefined) throw new Error('there is no such connection');
    return pair;
  }

  /** Cuts those of a name, or all. Answers how many. */
  override cut(name = ''): number {
    const pairs = this.of(name);
    for (const pair of pairs) for (const socket of pair) socket.destroy();
    return pairs.length;
  }

  protected take(client: Socket): void {
    client.on('error', () => client.destroy());
    // The startup packet is small and comes whole.
    client.once('data', (packet: Buffer) => {
      client.pause();
      const server = connect(Number(this.target.port), this.target.hostname);
      const name = nameIn(packet);
      this.names.set(client, name);
      this.join(client, server);
      if (this.swallowing) return;
      server.write(packet);
      client.pipe(server);
      // Reading of zero bytes asks for more, and takes nothing.
      if (name === this.heldBack) server.once('connect', () => void server.read(0));
      else server.pipe(client);
    });
  }
}
