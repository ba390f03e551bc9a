/**
 * Reads what an event of the payment provider reports on a subscription. Pure. Fields are read where the provider's API
 * has them today and where older versions had them: the version of events is set at the provider, not here.
 */
import { ServiceError } from '../../protocol/errors.js';
import { isObject } from '../../protocol/bytes.js';
import { NO_FIELDS } from '../http/request.js';

/** What an event reports on a subscription: paid, not paid, over, or only which tenant it belongs to. */
type FactKind = 'good' | 'failed' | 'ended' | 'seen';

/** One event of the payment provider, as far as it concerns this service. Times are milliseconds since 1970. */
export interface Fact {
  readonly eventId: string;
  /** The tenant that the event names; null: it names none, and the customer decides. */
  readonly tenantId: string | null;
  readonly customerId: string;
  readonly subscriptionId: string;
  readonly kind: FactKind;
  /** When it happened, by the provider's clock. */
  readonly at: number;
  /** End of the period that this payment covers; null: unknown, or the event is no payment. */
  readonly paidUntil: number | null;
}

/** The key of the tenant's id in a subscription's metadata. */
export const TENANT_KEY = 'tenant_id';
/** Ids of the provider are far shorter; nothing longer is stored. */
const ID_MAX = 255;
/** Visible ASCII: the database accepts no NUL, and all ids of the provider have this form. */
const ID = /^[!-~]*$/;

type Fields = Readonly<Record<string, unknown>>;

const fieldsOf = (value: unknown): Fields => (isObject(value) ? value : NO_FIELDS);

/** An id, or the id of the object that was expanded in its place. Throws `webhook_invalid` for an invalid text. */
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

/** The fields of a fact whose place depends on the type of the event; ids are unchecked. */
interface Unchecked {
  readonly kind: FactKind;
  readonly subscription: unknown;
  readonly tenant: unknown;
  readonly paidUntil?: number | null;
}

/**
 * The tenant that an object's metadata names. Only the merchant can set metadata. A checkout's `client_reference_id` is
 * not read: a buyer can write any id into the address of a payment link, and so pay for a tenant with the
 * cheapest subscription that the merchant sells.
 */
const tenantIn = (object: Fields): unknown => fieldsOf(object['metadata'])[TENANT_KEY];

function readCheckout(object: Fields): Unchecked | null {
  // A checkout for a single payment is for another product of the same merchant.
  if (object['mode'] !== undefined && object['mode'] !== 'subscription') return null;
  // `unpaid`: the bank may take days; `invoice.paid` follows then.
  const kind = object['payment_status'] === 'unpaid' ? 'seen' : 'good';
  return { kind, subscription: object['subscription'], tenant: tenantIn(object) };
}

function readSubscription(object: Fields, over: boolean): Unchecked {
  const status = object['status'];
  const kind = over ? 'ended' : ((typeof status === 'string' ? KIND_OF_STATUS[status] : undefined) ?? 'seen');
  return { kind, subscription: object['id'], tenant: tenantIn(object) };
}

function readInvoice(object: Fields, kind: FactKind): Unchecked {
  const parent = fieldsOf(fieldsOf(object['parent'])['subscription_details']);
  const older = fieldsOf(object['subscription_details']);
  const lines = fieldsOf(object['lines'])['data'];
  const ends = (Array.isArray(lines) ? lines : []).map(
    (line) => timeOf(fieldsOf(fieldsOf(line)['period'])['end']) ?? 0,
  );
  const paidUntil = Math.max(0, ...ends);
  return {
    kind,
    subscription: parent['subscription'] ?? object['subscription'],
    tenant: tenantIn(parent) ?? tenantIn(older),
    paidUntil: kind === 'good' && paidUntil > 0 ? paidUntil : null,
  };
}

/** The events that report on a subscription. */
const READERS: ReadonlyMap<unknown, (object: Fields) => Unchecked | null> = new Map([
  ['checkout.session.completed', readCheckout],
  ['customer.subscription.created', (object) => readSubscription(object, false)],
  ['customer.subscription.updated', (object) => readSubscription(object, false)],
  ['customer.subscription.deleted', (object) => readSubscription(object, true)],
  ['invoice.paid', (object) => readInvoice(object, 'good')],
  ['invoice.payment_failed', (object) => readInvoice(object, 'failed')],
]);

/**
 * The fact in an event; undefined for an event that is irrelevant here: of another type, of a payment without a
 * subscription, or without the ids that identify the tenant. Throws `webhook_invalid` for a malformed id.
 */
export function factOf(event: unknown): Fact | undefined {
  const { id, type, created, data } = fieldsOf(event);
  const object = fieldsOf(fieldsOf(data)['object']);
  const read = READERS.get(type)?.(object) ?? null;
  if (read === null) return undefined;
  const eventId = idOf(id);
  const at = timeOf(created);
  const customerId = idOf(object['customer']);
  const subscriptionId = idOf(read.subscription);
  if (eventId === null || at === null || customerId === null || subscriptionId === null) return undefined;
  const { kind, paidUntil = null } = read;
  return { eventId, tenantId: idOf(read.tenant), customerId, subscriptionId, kind, at, paidUntil };
}
