/** What waits to be notified, by channel, coalesced and in as few notifications as it fits into. */
import type { NoticeMac } from './notice-mac.js';
import { payloadsOf, type Hint, type Notice, type TenantNotice } from './notice.js';
import type { NotificationPart } from './notification.js';

/** Carried changes, characters; beyond it hints are sent. */
const CARRIED_MAX = 4 * 1024 * 1024;
/** Hints; beyond it further tenants are left to the comparison of heads. */
const HINTS_MAX = 50_000;

interface Waiting {
  readonly notices: string[];
  /** Changes with their rows, as JSON. */
  readonly carried: string[];
  readonly hints: Map<string, readonly [head: number, generation: number]>;
}

export class NoticeQueue {
  private channels = new Map<string, Waiting>();
  private carriedChars = 0;
  private hints = 0;

  /** `onTenants` is told of so many changes and hints as they are taken. */
  constructor(
    private readonly instanceId: string,
    private readonly mac: NoticeMac,
    private readonly onTenants: (count: number) => void,
  ) {}

  /** Notices come before all that is queued for the channel. */
  notice(channel: string, fields: Omit<Notice, 'from' | 'changes'>): void {
    this.of(channel).notices.push(JSON.stringify({ from: this.instanceId, ...fields } satisfies Notice));
  }

  /** A tenant's head and generation; the highest of each are kept. False where there are too many. */
  hint(channel: string, [tenantId, head, generation]: Hint): boolean {
    const { hints } = this.of(channel);
    const before = hints.get(tenantId);
    if (before === undefined && ++this.hints > HINTS_MAX) {
      this.hints--;
      return false;
    }
    hints.set(tenantId, [Math.max(head, before?.[0] ?? 0), Math.max(generation, before?.[1] ?? 0)]);
    return true;
  }

  /** A change with its rows. False where there are too many. */
  carry(channel: string, tenantId: string, generation: number, pieces: readonly NotificationPart[]): boolean {
    if (this.carriedChars >= CARRIED_MAX) return false;
    const { carried } = this.of(channel);
    for (const { head, text } of pieces) {
      const notice = JSON.stringify([tenantId, head, generation, text] satisfies TenantNotice);
      carried.push(notice);
      this.carriedChars += notice.length;
    }
    return true;
  }

  private of(channel: string): Waiting {
    let waiting = this.channels.get(channel);
    if (waiting === undefined) {
      waiting = { notices: [], carried: [], hints: new Map() };
      this.channels.set(channel, waiting);
    }
    return waiting;
  }

  /** Empties the queue: lines of a channel and a payload. Changes come before the hints, which are then no news. */
  take(): string[] {
    const lines: string[] = [];
    for (const [channel, { notices, carried, hints }] of this.channels) {
      const told = [...hints].map(([tenantId, hint]) => JSON.stringify([tenantId, ...hint] satisfies Hint));
      this.onTenants(carried.length + told.length);
      const payloads = [...notices, ...payloadsOf(this.instanceId, [...carried, ...told])];
      lines.push(...payloads.map((payload) => `${channel}\t${this.mac.signed(channel, payload)}`));
    }
    this.channels = new Map();
    this.carriedChars = 0;
    this.hints = 0;
    return lines;
  }
}
