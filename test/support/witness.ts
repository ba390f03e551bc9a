/**
 * A socket's other end, which holds everything it is sent against the log's history.
 * A violation throws at once, so that the step that caused it is on the stack.
 */
import { frameText } from './item-text.js';
import type { Shape } from '../../src/protocol/shape.js';
import type { FrameBytes, SocketPort } from '../../src/server/tenant/ports.js';
import type { HistoryEntry } from './memory-log.js';

/** What a witness compares with. */
interface Truth {
  /** Every version ever made, in order from 1. */
  readonly history: readonly HistoryEntry[];
  readonly epoch: string;
}

export interface HelloFrame {
  readonly since: number;
  readonly epoch: string | null;
  readonly acks: boolean;
}

type Stage = 'silent' | 'greeting' | 'live';
type Parsed = Readonly<Record<string, unknown>> & { readonly type: string };

/** Bytes that a stalled socket says wait in its buffer: above any high-water mark. */
const FULL = 1_000_000;

export class Witness implements SocketPort {
  /** Frames that carry no version, since the last hello. */
  readonly plain: Parsed[] = [];
  readonly closing = false;
  /** Code of the close that the server asked for. */
  closedWith: number | null = null;
  /** Takes nothing from the network: what is sent stays in the buffer. */
  stalled = false;
  /** Characters that were sent while it was stalled. */
  unsent = 0;
  /** Every version that came, oldest first, over all hellos. */
  readonly versions: number[] = [];
  caughtUp = 0;

  private stage: Stage = 'silent';
  private since = 0;
  private position = 0;
  private headAtHello = 0;
  private reset: 'never' | 'maybe' | 'owed' = 'never';
  private acks = false;
  private readonly received = new Set<number>();

  constructor(
    readonly deviceId: string,
    readonly shape: Shape,
    readonly tokenEpoch: number,
    private readonly truth: Truth,
  ) {}

  get live(): boolean {
    return this.stage === 'live';
  }

  /** The last version that came, or that may be missing: what a client sends as `since`. */
  get cursor(): number {
    return this.position;
  }

  /** Called before a `hello` goes out. */
  expectHello({ since, epoch, acks }: HelloFrame): void {
    this.stage = 'greeting';
    this.headAtHello = this.truth.history.length;
    const otherHistory = epoch !== null && epoch !== this.truth.epoch;
    // Beyond the head: unless the history has come as far when the head is read.
    this.reset = otherHistory ? 'owed' : since > this.headAtHello ? 'maybe' : 'never';
    this.startAt(since);
    this.acks = acks;
    this.plain.length = 0;
  }

  private startAt(since: number): void {
    this.since = since;
    this.position = since;
    this.received.clear();
  }

  send(sent: readonly FrameBytes[]): number {
    const frames = sent.map((frame) => (typeof frame === 'string' ? frame : Buffer.from(frame).toString('latin1')));
    if (this.closedWith !== null) throw new Error(`sent to a socket closed with ${this.closedWith}: ${frames.join()}`);
    for (const text of frames) {
      if (this.stalled) this.unsent += text.length;
      this.take(text);
    }
    return this.stalled && this.unsent > 0 ? FULL : 0;
  }

  close(code: number): void {
    this.closedWith ??= code;
  }

  private take(text: string): void {
    const frame = JSON.parse(text) as Parsed;
    if (this.stage === 'silent') throw new Error(`a frame before hello: ${text}`);
    switch (frame.type) {
      case 'item':
      case 'delete':
        return this.takeChange(versionOf(frame), text);
      case 'ack':
        return this.takeAck(frame);
      case 'caught_up':
        return this.takeCaughtUp(frame);
      case 'reset':
        if (this.reset === 'never') throw new Error('a reset that nothing called for');
        this.reset = 'never';
        return this.startAt(0);
      default:
        this.plain.push(frame);
    }
  }

  private entry(version: number): HistoryEntry {
    const entry = this.truth.history[version - 1];
    if (entry === undefined) throw new Error(`version ${version} does not exist`);
    return entry;
  }

