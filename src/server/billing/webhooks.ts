/** Applies the payment provider's events, and ends graces and suspensions in time. */
import type { Clock, Timer } from '../../protocol/clock.js';
import type { Received } from '../../protocol/replies.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import { factOf, nameOf } from './rules.js';
import type { BillingStore } from './store.js';
import type { StripePayments } from './stripe.js';

/** A grace or suspension ends at most this late. Every instance sweeps; the first one to do so makes the change. */
const SWEEP_MS = 30_000;
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
  private timer: Timer | undefined;
  private readonly sweeping = new SingleFlight(() => this.sweep());
  private closed = false;

  constructor(private readonly options: WebhooksOptions) {}

  /** Starts the sweeps for graces and suspensions that are over. */
  start(): void {
    this.timer = this.options.clock.setTimer(SWEEP_MS, () => {
      this.start();
      this.sweeping.join().catch((error: unknown) => this.options.onFault(error));
    });
  }

  /** Resolves when a sweep that was under way is over. */
  async close(): Promise<void> {
    this.closed = true;
    this.timer?.cancel();
    await this.sweeping.idle();
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
    if (verdict === 'unknown') onUnknown(nameOf(event));
    if (verdict === 'changed' && tenantId !== null) await notifyChange(this.options, tenantId);
    return { received: true };
  }

  private async sweep(): Promise<void> {
    const { store, clock, graceMs } = this.options;
    for (let full = true; full && !this.closed;) {
      const changed = await store.sweep(graceMs, SWEEP_BATCH, clock.now());
      for (const tenantId of changed) await notifyChange(this.options, tenantId);
      full = changed.length === SWEEP_BATCH;
    }
  }
}
