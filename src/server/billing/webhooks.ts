/** Applies the payment provider's events, and ends graces and suspensions in time. */
import type { Clock } from '../../protocol/clock.js';
import type { Received } from '../../protocol/replies.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import { factOf } from './rules.js';
import type { BillingStore } from './store.js';
import type { StripePayments } from './stripe.js';

/** A grace or suspension ends at most this late. Every instance sweeps; the first one to do so makes the change. */
export const SWEEP_MS = 30_000;
/** Tenants of one statement; a full one is followed by the next at once. */
const SWEEP_BATCH = 200;

interface WebhooksOptions extends Pick<ChangeNotifier, 'changed'> {
  readonly store: BillingStore;
  readonly payments: StripePayments;
  readonly clock: Clock;
  readonly graceMs: number;
  /** Called for a failed sweep or notification; the next sweep or comparison of heads repeats it. */
  readonly onFault: (error: unknown, tenantId?: string) => void;
  /** Called with id and type of an event that concerns no tenant here, for the operator. */
  readonly onUnknown: (event: object) => void;
}

/** The events of all tenants' subscriptions. */
export class Webhooks {
  private closed = false;

  constructor(private readonly options: WebhooksOptions) {}

  /** A sweep that is under way ends after its batch; the stop of its repetition waits for it. */
  close(): Promise<void> {
    this.closed = true;
    return Promise.resolve();
  }

  /**
   * Takes one webhook: its unparsed body, and its `Stripe-Signature`. Resolves once the event is durable, or does not
   * concern this service: only then may it be acknowledged, or the provider would not send it again. Throws
   * `webhook_invalid`, `unavailable`.
   */
  async take(body: Uint8Array, signature: string): Promise<Received> {
    const { store, payments, clock, graceMs, onUnknown } = this.options;
    const now = clock.now();
    const event = payments.event(body, signature, now);
    const fact = factOf(event);
    if (fact === undefined) return { received: true };
    const { verdict, tenantId } = await store.apply(fact, graceMs, now);
    if (verdict === 'unknown') onUnknown({ eventId: fact.eventId, type: event.type });
    if (verdict === 'changed' && tenantId !== null) await notifyChange(this.options, tenantId);
    return { received: true };
  }

  /** Ends graces and suspensions that are over. Does not reject. */
  async sweep(): Promise<void> {
    const { store, clock, graceMs, onFault } = this.options;
    try {
      for (let full = true; full && !this.closed;) {
        const changed = await store.sweep(graceMs, SWEEP_BATCH, clock.now());
        for (const tenantId of changed) await notifyChange(this.options, tenantId);
        full = changed.length === SWEEP_BATCH;
      }
    } catch (error) {
      onFault(error);
    }
  }
}