  /** No version between the last one and this may be missing without a reason. */
  private moveTo(version: number): void {
    if (this.reset === 'owed') throw new Error(`version ${version} before the reset`);
    if (version <= this.position) throw new Error(`version ${version} after ${this.position}`);
    for (let missed = this.position + 1; missed < version; missed++) {
      if (!this.mayMiss(missed)) throw new Error(`version ${missed} is missing before ${version}`);
    }
    this.position = version;
    this.received.add(version);
    this.versions.push(version);
  }

  private mayMiss(version: number): boolean {
    const { row } = this.entry(version);
    if (this.stage === 'live' && !this.acks && row.changedBy === this.deviceId) return true;
    return this.truth.history.slice(version).some((later) => later.row.item.id === row.item.id);
  }

  private takeChange(version: number, text: string): void {
    const { row } = this.entry(version);
    const right = frameText(this.shape, row.item);
    if (text !== right) throw new Error(`version ${version} came as ${text} and is ${right}`);
    if (this.stage === 'live' && row.changedBy === this.deviceId) throw new Error(`own version ${version} was pushed`);
    this.moveTo(version);
  }

  private takeAck(frame: Parsed): void {
    const version = Number(frame['version']);
    const { row } = this.entry(version);
    if (!this.acks || this.stage !== 'live') throw new Error(`ack ${version} that nobody asked for`);
    if (row.changedBy !== this.deviceId) throw new Error(`ack ${version} of another's change`);
    if (row.item.id !== frame['id']) throw new Error(`ack ${version} names ${String(frame['id'])}`);
    this.moveTo(version);
  }

  private takeCaughtUp(frame: Parsed): void {
    if (this.stage !== 'greeting') throw new Error('a second caught_up for one hello');
    if (this.reset === 'owed') throw new Error('caught_up without the reset');
    const version = Number(frame['version']);
    if (version < this.headAtHello)
      throw new Error(`caught_up ${version} below ${this.headAtHello}, the head at hello`);
    if (version < this.position) throw new Error(`caught_up ${version} after version ${this.position}`);
    this.checkSums(frame, version);
    for (const [id, latest] of latestAt(this.truth.history, version)) {
      if (latest > this.since && !this.received.has(latest))
        throw new Error(`caught_up ${version} without ${id} ${latest}`);
    }
    this.stage = 'live';
    this.position = version;
    this.caughtUp = version;
  }

  private checkSums(frame: Parsed, version: number): void {
    const sums = version === 0 ? { itemCount: 0, versionSum: 0 } : this.entry(version).summary;
    const itemCount = frame[this.shape === 'a' ? 'itemCount' : 'item_count'];
    const versionSum = frame[this.shape === 'a' ? 'versionSum' : 'version_sum'];
    if (itemCount !== sums.itemCount || versionSum !== sums.versionSum || frame['epoch'] !== this.truth.epoch) {
      throw new Error(`caught_up ${JSON.stringify(frame)}, but the sums are ${JSON.stringify(sums)}`);
    }
  }

  /** Once nothing is under way any more: this socket has everything up to the head. */
  checkSettled(): void {
    if (this.stage === 'silent' || this.closedWith !== null) return;
    if (this.stage !== 'live') throw new Error('caught_up never came');
    const head = this.truth.history.length;
    for (let version = this.position + 1; version <= head; version++) {
      if (!this.mayMiss(version)) throw new Error(`version ${version} never came`);
    }
    for (const [id, latest] of latestAt(this.truth.history, head)) {
      if (latest <= this.since || this.received.has(latest)) continue;
      const own = this.entry(latest).row.changedBy === this.deviceId && latest > this.caughtUp && !this.acks;
      if (!own) throw new Error(`the latest state of ${id}, version ${latest}, never came`);
    }
  }
}

function versionOf(frame: Parsed): number {
  const item = frame['item'] as { version: number } | undefined;
  return item?.version ?? Number(frame['version']);
}

function latestAt(history: readonly HistoryEntry[], version: number): Map<string, number> {
  return new Map(history.slice(0, version).map((entry) => [entry.row.item.id, entry.version]));
}
