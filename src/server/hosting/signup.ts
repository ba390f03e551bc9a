/**
 * Signup: a name under the service's domain becomes a tenant that its owner claims with a token. Also tenants for load
 * tests (reference, Load tests): made and removed with the operator's token, without the limits of signup and pairing.
 */
import { randomBytes } from 'node:crypto';
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { macField, type NewDevice, publicKeyField } from '../../protocol/request-fields.js';
import { invalid, rateLimited, ServiceError, unavailable } from '../../protocol/errors.js';
import type { SignedUp, TestTenant, TestTenantList, TestTenantRemoval } from '../../protocol/replies.js';
import type { SignupBody, TestTenantBody } from '../../protocol/requests.js';
import { sha256, type TokenIssuer } from '../http/tokens.js';
import { refusalOf, type TenantHosts } from './hosts.js';
import { TEST_TENANT, type HostingStore } from './store.js';

/** Most unclaimed tenants: anybody may sign up, and an unclaimed name is freed only after a day. */
const UNCLAIMED_MAX = 1_000;
/**
 * Most unclaimed tenants from one network: an IPv6 /32 has 65,536 networks of the size that the hourly limit counts by,
 * so that limit alone would let one holder take all names.
 */
const NETWORK_MAX = UNCLAIMED_MAX / 20;
/** Tokens are stored hashed, so that a copy of the database cannot be used to claim a tenant. */
const TOKEN_BYTES = 32;
/** Unclaimed tenants are freed continually, so a refused signup may succeed in an hour. */
const COME_BACK_S = 3_600;
/** Finds typing errors; only mail can show whether the address is read. */
const EMAIL = /^[^\s\p{C}@"(),:;<>[\]\\]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)+$/iu;

/** Most test tenants at the same time. */
const TEST_TENANTS_MAX = 10_000;
/** Replaces the bounds of signup, which do not apply to the operator's own tenants. */
const TEST_UNCLAIMED_MAX = 1_000_000;
/** Most items of a test tenant that one statement removes, and most statements of one request. */
const REMOVED_AT_ONCE = 2_000;
const STATEMENTS_MAX = 10;

/** A tenant that was signed up and is to be paid for. */
export interface UnpaidTenant {
  readonly tenantId: string;
  readonly email: string;
  readonly returnToken: string;
}

/** The checkout of signup where it costs something (src/server/billing/checkout.ts). */
export interface SignupCheckout {
  /** The claim token that the page after checkout will show. */
  claimTokenOf(tenantId: string, returnToken: string): string;
  /** Throws `unavailable` and `internal`; then nothing can be paid for. */
  begin(order: UnpaidTenant): Promise<{ checkoutUrl: string }>;
}

/** A random claim or return token: 43 characters of base64url. */
const newToken = (): string => randomBytes(TOKEN_BYTES).toString('base64url');

/** A claim token, and its hash, which is what is stored. */
export function newClaim(): { readonly claimToken: string; readonly claimHash: Buffer } {
  const claimToken = newToken();
  return { claimToken, claimHash: sha256(claimToken) };
}

/** Makes tenants, and removes those of load tests. */
export class Signup {
  /**
   * @param options.urlOf the URL of a tenant by its name.
   * @param options.announce notifies the other instances of the tenant.
   * @param options.checkout undefined: signing up costs nothing.
   */
  constructor(
    private readonly options: {
      readonly store: HostingStore;
      readonly hosts: TenantHosts;
      readonly clock: Clock;
      readonly urlOf: (slug: string) => string;
      readonly announce: (tenantId: string) => void;
      readonly checkout: SignupCheckout | undefined;
      readonly issueToken: TokenIssuer;
      readonly maxDevices: number;
      readonly onFault: (error: unknown, tenantId: string) => void;
    },
  ) {}

  /**
   * `network` is the caller's, an IPv4 /16 or an IPv6 /32. Throws `validation` for a bad address or name, `slug_taken`,
   * `rate_limited` while too many tenants from that network are unclaimed, and `unavailable` while too many are in
   * total, or the payment provider is out of reach: the name is then free again, and the same signup may be sent again.
   * A name that waits for its payment is taken, even for a caller with the same mail address, which proves nothing.
   */
  async signUp(body: SignupBody, network: string): Promise<SignedUp> {
    const { store, hosts, clock, urlOf, announce, checkout } = this.options;
    const { email, subdomain: slug } = body;
    if (!EMAIL.test(email)) throw invalid('email', 'must be an address such as me@example.com');
    expectFit(slug);
    const now = clock.now();
    const id = ulid(now);
    const returnToken = newToken();
    const claimToken = checkout?.claimTokenOf(id, returnToken) ?? newToken();
    const verdict = await store.signUp({
      ...{ id, slug, email, network, now, unclaimedMax: UNCLAIMED_MAX, networkMax: NETWORK_MAX },
      claimHash: sha256(claimToken),
      returnHash: checkout === undefined ? null : sha256(returnToken),
    });
    if (verdict === 'slug_taken') throw new ServiceError('slug_taken');
    if (verdict === 'rate_limited')
      throw rateLimited('too many names from your network are waiting to be claimed', COME_BACK_S);
    if (verdict === 'unavailable')
      throw unavailable('too many tenants are waiting to be claimed; try again later', COME_BACK_S);
    const paid = checkout && (await this.begin(checkout, { tenantId: id, email, returnToken }));
    announce(id);
    await hosts.refresh();
    return { slug, url: urlOf(slug), claimToken, ...paid };
  }

  /**
   * A test tenant: claimed, with these devices and a token for each. Throws `validation`, `slug_taken`, `device_limit`, and
   * `conflict` where there are too many.
   */
  async makeTestTenant(body: TestTenantBody): Promise<TestTenant> {
    const { store, hosts, clock, urlOf, announce, issueToken, maxDevices } = this.options;
    const { subdomain: slug } = body;
    expectFit(slug);
    const devices = devicesOf(body);
    if (devices.length > maxDevices) throw new ServiceError('device_limit');
    if ((await store.countTestTenants()) >= TEST_TENANTS_MAX)
      throw new ServiceError('conflict', `there are ${TEST_TENANTS_MAX} test tenants already`);
    const now = clock.now();
    const id = ulid(now);
    // The claim token is discarded, so a client that finds the name before it is claimed cannot claim it.
    const { claimHash } = newClaim();
    const verdict = await store.signUp({
      ...{ id, slug, claimHash, now, email: TEST_TENANT, returnHash: null, network: null },
      ...{ unclaimedMax: TEST_UNCLAIMED_MAX, networkMax: TEST_UNCLAIMED_MAX },
    });
    if (verdict === 'slug_taken') throw new ServiceError('slug_taken');
    if (verdict !== 'ok') throw unavailable('the tenant could not be created');
    const joined = await store.claimTestTenant({ tenantId: id, claimHash }, devices, maxDevices, now);
    const tokens: string[] = [];
    for (const [at, one] of joined.entries()) {
      if (one.verdict !== 'ok') {
        await store.removeSome(id, REMOVED_AT_ONCE, now);
        throw new ServiceError(one.verdict);
      }
      tokens.push(issueToken({ tenantId: id, deviceId: devices[at]?.id ?? '', epoch: one.epoch }).token);
    }
    announce(id);
    await hosts.refresh();
    return { slug, url: urlOf(slug), tenantId: id, tokens };
  }

  /** All test tenants. */
  async testTenants(): Promise<TestTenantList> {
    return { tenants: await this.options.store.testTenants(TEST_TENANTS_MAX) };
  }

  /** Removes a test tenant, or a part of it. Throws `tenant_not_found`, also for a tenant that was signed up. */
  async removeTestTenant(slug: string): Promise<TestTenantRemoval> {
    const { store, hosts, clock } = this.options;
    const id = await store.testTenantOf(slug);
    if (id === undefined) throw new ServiceError('tenant_not_found');
    for (let statement = 0; statement < STATEMENTS_MAX; statement++) {
      if ((await store.removeSome(id, REMOVED_AT_ONCE, clock.now())) === 'more') continue;
      // From here on the name has no tenant; other instances read the change within seconds.
      await hosts.refresh();
      return { removed: true };
    }
    return { removed: false };
  }

  /** Without a checkout the name cannot be paid for, so a failure frees it again. */
  private async begin(checkout: SignupCheckout, order: UnpaidTenant): Promise<{ checkoutUrl: string }> {
    const { store, hosts, clock, onFault } = this.options;
    try {
      return await checkout.begin(order);
    } catch (error) {
      // If that fails too, the name is free after a day, like any that is not paid for.
      await store.undoSignUp(order.tenantId, clock.now()).catch((fault: unknown) => onFault(fault, order.tenantId));
      // The table of names may have been read in between.
      await hosts.refresh();
      throw error;
    }
  }
}

/** Throws `validation` for a name that cannot be signed up. */
function expectFit(slug: string): void {
  const refusal = refusalOf(slug);
  if (refusal !== undefined) throw invalid('subdomain', refusal);
}

function devicesOf({ devices }: TestTenantBody): NewDevice[] {
  if (new Set(devices.map(({ id }) => id)).size < devices.length) throw invalid('devices', 'must have different ids');
  return devices.map(({ id, pubkey, cert }, at): NewDevice => {
    const path = `devices[${at}]`;
    return {
      ...{ id, name: `Load ${at + 1}`, glyph: 'laptop' },
      ...{ pubkey: publicKeyField(`${path}.pubkey`, pubkey), cert: macField(`${path}.cert`, cert) },
    };
  });
}

/**
 * The page on which a tenant is claimed. The token is in the fragment, which clients do not send: no server logs it.
 */
export const claimLinkOf = ({ url, claimToken }: Pick<SignedUp, 'url' | 'claimToken'>): string =>
  `${url}/#claim=${claimToken}`;
