/** A device's socket that comes back whenever it is closed, goes on from its cursor, and keeps every version that came. */
import { setTimeout as sleep } from 'node:timers/promises';
import { WebSocket } from 'ws';
import { changesOf, type Seen } from './stream.js';
import { until } from './events.js';
import type { Json } from './wire.js';

/** Where an instance listens. */
export interface Address {
  readonly port: number;
  /** The tenant's host. */
  readonly host: string;
}

/** One connection of a recorder. */
interface Connection {
  readonly port: number;
  /** The code it was closed with; 1006 where it was cut. Undefined while it is open. */
  closedWith?: number;
  /** When it was closed, ms. */
  closedAt?: number;
  greeted: boolean;
}

/** Wait before the next attempt, ms; the places are tried in turn. */
const AGAIN_MS = 100;

export class Recorder {
  /** Every change that came, over all connections, in the order it came. */
  readonly seen: Pick<Seen, 'kind' | 'id' | 'version'>[] = [];
  readonly connections: Connection[] = [];
  /** Heartbeats that came. */
  pings = 0;
  /** Frames that no such device should get: `reset`, `error`. */
  readonly odd: Json[] = [];
  /** Answers to upgrades that were refused. */
  readonly refused: string[] = [];
  private epoch: string | undefined;
  private ws: WebSocket | undefined;
  private ending = false;
  private readonly running: Promise<void>;

  /** Stays with the first of the places as long as that one takes it. */
  constructor(
    private readonly places: readonly Address[],
    private readonly token: string,
  ) {
    this.running = this.run();
  }

  /** The highest version that came: what the next `hello` names. */
  get cursor(): number {
    return this.seen.at(-1)?.version ?? 0;
  }

  /** True while the server has said `caught_up` on the connection that is open. */
  get live(): boolean {
    const last = this.connections.at(-1);
    return last !== undefined && last.closedWith === undefined && last.greeted;
  }

  /** Resolves when it has come this far. */
  async reach(version: number, maxMs: number): Promise<void> {
    const what = (): string => {
      const { cursor, connections, refused } = this;
      return `version ${version}, not only ${cursor}: ${JSON.stringify(connections.slice(-4))}, ${refused.slice(-3).join()}`;
    };
    await until(what, () => this.cursor >= version, maxMs);
  }

  async end(): Promise<void> {
    this.ending = true;
    this.ws?.terminate();
    await this.running;
  }

  private async run(): Promise<void> {
    for (let turn = 0; !this.ending; turn++) {
      const place = this.places[turn % this.places.length];
      if (place === undefined) throw new Error('no place');
      // One that was taken stays where it is, so that a fault of one instance is seen at that instance.
      if (await this.connection(place)) turn--;
      if (!this.ending) await sleep(AGAIN_MS);
    }
  }

  /** One connection from its begin to its end; true when it was let in and greeted. */
  private async connection({ port, host }: Address): Promise<boolean> {
    const ws = new WebSocket(`ws://127.0.0.1:${port}/ws`, {
      headers: { host, authorization: `Bearer ${this.token}` },
      perMessageDeflate: false,
    });
    this.ws = ws;
    const connection: Connection = { port, greeted: false };
    ws.on('open', () => {
      this.connections.push(connection);
      const { cursor: since, epoch } = this;
      ws.send(JSON.stringify({ type: 'hello', since, acks: true, ...(epoch === undefined ? {} : { epoch }) }));
    });
    ws.on('message', (data: Buffer) => this.take(JSON.parse(data.toString('utf8')) as Json, connection));
    return new Promise((resolve) => {
      ws.on('unexpected-response', (request, response) => {
        this.refused.push(String(response.statusCode));
        request.destroy();
        resolve(false);
      });
      // `close` follows.
      ws.on('error', () => undefined);
      ws.on('close', (code) => {
        connection.closedWith = code;
        connection.closedAt = Date.now();
        resolve(connection.greeted);
      });
    });
  }

  private take(frame: Json, connection: Connection): void {
    const [change] = changesOf([frame]);
    if (change !== undefined) this.seen.push({ kind: change.kind, id: change.id, version: change.version });
    else if (frame['type'] === 'ping') {
      this.pings++;
      this.ws?.send('{"type":"pong"}');
    } else if (frame['type'] === 'caught_up') {
      connection.greeted = true;
      this.epoch = String(frame['epoch']);
    } else if (frame['type'] === 'reset' || frame['type'] === 'error') this.odd.push(frame);
  }
}
