/**
 * Tenants for load tests (reference, Load tests): made and removed with the operator's token, without the limits of
 * signup and pairing. Only a tenant that was made here can be removed here, never one that was signed up.
 */
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { publicKeyField, type NewDevice } from '../../protocol/device-fields.js';
import { macField } from '../../protocol/item-codec.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import { UNCLAIMED_MS } from '../../protocol/limits.js';
import type { TestTenant, TestTenantList, TestTenantRemoval } from '../../protocol/replies.js';
import type { TestTenantBody } from '../../protocol/requests.js';
import type { TokenIssuer } from '../http/tokens.js';
import { refusalOf, type TenantHosts } from './hosts.js';
import { newClaim } from './signup.js';
import { TEST_TENANT, type HostingStore } from './store.js';

/** Most test tenants at the same time. */
const TEST_TENANTS_MAX = 10_000;
/** Replaces the bounds of signup, which do not apply to the operator's own tenants. */
const UNCLAIMED_MAX = 1_000_000;
/** Most items that one statement removes, and most statements of one request. */
const REMOVED_AT_ONCE = 2_000;
const STATEMENTS_MAX = 10;

/** Makes, lists and removes test tenants. */
export class TestTenants {
  constructor(
    private readonly options: {
      readonly store: HostingStore;
      readonly hosts: TenantHosts;
      readonly clock: Clock;
      readonly urlOf: (slug: string) => string;
      readonly announce: (tenantId: string) => void;
      readonly issueToken: TokenIssuer;
      readonly maxDevices: number;
    },
  ) {}

  /**
   * A claimed tenant with these devices and a token for each. Throws `validation`, `slug_taken`, `device_limit`, and
   * `conflict` where there are too many.
   */
  async make(body: TestTenantBody): Promise<TestTenant> {
    const { store, hosts, clock, urlOf, announce, issueToken, maxDevices } = this.options;
    const { subdomain: slug } = body;
    const refusal = refusalOf(slug);
    if (refusal !== undefined) throw invalid('subdomain', refusal);
    const devices = devicesOf(body);
    if (devices.length > maxDevices) throw new ServiceError('device_limit');
    if ((await store.countTestTenants()) >= TEST_TENANTS_MAX)
      throw new ServiceError('conflict', `there are ${TEST_TENANTS_MAX} test tenants already`);
    const now = clock.now();
    const id = ulid(now);
    // The claim token is discarded, so a client that finds the name before it is claimed cannot claim it.
    const { claimHash } = newClaim();
    const verdict = await store.signUp({
      ...{ id, slug, claimHash, now, email: TEST_TENANT, returnHash: null, state: 'active', network: null },
      ...{ unclaimedMax: UNCLAIMED_MAX, networkMax: UNCLAIMED_MAX, freeBefore: now - UNCLAIMED_MS },
    });
    if (verdict === 'slug_taken') throw new ServiceError('slug_taken');
    if (verdict !== 'ok') throw unavailable('the tenant could not be created');
    const joined = await store.claimTestTenant({ tenantId: id, claimHash, devices, maxDevices, now });
    for (const { verdict: refused } of joined) {
      if (refused === 'ok') continue;
      await store.removeSome(id, REMOVED_AT_ONCE, now);
      throw new ServiceError(refused);
    }
    hosts.add(slug, id);
    announce(id);
    const tokens = joined.map(
      ({ epoch }, at) => issueToken({ tenantId: id, deviceId: devices[at]?.id ?? '', epoch }).token,
    );
    return { slug, url: urlOf(slug), tenantId: id, tokens };
  }

  /** All of them. */
  async list(): Promise<TestTenantList> {
    return { tenants: await this.options.store.testTenants(TEST_TENANTS_MAX) };
  }

  /** Removes one, or a part of it. Throws `tenant_not_found`, also for a tenant that was signed up. */
  async remove(slug: string): Promise<TestTenantRemoval> {
    const { store, hosts, clock } = this.options;
    const id = await store.testTenantOf(slug);
    if (id === undefined) throw new ServiceError('tenant_not_found');
    for (let statement = 0; statement < STATEMENTS_MAX; statement++) {
      if ((await store.removeSome(id, REMOVED_AT_ONCE, clock.now())) === 'more') continue;
      // From here on the name has no tenant; other instances read the change within seconds.
      await hosts.readOn();
      return { removed: true };
    }
    return { removed: false };
  }
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
