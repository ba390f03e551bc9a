/**
 * Notices for the user, until dismissed. A refused change is kept with its content, encrypted, because the outbox has
 * dropped it, and closing the tab must not lose what the user wrote.
 */
import type { Clock } from '../../protocol/clock.js';
import { ulid } from '../../sdk/ulid.js';
import { failureOf, type Notice, type PutParams, type ResendHow } from '../link/messages.js';
import { Cell } from './cell.js';
import type { KeyValue } from './key-value.js';
import type { Sealed, Vault } from './vault.js';

/** Notices without content; the oldest are dropped. */
const NOTICES_MAX = 100;
const PREFIX = 'refused:';

/** A refused change as stored. */
interface Kept {
  readonly notice: Notice;
  readonly item: PutParams;
}

/** The id of the copy that a refused change becomes: the same each time, so that a repeat makes no second one. */
const copyIdOf = ({ id, at }: Notice): string =>
  ulid(at, () => Uint8Array.from(id.replaceAll('-', '').match(/../g) ?? [], (byte) => parseInt(byte, 16)));

/** The notices of an open device. */
export class Notices {
  readonly list = new Cell<readonly Notice[]>([]);
  /** By the notice's id. */
  private readonly refusals = new Map<string, Kept>();
  /** Notices whose change is being written: a second click must not make a second copy. */
  private readonly resending = new Set<string>();

  constructor(
    private readonly ports: {
      readonly records: Pick<KeyValue, 'all' | 'remove'>;
      readonly vault: Pick<Vault, 'keep' | 'unsealed'>;
      readonly clock: Clock;
      /** Writes a refused change again, as a copy under the copy's id. */
      readonly write: (item: PutParams, how: ResendHow) => Promise<unknown>;
    },
  ) {}

  /** Loads the refused changes of earlier runs. */
  async load(): Promise<void> {
    const { records, vault } = this.ports;
    const found: Notice[] = [];
    for (const [, value] of await records.all(PREFIX)) {
      try {
        const kept = (await vault.unsealed(value as Sealed)) as Kept;
        this.refusals.set(kept.notice.id, kept);
        found.push(kept.notice);
      } catch (error) {
        // The record stays: a damaged one must not prevent the others from loading or the device from opening.
        this.add('problem', error);
      }
    }
    for (const notice of found.sort((one, other) => one.at - other.at)) this.show(notice);
  }

  /** Adds a notice; it replaces one of the same kind and code that has no content. */
  add(kind: Notice['kind'], error?: unknown): void {
    const notice = this.made(kind, { title: '', error });
    const isSame = (known: Notice): boolean =>
      known.kind === kind && !known.canResend && known.problem?.code === notice.problem?.code;
    const others = this.list.value.filter((known) => !isSame(known));
    const oldest = others.filter(({ canResend }) => !canResend).slice(NOTICES_MAX - 1);
    this.list.set([notice, ...others.filter((known) => !oldest.includes(known))]);
  }

  /** Shows a refused change, and keeps its content until it is written again or dismissed. */
  async refused(
    item: PutParams,
    { title, error, isNew }: { readonly title: string; readonly error: Error; readonly isNew: boolean },
  ): Promise<void> {
    const notice = { ...this.made('rejected', { title, error }), canResend: true, isNew };
    const kept: Kept = { notice, item };
    this.refusals.set(notice.id, kept);
    this.show(notice);
    // Not where it is dismissed meanwhile.
    await this.ports.vault.keep(PREFIX + notice.id, kept, () => this.refusals.has(notice.id));
  }

  async dismiss(id: string): Promise<void> {
    this.list.set(this.list.value.filter((notice) => notice.id !== id));
    if (this.refusals.delete(id)) await this.ports.records.remove(PREFIX + id);
  }

  /** Writes the refused change of a notice again. The notice stays if that is refused too. */
  async resend(id: string, how: ResendHow): Promise<void> {
    const kept = this.refusals.get(id);
    if (kept === undefined || this.resending.has(id)) return;
    this.resending.add(id);
    try {
      await this.ports.write(how === 'copy' ? { ...kept.item, id: copyIdOf(kept.notice) } : kept.item, how);
      await this.dismiss(id);
    } finally {
      this.resending.delete(id);
    }
  }

  private made(kind: Notice['kind'], { title, error }: { readonly title: string; readonly error: unknown }): Notice {
    const problem = error === undefined ? null : failureOf(error);
    const at = this.ports.clock.now();
    return { id: crypto.randomUUID(), kind, title, problem, at, canResend: false, isNew: false };
  }

  private show(notice: Notice): void {
    this.list.set([notice, ...this.list.value]);
  }
}
