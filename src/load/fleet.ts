/** The tenants and devices of a run: made with the operator's token, or read from a list. */
import { certifyDevice } from '../crypto/device.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { delay, systemClock } from '../protocol/clock.js';
import { forEach } from '../protocol/for-each.js';
import { KEY_BYTES } from '../protocol/limits.js';
import { ProtocolError } from '../sdk/errors.js';
import { array, boolean, bytes as bytesOf, nullable, object, string, ulidText, type Read } from '../sdk/reader.js';
import { ulid } from '../sdk/ulid.js';
import { shareOf, type Plan, type Share } from './plan.js';
import { withRetries, Refused, type TargetRequest, type Target } from './target.js';

/** A device of the run. */
export interface FleetDevice {
  readonly id: string;
  readonly token: string;
  readonly publicKey: Uint8Array;
  readonly cert: Uint8Array;
}

/** A tenant of the run. */
export interface FleetTenant {
  /** Value of the `Host` header; undefined: the address that is dialled. */
  readonly host: string | undefined;
  /** Its name, if this run made it. */
  readonly slug: string | undefined;
  readonly masterKey: Uint8Array;
  readonly devices: readonly FleetDevice[];
  /** The bin of the run's items: `inbox` in a tenant made for the run, else a bin of the run's own. */
  readonly binId: string;
}

/** A request as one of the tenant's devices makes it. */
export const asDevice = ({ host, devices }: FleetTenant, request: TargetRequest, device = 0): TargetRequest => ({
  ...request,
  host,
  token: devices[device]?.token ?? '',
});

/** Names of test tenants, and of bins in tenants that are not the run's own. */
export const PREFIX = 'load-';
/** How long to wait for instances that did not make a tenant to learn of it, which takes seconds, ms. */
const KNOWN_WITHIN_MS = 15_000;
const ASK_EVERY_MS = 250;
/** Successive requests that must be answered before a tenant counts as known, since instances share a port. */
const ASKED_TO_KNOW = 8;

const made = object({ url: string, tokens: array(string) });

function freshDevice(sodium: Sodium, masterKey: Uint8Array): Omit<FleetDevice, 'token'> {
  const { publicKey } = sodium.boxKeyPair();
  const id = ulid(systemClock.now(), (length) => sodium.random(length));
  return { id, publicKey, cert: certifyDevice(sodium, masterKey, { id, publicKey }) };
}

/** How tenants are made. */
interface Making {
  readonly sodium: Sodium;
  readonly target: Target;
  readonly adminToken: string;
  readonly plan: Plan;
  readonly share: Share;
  readonly signal: AbortSignal;
}

/**
 * Makes the tenants of this process. `onMade` gets each once it exists, and one that may exist, without devices, so that
 * a failure leaves none behind.
 */
export async function makeTenants(by: Making, onMade: (tenant: FleetTenant) => void): Promise<void> {
  const { sodium, target, adminToken, plan, share, signal } = by;
  const others = new Set(await testTenants(target, adminToken, plan.name));
  let last: FleetTenant | undefined;
  await forEach([...Array(shareOf(plan.tenants, share)).keys()], async (at) => {
    signal.throwIfAborted();
    const masterKey = sodium.random(KEY_BYTES);
    const devices = Array.from({ length: plan.devices }, () => freshDevice(sodium, masterKey));
    const slug = `${plan.name}-${share.part}-${at}`;
    const listed = devices.map(({ id, publicKey, cert }) => ({
      ...{ id, pubkey: toBase64Url(publicKey), cert: toBase64Url(cert) },
    }));
    const body = JSON.stringify({ subdomain: slug, devices: listed });
    const path = '/api/admin/test-tenants';
    const tenant = { host: undefined, slug, masterKey, binId: 'inbox', devices: [] };
    try {
      const { body: answer } = await target.send({ method: 'POST', path, token: adminToken, body });
      const reply = made(answer, '');
      last = {
        ...{ ...tenant, host: new URL(reply.url).host },
        devices: devices.map((device, nth) => ({ ...device, token: reply.tokens[nth] ?? '' })),
      };
    } catch (error) {
      // Unless it was refused it may exist; one that existed before is another run's.
      const isRefused = error instanceof Refused && error.status >= 400 && error.status < 500;
      if (!isRefused && !others.has(slug)) onMade(tenant);
      throw error;
    }
    onMade(last);
  });
  if (last !== undefined) await known(target, last);
}

