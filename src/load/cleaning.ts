/** Removes what a run wrote into a tenant that is not its own: its items, each with its tag, then its bin. */
import { makeDeleteTag } from '../crypto/item-tag.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { array, object, string } from '../sdk/reader.js';
import { itemsAbove, rowHead } from './audit.js';
import { asDevice, type FleetTenant } from './fleet.js';
import { withRetries, type TargetReply, type TargetRequest, type Target } from './target.js';

const binList = object({ bins: array(object({ id: string })) });

/** Cleans one tenant, using its devices in turn, since the server limits the rate of each. */
export class Cleaner {
  private turn = 0;

  constructor(
    private readonly parts: { readonly sodium: Sodium; readonly target: Target; readonly tenant: FleetTenant },
  ) {}

  /** Makes the run's bin. Throws `Refused` `conflict` if it exists: it is somebody else's then, and stays. */
  async makeBin(id: string): Promise<void> {
    await this.send({ method: 'POST', path: '/api/bins', body: JSON.stringify({ id, slug: id }) });
  }

  /** Whether the tenant has this bin. */
  async has(bin: string): Promise<boolean> {
    const { body } = await this.send({ method: 'GET', path: '/api/bins' });
    return binList(body, '').bins.some(({ id }) => id === bin);
  }

  /** Deletes the items of a bin, and the bin; the items' tombstones stay, as for all items. */
  async removeBin(bin: string): Promise<void> {
    const { sodium, tenant } = this.parts;
    const read = async (path: string): Promise<unknown> =>
      (await this.send({ method: 'GET', path: `${path}&bin_id=${bin}` })).body;
    for await (const row of itemsAbove(0, read)) {
      const { id, deletedAt } = rowHead(row, '');
      if (deletedAt !== null) continue;
      const sig = toBase64Url(makeDeleteTag(sodium, tenant.masterKey, id));
      await this.send({ method: 'DELETE', path: `/api/items/${id}`, body: JSON.stringify({ sig }) });
    }
    await this.send({ method: 'DELETE', path: `/api/bins/${bin}`, body: '{}' });
  }

  private send(request: TargetRequest): Promise<TargetReply> {
    const { target, tenant } = this.parts;
    return withRetries(() => target.send(asDevice(tenant, request, this.turn++ % tenant.devices.length)));
  }
}
