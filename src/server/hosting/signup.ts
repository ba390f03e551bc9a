/** Signup: a name under the service's domain becomes a tenant that its owner claims with a token. */
import { createHash, randomBytes } from 'node:crypto';
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import { UNCLAIMED_MS } from '../../protocol/limits.js';
import type { SignedUp } from '../../protocol/replies.js';
import type { SignupBody } from '../../protocol/requests.js';
import { refusalOf } from './names.js';
import type { TenantHosts } from './hosts.js';
import type { HostingStore, SignupCheckout } from './ports.js';

/**
 * Names are handed out to anybody who asks: so many may wait for their owners, and then no more. They are freed after
 * a day.
 */
export const UNCLAIMED_MAX = 1_000;
/** Of those, so many from one network: whoever has a /32 of IPv6 has 65,536 networks of the size that is limited by hour. */
export const NETWORK_MAX = UNCLAIMED_MAX / 20;
/** 32 bytes: what the claim link carries. Stored hashed, so that a copy of the database opens nothing. */
const CLAIM_TOKEN_BYTES = 32;
/** An unclaimed tenant's database row is freed by and by: whoever is refused now may come back in an hour. */
const COME_BACK_S = 3_600;
/** Good enough to find a typing error; whether somebody reads mail there, only mail can tell. */
const EMAIL = /^[^\s\p{C}@"(),:;<>[\]\\]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)+$/iu;
const EMAIL_MAX = 254;

/** What signup is made of. */
export interface SignupOptions {
  readonly store: Pick<HostingStore, 'signUp' | 'undoSignUp'>;
  readonly hosts: TenantHosts;
  readonly clock: Clock;
  /** Scheme and port under which tenants are reached, from the URL of the apex: `https:` and `` as a rule. */
  readonly origin: { readonly protocol: string; readonly port: string };
  /** Tells other instances of the tenant. */
  readonly announce: (tenantId: string) => void;
  /** Undefined: signing up costs nothing. */
  readonly checkout: SignupCheckout | undefined;
  readonly onFault: (error: unknown, tenantId: string) => void;
}

/** A drawn token: 32 bytes as 43 characters of base64url. */
const drawn = (): string => randomBytes(CLAIM_TOKEN_BYTES).toString('base64url');
const sha256 = (text: string): Buffer => createHash('sha256').update(text, 'utf8').digest();

/** Makes tenants. */
export class Signup {
  constructor(private readonly options: SignupOptions) {}

  /**
   * `network` is where the caller is, an IPv4 /16 or an IPv6 /32. Throws `validation` for a bad address or name,
   * `slug_taken`, `rate_limited` while too many names from that network wait, and `unavailable` while too many tenants wait for their
   * owners, or the payment provider is out of reach: the name is free again then, and the same signup may be sent again.
   * A name that waits for its payment is taken, also for whoever gives the same address: an address proves nothing.
   */
  async signUp(body: SignupBody, network: string): Promise<SignedUp> {
    const { hosts, clock, announce, checkout } = this.options;
    const { email, subdomain: slug } = body;
    if (email.length > EMAIL_MAX || !EMAIL.test(email))
      throw invalid('email', 'must be an address such as me@example.com');
    const refusal = refusalOf(slug);
    if (refusal !== undefined) throw invalid('subdomain', refusal);
    const id = ulid(clock.now());
    const returnToken = drawn();
    const claimToken = checkout?.claimTokenOf(id, returnToken) ?? drawn();
    await this.take({ id, slug, email, claimToken, returnToken, network });
    const paid = checkout === undefined ? {} : await this.begin(checkout, { tenantId: id, email, returnToken });
    hosts.add(slug, id);
    announce(id);
    return { slug, url: this.urlOf(slug), claimToken, ...paid };
  }

  /** The name is the tenant's from here on. */
  private async take(
    tenant: Record<'id' | 'slug' | 'email' | 'claimToken' | 'returnToken' | 'network', string>,
  ): Promise<void> {
    const { store, clock, checkout } = this.options;
    const { claimToken, returnToken, ...who } = tenant;
    const now = clock.now();
    const verdict = await store.signUp({
      ...who,
      claimHash: sha256(claimToken),
      returnHash: checkout === undefined ? null : sha256(returnToken),
      state: checkout === undefined ? 'active' : 'pending',
      unclaimedMax: UNCLAIMED_MAX,
      networkMax: NETWORK_MAX,
      freeBefore: now - UNCLAIMED_MS,
      now,
    });
    if (verdict === 'slug_taken') throw new ServiceError('slug_taken');
    if (verdict === 'rate_limited') {
      throw new ServiceError(
        'rate_limited',
        'too many names from your network wait to be claimed',
        undefined,
        COME_BACK_S,
      );
    }
    if (verdict === 'unavailable')
      throw unavailable('too many tenants wait to be claimed; try again later', COME_BACK_S);
  }

  /** Where the checkout cannot be made, nobody can pay for the name: it is given back. */
  private async begin(
    checkout: SignupCheckout,
    order: { tenantId: string; email: string; returnToken: string },
  ): Promise<{ checkoutUrl: string }> {
    const { store, hosts, clock, onFault } = this.options;
    try {
      return await checkout.begin(order);
    } catch (error) {
      // If that fails too, the name is free after a day, as with any that nobody pays for.
      await store.undoSignUp(order.tenantId, clock.now()).catch((fault: unknown) => onFault(fault, order.tenantId));
      // The table may have been read in between.
      await hosts.readOn();
      throw error;
    }
  }

  private urlOf(slug: string): string {
    const { protocol, port } = this.options.origin;
    return `${protocol}//${this.options.hosts.hostOf(slug)}${port === '' ? '' : `:${port}`}`;
  }
}

/** The page on which a tenant is claimed: the token stands after `#`, which no server and no log gets to see. */
export const claimLinkOf = ({ url, claimToken }: Pick<SignedUp, 'url' | 'claimToken'>): string =>
  `${url}/#claim=${claimToken}`;
