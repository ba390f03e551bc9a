/**
 * Deletions that can still be undone: they are carried out after a delay. They are stored, so that the next start
 * carries them out if the tab is closed meanwhile.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import { ClientError } from '../../sdk/errors.js';
import type { KeyValue } from './key-value.js';

/** How long a deletion can be undone, ms. */
export const UNDO_MS = 8_000;
/** Maximum of pending deletions; further ones are carried out immediately. */
const PENDING_MAX = 10_000;
const PREFIX = 'removal:';

/** The pending deletions of an open device. */
export class Removals {
  private readonly pending = new Map<string, { readonly at: number; readonly timer: Timer }>();
  private closed = false;

  /** `remove` deletes an item, resolves when that is stored, and reports failures; `changed`: `at` has other results. */
  constructor(
    private readonly records: Pick<KeyValue, 'all' | 'put' | 'remove'>,
    private readonly clock: Clock,
    private readonly ports: { readonly remove: (id: string) => Promise<void>; readonly changed: () => void },
  ) {}

  /** Resumes the deletions that an earlier run left. */
  async load(): Promise<void> {
    for (const [key, at] of await this.records.all(PREFIX))
      this.schedule(key.slice(PREFIX.length), typeof at === 'number' ? at : 0);
    this.ports.changed();
  }

  /** When the item will be deleted; null: no deletion is pending. */
  at(id: string): number | null {
    return this.pending.get(id)?.at ?? null;
  }

  /** Schedules a deletion, unless one is pending. Throws `ClientError` `closed` once it is closed. */
  async add(id: string): Promise<void> {
    if (this.pending.has(id)) return;
    // Perhaps to be forgotten: what is stored now would stay.
    if (this.closed) throw new ClientError('closed', 'the device was closed');
    if (this.pending.size >= PENDING_MAX) await this.ports.remove(id);
    else {
      const at = this.clock.now() + UNDO_MS;
      await this.records.put(PREFIX + id, at);
      // Else the next start carries it out.
      if (!this.closed) this.schedule(id, at);
    }
    this.ports.changed();
  }

  /** Cancels a pending deletion. Where its record cannot be removed this rejects, and the deletion stays pending. */
  async cancel(id: string): Promise<void> {
    const at = this.at(id);
    try {
      await this.forget(id);
    } catch (error) {
      if (at !== null && !this.closed) this.schedule(id, at);
      throw error;
    } finally {
      this.ports.changed();
    }
  }

  /** Stops the timers; pending deletions stay stored for the next start. */
  close(): void {
    this.closed = true;
    for (const { timer } of this.pending.values()) timer.cancel();
    this.pending.clear();
  }

  private schedule(id: string, at: number): void {
    // A clock that was set back must not delay the deletion.
    const wait = Math.min(UNDO_MS, Math.max(0, at - this.clock.now()));
    const timer = this.clock.setTimer(wait, () => {
      // Forgotten only once the deletion is stored: if the tab is closed before, the next start carries it out.
      const removed = this.ports.remove(id).then(() => this.forget(id));
      removed.then(this.ports.changed, this.ports.changed);
    });
    // Two tabs, or a key that is held, may request the same deletion while neither is stored yet.
    this.pending.get(id)?.timer.cancel();
    this.pending.set(id, { at, timer });
  }

  private async forget(id: string): Promise<void> {
    const known = this.pending.get(id);
    if (known === undefined) return;
    known.timer.cancel();
    this.pending.delete(id);
    await this.records.remove(PREFIX + id);
  }
}
