/**
 * From an event of the payment provider to the fact it tells. Pure. Fields are read where the
 * provider's API has them today and where older versions had them: the version of events is set at the provider, not
 * here.
 */
import { ServiceError } from '../../protocol/errors.js';
import type { Fact, FactKind } from './ports.js';

/** The name under which the tenant's id travels in a subscription's metadata. */
export const TENANT_KEY = 'tenant_id';
/** Ids of the provider are far shorter; nothing longer goes into the database. */
const ID_MAX = 255;
/** Visible ASCII: the database takes no NUL, and the provider has no other ids. */
const ID = /^[!-~]*$/;

type Fields = Readonly<Record<string, unknown>>;

const NONE: Fields = {};

const fieldsOf = (value: unknown): Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : NONE;

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

/** An id, or the id of the object that stands in its place. Throws `webhook_invalid` for what no id can be. */
function idOf(value: unknown): string | null {
  const id = typeof value === 'string' ? value : fieldsOf(value)['id'];
  if (typeof id === 'string' && !ID.test(id)) throw new ServiceError('webhook_invalid');
  return typeof id === 'string' && id !== '' && id.length <= ID_MAX ? id : null;
}

/** Seconds, as the provider counts, in milliseconds. */
function timeOf(value: unknown): number | null {
  return typeof value === 'number' && Number.isSafeInteger(value * 1_000) && value > 0 ? value * 1_000 : null;
}

const KIND_OF_STATUS: Readonly<Record<string, FactKind>> = {
  active: 'good',
  trialing: 'good',
  past_due: 'failed',
  unpaid: 'failed',
  paused: 'failed',
  canceled: 'ended',
  incomplete_expired: 'ended',
};

/** What the event says of whom; null where it says nothing that concerns us. */
interface Said {
  readonly kind: FactKind;
  readonly subscription: unknown;
  readonly tenant: unknown;
  readonly paidUntil?: number | null;
}

function saidByCheckout(object: Fields): Said | null {
  // One that takes a single payment is another product of the same merchant.
  if (object['mode'] !== undefined && object['mode'] !== 'subscription') return null;
  // `unpaid`: the bank takes days; `invoice.paid` will tell.
  const kind = object['payment_status'] === 'unpaid' ? 'seen' : 'good';
  const tenant = object['client_reference_id'] ?? fieldsOf(object['metadata'])[TENANT_KEY];
  return { kind, subscription: object['subscription'], tenant };
}

function saidBySubscription(object: Fields, over: boolean): Said {
  const status = object['status'];
  const kind = over ? 'ended' : ((typeof status === 'string' ? KIND_OF_STATUS[status] : undefined) ?? 'seen');
  return { kind, subscription: object['id'], tenant: fieldsOf(object['metadata'])[TENANT_KEY] };
}

function saidByInvoice(object: Fields, kind: FactKind): Said {
  const parent = fieldsOf(fieldsOf(object['parent'])['subscription_details']);
  const older = fieldsOf(object['subscription_details']);
  const ends = listOf(fieldsOf(object['lines'])['data']).map(
    (line) => timeOf(fieldsOf(fieldsOf(line)['period'])['end']) ?? 0,
  );
  const paidUntil = Math.max(0, ...ends);
  return {
    kind,
    subscription: parent['subscription'] ?? object['subscription'],
    tenant: fieldsOf(parent['metadata'])[TENANT_KEY] ?? fieldsOf(older['metadata'])[TENANT_KEY],
    paidUntil: kind === 'good' && paidUntil > 0 ? paidUntil : null,
  };
}

function saidBy(type: unknown, object: Fields): Said | null {
  switch (type) {
    case 'checkout.session.completed':
      return saidByCheckout(object);
    case 'customer.subscription.created':
    case 'customer.subscription.updated':
      return saidBySubscription(object, false);
    case 'customer.subscription.deleted':
      return saidBySubscription(object, true);
    case 'invoice.paid':
      return saidByInvoice(object, 'good');
    case 'invoice.payment_failed':
      return saidByInvoice(object, 'failed');
    default:
      return null;
  }
}

/**
 * The fact that an event tells; undefined for one that tells us nothing: of another kind, of a payment that is no
 * subscription's, or without the ids that say whose it is. Throws `webhook_invalid` for an id that none can be.
 */
export function factOf(event: unknown): Fact | undefined {
  const { id, type, created, data } = fieldsOf(event);
  const object = fieldsOf(fieldsOf(data)['object']);
  const said = saidBy(type, object);
  if (said === null) return undefined;
  const eventId = idOf(id);
  const at = timeOf(created);
  const customerId = idOf(object['customer']);
  const subscriptionId = idOf(said.subscription);
  if (eventId === null || at === null || customerId === null || subscriptionId === null) return undefined;
  const { kind, paidUntil = null } = said;
  return { eventId, tenantId: idOf(said.tenant), customerId, subscriptionId, kind, at, paidUntil };
}

/** Id and type of an event, for the log. */
export function nameOf(event: unknown): { readonly eventId: string | null; readonly type: string | null } {
  const { id, type } = fieldsOf(event);
  return { eventId: idOf(id), type: typeof type === 'string' ? type.slice(0, ID_MAX) : null };
}
