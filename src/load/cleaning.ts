/** Removes what a run wrote into a tenant that is not its own: its items, each with its tag, then its bin. */
import { makeDeleteTag } from '../crypto/item-tag.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { array, object, string } from '../sdk/reader.js';
import { rowsOf } from './audit.js';
import type { FleetTenant } from './fleet.js';
import { askUntil, type Answer, type Ask, type Target } from './target.js';

const PAGE = 1_000;
const binList = object({ bins: array(object({ id: string })) });

/** Cleans one tenant by its devices in turns: the server limits each of them. */
export class Cleaner {
  private turn = 0;

  constructor(
    private readonly parts: { readonly sodium: Sodium; readonly target: Target; readonly tenant: FleetTenant },
  ) {}

  /** Makes the bin of the run. Throws `Refused` `conflict` where there is one: that one is somebody's, and stays. */
  async makeBin(id: string): Promise<void> {
    await this.ask({ method: 'POST', path: '/api/bins', body: JSON.stringify({ id, slug: id }) });
  }

  /** Whether the tenant has this bin. */
  async has(bin: string): Promise<boolean> {
    const { body } = await this.ask({ method: 'GET', path: '/api/bins' });
    return binList(body, '').bins.some(({ id }) => id === bin);
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

  private ask(ask: Ask): Promise<Answer> {
    const { target, tenant } = this.parts;
    return askUntil(() => {
      const token = tenant.devices[this.turn++ % tenant.devices.length]?.token ?? '';
      return target.ask({ ...ask, host: tenant.host, token });
    });
  }
}