/** Resolves when every instance that answers knows the tenant, or after `KNOWN_WITHIN_MS`. */
async function known(target: Target, tenant: FleetTenant): Promise<void> {
  const until = systemClock.now() + KNOWN_WITHIN_MS;
  for (let answered = 0; answered < ASKED_TO_KNOW && systemClock.now() < until;) {
    try {
      await target.send(asDevice(tenant, { method: 'GET', path: '/api/me' }));
      answered++;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      answered = 0;
      await delay(systemClock, ASK_EVERY_MS);
    }
  }
}

/** Largest number of requests to remove one tenant: the server removes 20,000 items per request. */
const REMOVALS_MAX = 1_000;

/** Removes a test tenant with all its data; an absent one is no error. Throws `Refused`. */
export async function removeTenant(target: Target, slug: string, adminToken: string): Promise<void> {
  const path = `/api/admin/test-tenants/${encodeURIComponent(slug)}`;
  for (let requests = 0; requests < REMOVALS_MAX; requests++) {
    try {
      const { body } = await withRetries(() => target.send({ method: 'DELETE', path, token: adminToken }));
      if (removal(body, '').removed) return;
    } catch (error) {
      if (error instanceof Refused && ['tenant_not_found', 'not_found'].includes(error.code)) return;
      throw error;
    }
  }
  throw new Refused('not_removed_yet', 200);
}

const removal = object({ removed: boolean });
const listing = object({ tenants: array(object({ slug: string })) });

/** The names of all test tenants with this prefix. */
export async function testTenants(target: Target, adminToken: string, prefix: string): Promise<string[]> {
  const { body } = await target.send({ method: 'GET', path: '/api/admin/test-tenants', token: adminToken });
  return listing(body, '')
    .tenants.map(({ slug }) => slug)
    .filter((slug) => slug.startsWith(prefix));
}

/** The text of a list of devices (the reference, Load tests). */
const deviceList = object({
  format: string,
  tenants: array(
    object({
      host: nullable(string),
      masterKey: bytesOf(),
      devices: array(object({ id: ulidText, token: string, publicKey: bytesOf() })),
    }),
  ),
});

/** Longest list that is read, bytes. */
export const DEVICE_LIST_MAX = 256 * 1024 * 1024;

/**
 * The tenants of a list that are assigned to this process, and the number of all, `inAll`; their items go into a bin of
 * the run's own. Throws `ProtocolError` if the text is no list.
 */
export function readDeviceList(
  sodium: Sodium,
  text: string,
  { plan, share }: { readonly plan: Pick<Plan, 'name'>; readonly share: Share },
): { readonly own: FleetTenant[]; readonly inAll: number } {
  const tenants = listedIn(text);
  const own = tenants
    .filter((_, at) => at % share.parts === share.part)
    .map(({ host, masterKey, devices }): FleetTenant => ({
      ...{ host: host ?? undefined, slug: undefined, masterKey, binId: plan.name },
      devices: devices.map(({ id, token, publicKey }) => {
        return { id, token, publicKey, cert: certifyDevice(sodium, masterKey, { id, publicKey }) };
      }),
    }));
  return { own, inAll: tenants.length };
}

function listedIn(text: string): Read<typeof deviceList>['tenants'] {
  try {
    const { format, tenants } = deviceList(JSON.parse(text), '');
    if (format === 'service-load-devices') return tenants;
  } catch (error) {
    // Not passed on: the message of a `SyntaxError` quotes the text, which holds keys.
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new ProtocolError('this is not a list made by `service-load devices`');
}
