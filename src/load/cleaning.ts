/** Removes what a run wrote into a tenant that is not its own: its items, each with its tag, then its bin. */
import { makeDeleteTag } from '../crypto/item-tag.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { delay, systemClock } from '../protocol/clock.js';
import { array, object, string } from '../sdk/reader.js';
import { rowsOf } from './audit.js';
import type { FleetTenant } from './fleet.js';
import { Refused, type Answer, type Ask, type Target } from './target.js';

const ATTEMPTS = 20;
const PAGE = 1_000;
const binList = object({ bins: array(object({ id: string })) });

/** Cleans one tenant by its devices in turns: the server limits each of them. */
export class Cleaner {
  private turn = 0;

  constructor(
    private readonly parts: { readonly sodium: Sodium; readonly target: Target; readonly tenant: FleetTenant },
  ) {}

  /** Makes the bin of the run. */
  async makeBin(id: string): Promise<void> {
    await this.ask({ method: 'POST', path: '/api/bins', body: JSON.stringify({ id, slug: id }) });
  }

  /** Bins whose id begins so. */
  async bins(prefix: string): Promise<string[]> {
    const { body } = await this.ask({ method: 'GET', path: '/api/bins' });
    return binList(body, '')
      .bins.map(({ id }) => id)
      .filter((id) => id.startsWith(prefix));
  }

  /** Deletes the items of a bin and the bin; their tombstones stay, as those of all items. Gives the number of items. */
  async removeBin(bin: string): Promise<number> {
    const { sodium, tenant } = this.parts;
    let removed = 0;
    for (let since = 0, more = true; more;) {
      const path = `/api/items?since=${since}&limit=${PAGE}&bin_id=${bin}`;
      const read = rowsOf((await this.ask({ method: 'GET', path })).body);
      for (const { id, deleted } of read.rows) {
        if (deleted) continue;
        const sig = toBase64Url(makeDeleteTag(sodium, tenant.masterKey, id));
        await this.ask({ method: 'DELETE', path: `/api/items/${id}`, body: JSON.stringify({ sig }) });
        removed++;
      }
      more = read.more && read.next > since;
      since = read.next;
    }
    await this.ask({ method: 'DELETE', path: `/api/bins/${bin}`, body: '{}' });
    return removed;
  }

  private async ask(ask: Ask): Promise<Answer> {
    const { target, tenant } = this.parts;
    for (let attempt = 1; ; attempt++) {
      const token = tenant.devices[this.turn++ % tenant.devices.length]?.token ?? '';
      try {
        return await target.ask({ ...ask, host: tenant.host, token });
      } catch (error) {
        if (!(error instanceof Refused) || !error.passing || attempt >= ATTEMPTS) throw error;
        await delay(systemClock, error.waitMs ?? 1_000);
      }
    }
  }
}
