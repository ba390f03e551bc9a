/** Signup: a name under the service's domain becomes a tenant that its owner claims with a token (contract 12). */
import { createHash, randomBytes } from 'node:crypto';
import { ulid } from 'ulid';
import type { Clock } from '../protocol/clock.js';
import { invalid, ServiceError, unavailable } from '../protocol/errors.js';
import type { SignedUp } from '../protocol/replies.js';
import type { SignupBody } from '../protocol/requests.js';
import { refusalOf } from './names.js';
import type { TenantHosts } from './hosts.js';
import type { HostingStore } from './ports.js';

/**
 * Names are handed out to anybody who asks: so many may wait for their owners, and then no more. They are freed after
 * a week.
 */
export const UNCLAIMED_MAX = 1_000;
/** 32 bytes: what the claim link carries. Stored hashed, so that a copy of the database opens nothing. */
const CLAIM_TOKEN_BYTES = 32;
/** An unclaimed tenant's database row is freed by and by: whoever is refused now may come back in an hour. */
const COME_BACK_S = 3_600;
/** Good enough to find a typing error; whether somebody reads mail there, only mail can tell. */
const EMAIL = /^[^\s@"(),:;<>[\]\\]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)+$/i;
const EMAIL_MAX = 254;

/** What signup is made of. */
export interface SignupOptions {
  readonly store: Pick<HostingStore, 'signUp'>;
  readonly hosts: TenantHosts;
  readonly clock: Clock;
  /** Scheme and port under which tenants are reached, from the URL of the apex: `https:` and `` as a rule. */
  readonly origin: { readonly protocol: string; readonly port: string };
  /** Tells other instances of the tenant. */
  readonly announce: (tenantId: string) => void;
}

/** Makes tenants. */
export class Signup {
  constructor(private readonly options: SignupOptions) {}

  /**
   * Throws `validation` for a bad address or name, `slug_taken`, and `unavailable` while too many tenants wait for their
   * owners.
   */
  async signUp(body: SignupBody): Promise<SignedUp> {
    const { store, hosts, clock, announce } = this.options;
    const { email, subdomain: slug } = body;
    if (email.length > EMAIL_MAX || !EMAIL.test(email))
      throw invalid('email', 'must be an address such as me@example.com');
    const refusal = refusalOf(slug);
    if (refusal !== undefined) throw invalid('subdomain', refusal);
    const now = clock.now();
    const id = ulid(now);
    const claimToken = randomBytes(CLAIM_TOKEN_BYTES).toString('base64url');
    const claimHash = createHash('sha256').update(claimToken, 'utf8').digest();
    const verdict = await store.signUp({
      ...{ id, slug, email, claimHash, now },
      state: 'active',
      unclaimedMax: UNCLAIMED_MAX,
    });
    if (verdict === 'slug_taken') throw new ServiceError('slug_taken');
    if (verdict === 'unavailable')
      throw unavailable('too many tenants wait to be claimed; try again later', COME_BACK_S);
    hosts.add(slug, id);
    announce(id);
    return { slug, url: this.urlOf(slug), claimToken };
  }

  private urlOf(slug: string): string {
    const { protocol, port } = this.options.origin;
    return `${protocol}//${this.options.hosts.hostOf(slug)}${port === '' ? '' : `:${port}`}`;
  }
}

/** The page on which a tenant is claimed: the token stands after `#`, which no server and no log gets to see. */
export const claimLinkOf = ({ url, claimToken }: SignedUp): string => `${url}/#claim=${claimToken}`;
