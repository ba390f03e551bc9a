/** A proxy that counts what passes, and cuts every connection when a mark is passed. */
import { connect, type Socket } from 'node:net';
import type { WithTeardown } from './postgres.js';
import { Relay } from './tcp-proxy.js';

/** The proxy; `count` sets the marks. */
export class CuttingProxy extends Relay {
  /** Bytes from clients and to clients. */
  up = 0;
  down = 0;
  readonly cuts: number[] = [];
  private marks: number[] = [];
  private passed: () => void = () => undefined;

  private constructor(private target: number) {
    super();
  }

  /** In front of a port of this machine. */
  static before(t: WithTeardown, port: number): Promise<CuttingProxy> {
    return new CuttingProxy(port).listenFor(t);
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
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

  protected take(client: Socket): void {
    const server = connect(this.target, '127.0.0.1');
    this.join(client, server);
    for (const [from, way] of [[client, 'up'] as const, [server, 'down'] as const]) {
      from.on('data', (bytes: Buffer) => {
        this[way] += bytes.length;
        if (this.up + this.down < (this.marks[0] ?? Infinity)) return;
        this.cuts.push(this.marks.shift() ?? 0);
        this.cut();
        this.passed();
      });
    }
    client.pipe(server).pipe(client);
  }
}
