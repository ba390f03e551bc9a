/**
 * How many names get their first certificate. Anybody may sign up, and each name that is asked for over HTTPS costs the
 * proxy an order at its certificate authority, which counts orders too: a flood of new names would leave none for the
 * others, and none for renewals. A name that has passed once, or was there when this instance started, never counts.
 */
import { KeyedFlight } from '../../protocol/single-flight.js';
import type { TenantHosts } from './hosts.js';
import { plainHost } from './names.js';

/** What is asked of the names and of the limit. */
export interface CertificatesOptions {
  readonly hosts: Pick<TenantHosts, 'serves' | 'isNew' | 'settle'>;
  /** Counts one new name, on all instances together. Throws `rate_limited`, `unavailable`. */
  readonly take: () => Promise<void>;
}

/** See above. */
export class Certificates {
  /** Names being counted: of many handshakes at once for one name one counts. */
  private readonly counting = new KeyedFlight((host: string) => this.count(host));

  constructor(private readonly options: CertificatesOptions) {}

  /** Shall there be a certificate for this name? At once for one that is known or nobody's; else as `take` does. */
  check(asked: string): boolean | Promise<boolean> {
    const { hosts } = this.options;
    const host = plainHost(asked);
    if (!hosts.serves(host)) return false;
    if (!hosts.isNew(host)) return true;
    return this.counting.join(host).then(() => true);
  }

  private async count(host: string): Promise<void> {
    await this.options.take();
    this.options.hosts.settle(host);
  }
}
