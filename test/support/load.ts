/**
 * Writers and readers as real clients are: each keeps to its instance and goes to another when that is gone, waits as
 * long as `Retry-After` says, and sends a write again until it is acknowledged. So in the end every write that was ever
 * begun is acknowledged, and the history must consist of exactly these.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { edited, newItem, writeBody, type TestDevice, type TestItem } from './devices.js';
import { until } from './events.js';
import { nextWrite, type Acked } from './stream.js';
import type { Reply, Wire } from './wire.js';

type Kind = 'write' | 'read';

/** How a request ended. */
export interface Ending {
  /** '200', '503 unavailable', or 'cut' where the connection broke. */
  readonly outcome: string;
  readonly kind: Kind;
  readonly begun: number;
  readonly ms: number;
}

interface LoadOptions {
  /** Of the instances, the writer's own first. */
  readonly wires: readonly Wire[];
  readonly device: TestDevice;
  /** Ids of all devices of the tenant. */
  readonly sealFor: readonly string[];
  /** New items only, so that every version stays a row. */
  readonly insertsOnly: boolean;
  /** Between two requests of one worker, ms. */
  readonly paceMs: number;
}

interface Request {
  readonly kind: Kind;
  readonly ask: (wire: Wire) => Promise<Reply>;
}

/** After a connection broke, before the other instance is asked, ms. */
const NEXT_MS = 50;
/** The wire itself gives up after half as long. */
const ANSWER_MAX_MS = 120_000;

export class Load {
  readonly acked: Acked[] = [];
  readonly endings: Ending[] = [];
  /** Answers that no such request should get. */
  readonly wrong: string[] = [];
  private readonly workers: Promise<void>[] = [];
  private readonly at: number[] = [];
  private stopped = false;
  private gate: Promise<void> | undefined;
  private open: (() => void) | undefined;

  /** A writer that works until `finish`. */
  write(options: LoadOptions): void {
    this.workers.push(this.writer(options, this.workers.length));
  }

  /** A reader of `GET /items`, `/me`, `/bins` in turn. */
  read(options: LoadOptions): void {
    this.workers.push(this.reader(options, this.workers.length));
  }

  /** From now on nobody begins a request; resolves when none is under way. */
  async pause(): Promise<void> {
    this.gate ??= new Promise((resolve) => (this.open = resolve));
    await until('the last answer', () => this.underWay === 0, ANSWER_MAX_MS);
  }

  resume(): void {
    this.open?.();
    this.gate = undefined;
  }

  /** Resolves when every write that was begun is acknowledged. */
  async finish(): Promise<void> {
    this.stopped = true;
    this.resume();
    await Promise.all(this.workers);
  }

  /** Requests that wait for their answer. */
  underWay = 0;

  private async writer(options: LoadOptions, worker: number): Promise<void> {
    let last: TestItem | undefined;
    for (let turn = 1; !this.stopped; turn++) {
      const { item, remove } = nextWrite(turn, options.insertsOnly ? undefined : last, {
        fresh: () => newItem(options.sealFor),
        changed: edited,
      });
      const how = { token: options.device.token, shape: 'a' } as const;
      const ask = async (wire: Wire): Promise<Reply> =>
        remove ? wire.delete(`/items/${item.id}`, how) : wire.post('/items', writeBody('a', item), how);
      const reply = await this.untilAnswered(options, worker, { kind: 'write', ask });
      const kind = remove ? 'delete' : 'item';
      this.acked.push({ kind, id: item.id, version: reply.number('version'), device: options.device.id });
      last = remove ? undefined : item;
      if (options.paceMs > 0) await sleep(options.paceMs);
    }
  }

  private async reader(options: LoadOptions, worker: number): Promise<void> {
    const paths = ['/items?since=0&limit=50', '/me', '/bins'];
    for (let turn = 0; !this.stopped; turn++) {
      const path = paths[turn % paths.length] ?? '/me';
      const ask = async (wire: Wire): Promise<Reply> => wire.get(path, { token: options.device.token, shape: 'a' });
      await this.untilAnswered(options, worker, { kind: 'read', ask });
      await sleep(Math.max(20, options.paceMs));
    }
  }

  /** Asks until the answer is 200. */
  private async untilAnswered({ wires }: LoadOptions, worker: number, request: Request): Promise<Reply> {
    for (;;) {
      await this.gate;
      const at = this.at[worker] ?? 0;
      const wire = wires[at % wires.length];
      if (wire === undefined) throw new Error('no wire');
      const reply = await this.once(wire, request);
      if (reply?.status === 200) return reply;
      if (reply === undefined) {
        this.at[worker] = at + 1;
        await sleep(NEXT_MS);
      } else if (reply.status === 503) {
        const after = Number(reply.headers['retry-after']);
        if (!(after >= 1)) this.wrong.push(`503 without Retry-After: ${reply.raw}`);
        await sleep(after * 1_000);
      } else {
        this.wrong.push(`${reply.status} ${reply.raw}`);
        if (this.wrong.length > 100) throw new Error(`wrong answers again and again: ${reply.raw}`);
        await sleep(NEXT_MS);
      }
    }
  }

  private async once(wire: Wire, { kind, ask }: Request): Promise<Reply | undefined> {
    const begun = Date.now();
    this.underWay++;
    let outcome = 'cut';
    try {
      const reply = await ask(wire);
      outcome = reply.outcome;
      return reply;
    } catch (error) {
      if (String(error).includes('no answer to')) this.wrong.push(String(error));
      return undefined;
    } finally {
      this.underWay--;
      this.endings.push({ outcome, kind, begun, ms: Date.now() - begun });
    }
  }
}
