/** A proxy that counts what passes, and cuts every connection when a mark is passed. */
import { connect, createServer, type Socket } from 'node:net';
import { listenOnLoopback, portOf } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

/** The proxy; `count` sets the marks. */
export class CuttingProxy {
  /** Bytes from clients and to clients. */
  up = 0;
  down = 0;
  readonly cuts: number[] = [];
  private readonly open = new Set<Socket>();
  private marks: number[] = [];
  private passed: () => void = () => undefined;
  private readonly server = createServer((client) => this.forward(client));

  private constructor(private target: number) {}

  /** In front of a port of this machine. */
  static async before(t: WithTeardown, port: number): Promise<CuttingProxy> {
    const proxy = new CuttingProxy(port);
    await listenOnLoopback(proxy.server);
    t.teardown(() => {
      proxy.cut();
      proxy.server.close();
    });
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${portOf(this.server)}`;
  }

  /** A server in the place of the first. */
  retarget(port: number): void {
    this.target = port;
  }

  /** Counts from 0. At each of the marks (bytes, both ways together) all connections are cut, then `passed` is called. */
  count(marks: readonly number[], passed: (cut: number) => void = () => undefined): void {
    this.up = 0;
    this.down = 0;
    this.cuts.length = 0;
    this.marks = [...marks];
    this.passed = () => passed(this.cuts.length);
  }

  cut(): void {
    for (const socket of this.open) socket.destroy();
  }

  private forward(client: Socket): void {
    const server = connect(this.target, '127.0.0.1');
    for (const [from, to, way] of [
      [client, server, 'up'],
      [server, client, 'down'],
    ] as const) {
      this.open.add(from);
      from.on('error', () => to.destroy());
      from.on('close', () => {
        this.open.delete(from);
        to.destroy();
      });
      from.on('data', (bytes: Buffer) => {
        this[way] += bytes.length;
        if (this.up + this.down < (this.marks[0] ?? Infinity)) return;
        this.cuts.push(this.marks.shift() ?? 0);
        this.cut();
        this.passed();
      });
      from.pipe(to);
    }
  }
}
