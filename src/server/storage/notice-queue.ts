/** Notifications to be sent, by channel, coalesced into as few as possible. */
import type { Position } from '../tenant/change.js';
import type { ItemRow } from '../tenant/codec.js';
import { hintPayloads, MAC_BYTES, type Hint, type Notice, type NoticeMac } from './notice.js';
import { NOTIFICATION_BYTES, ChangesWriter, type Publisher } from './notification.js';

/** Queued changes, bytes; beyond this, hints are sent. */
const QUEUED_BYTES_MAX = 4 * 1024 * 1024;
/** Queued hints; beyond this, further tenants are left to the comparison of heads. */
const HINTS_MAX = 50_000;
/** Buffers for changes, of `NOTIFICATION_BYTES` each, that are kept while nothing is queued. */
const SPARES_MAX = 64;

/** Changes for a channel; `bytes` is the memory they are written into. */
interface Carried {
  readonly writer: ChangesWriter;
  readonly bytes: Buffer;
  readonly payloads: string[];
}

interface Waiting {
  readonly notices: string[];
  carried: Carried | undefined;
  /** Highest head and generation by tenant. */
  readonly hints: Map<string, readonly [head: number, generation: number]>;
}

export class NoticeQueue {
  private channels = new Map<string, Waiting>();
  private carriedBytes = 0;
  private hints = 0;
  /** Reused between flushes: allocating external memory for each would trigger garbage collections. */
  private readonly spares: Buffer[] = [];

  constructor(
    private readonly publisher: Publisher,
    private readonly mac: NoticeMac,
    /** Called with the number of tenants in each sending. */
    private readonly onTenants: (count: number) => void,
  ) {}

  /** Queues a notice in this instance's name. */
  notice(channel: string, notice: Omit<Notice, 'from'>): void {
    this.of(channel).notices.push(JSON.stringify({ from: this.publisher.instanceId, ...notice } satisfies Notice));
  }

  /** False if too many are queued: then this hint is dropped. */
  hint(channel: string, [tenantId, head, generation]: Hint): boolean {
    const { hints } = this.of(channel);
    const known = hints.get(tenantId);
    if (known === undefined && this.hints >= HINTS_MAX) return false;
    if (known === undefined) this.hints++;
    hints.set(tenantId, [Math.max(head, known?.[0] ?? 0), Math.max(generation, known?.[1] ?? 0)]);
    return true;
  }

  /** False if the rows do not fit, or too many are queued: then the tenant's head must be sent instead. */
  carry(channel: string, tenantId: string, rows: readonly ItemRow[], { summary, generation }: Position): boolean {
    if (this.carriedBytes >= QUEUED_BYTES_MAX) return false;
    const { writer } = (this.of(channel).carried ??= this.newCarried(channel));
    const before = writer.bytesWritten;
    const fits = writer.add(tenantId, generation, rows, summary);
    this.carriedBytes += writer.bytesWritten - before;
    return fits;
  }

  private newCarried(channel: string): Carried {
    const bytes = this.spares.pop() ?? Buffer.allocUnsafeSlow(NOTIFICATION_BYTES);
    const block = bytes.subarray(MAC_BYTES);
    const payloads: string[] = [];
    const writer = new ChangesWriter(this.publisher, block, (end) => {
      this.mac.signBytes(channel, bytes, MAC_BYTES + end);
      payloads.push(bytes.toString('base64', 0, MAC_BYTES + end));
      return block;
    });
    return { writer, bytes, payloads };
  }

  private of(channel: string): Waiting {
    const known = this.channels.get(channel);
    if (known !== undefined) return known;
    const waiting: Waiting = { notices: [], carried: undefined, hints: new Map() };
    this.channels.set(channel, waiting);
    return waiting;
  }

  /**
   * Empties the queue: channels and payloads of the notifications, in order. Changes precede hints, so that a hint of the
   * same head does not lead to a read.
   */
  take(): { readonly channels: readonly string[]; readonly payloads: readonly string[] } {
    const taken = { channels: [] as string[], payloads: [] as string[] };
    for (const [channel, { notices, carried, hints }] of this.channels) {
      const queued = [...hints].map(([tenantId, hint]): Hint => [tenantId, ...hint]);
      carried?.writer.seal();
      this.onTenants((carried?.writer.changeCount ?? 0) + queued.length);
      const signed = (notice: string): string => this.mac.sign(channel, notice);
      const payloads = [
        ...notices.map(signed),
        ...(carried?.payloads ?? []),
        ...hintPayloads(this.publisher.instanceId, queued).map(signed),
      ];
      for (const payload of payloads) {
        taken.channels.push(channel);
        taken.payloads.push(payload);
      }
      if (carried !== undefined && this.spares.length < SPARES_MAX) this.spares.push(carried.bytes);
    }
    this.channels = new Map();
    this.carriedBytes = 0;
    this.hints = 0;
    return taken;
  }
}
