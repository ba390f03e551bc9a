/** Takes the payment provider's events in, and ends graces and suspensions in time. */
import type { Clock, Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { BillingStore, Payments } from './ports.js';
import { factOf, nameOf } from './rules.js';

/** So late at most does a grace or suspension end. Every instance looks; whoever comes first does it. */
const SWEEP_MS = 30_000;
/** Tenants of one statement; the next one follows at once. */
const SWEEP_BATCH = 200;

/** What webhooks are made of. */
export interface WebhooksOptions extends Pick<ChangeNotifier, 'changed'> {
  readonly store: Pick<BillingStore, 'apply' | 'sweep'>;
  readonly payments: Pick<Payments, 'event'>;
  readonly clock: Clock;
  readonly graceMs: number;
  /** Told of what was lost by time only: the next look makes up for it. */
  readonly onFault: (error: unknown, tenantId?: string) => void;
  /** An event that concerns nobody here, for the operator. Called with its id and type only. */
  readonly onUnknown: (event: object) => void;
}

/** See above. */
export class Webhooks {
  private timer: Timer | undefined;
  private readonly sweeping = new SingleFlight(() => this.sweep());
  private closed = false;

  constructor(private readonly options: WebhooksOptions) {}

  /** Begins to look for graces and suspensions that are over. */
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
   * One webhook: its body as it came, and its `Stripe-Signature`. Resolves once what it says is durable, or is none of
   * ours: only then may the provider be told that it need not send it again. Throws `webhook_invalid`, `unavailable`.
   */
  async take(body: Uint8Array, signature: string): Promise<{ received: true }> {
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
