/** Removes what a run wrote into a tenant that is not its own: its items, each with its tag, then its bin. */
import { checkItemTag, makeDeleteTag } from '../crypto/item-tag.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import type { LiveItem } from '../protocol/item.js';
import { ProtocolError } from '../sdk/errors.js';
import { array, object, string } from '../sdk/reader.js';
import { readItem } from '../sdk/wire.js';
import { itemsAbove } from './audit.js';
import { asDevice, type FleetTenant } from './fleet.js';
import { Refused, withRetries, type TargetReply, type TargetRequest, type Target } from './target.js';

const binList = object({ bins: array(object({ id: string })) });

/** Cleans one tenant, using its devices in turn, since the server limits the rate of each. */
export class Cleaner {
  private turn = 0;

  constructor(
    private readonly parts: { readonly sodium: Sodium; readonly target: Target; readonly tenant: FleetTenant },
  ) {}

  /**
   * Makes the run's bin, and calls `onMade` once it exists or may exist. Throws `Refused` `conflict` if it existed before:
   * it is somebody else's then, and stays.
   */
  async makeBin(id: string, onMade: () => void): Promise<void> {
    if (await this.has(id)) throw new Refused('conflict', 409);
    let isMade = false;
    const body = JSON.stringify({ id, slug: id });
    try {
      await this.send({ method: 'POST', path: '/api/bins', body }, ({ doubtful }) => (isMade ||= doubtful));
      isMade = true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      isMade ||= error.doubtful;
      // A conflict is with what an attempt without an answer has made.
      if (!isMade || error.code !== 'conflict') throw error;
    } finally {
      if (isMade) onMade();
    }
  }

  private async has(bin: string): Promise<boolean> {
    const { body } = await this.send({ method: 'GET', path: '/api/bins' });
    return binList(body, '').bins.some(({ id }) => id === bin);
  }

  /**
   * Deletes the items of a bin, and the bin; the items' tombstones stay, as for all items. False: there is no such bin.
   * Throws `ProtocolError` where the server lists anything else as an item of the bin: that is not deleted.
   */
  async removeBin(bin: string): Promise<boolean> {
    if (!(await this.has(bin))) return false;
    const { sodium, tenant } = this.parts;
    const read = async (path: string): Promise<unknown> =>
      (await this.send({ method: 'GET', path: `${path}&bin_id=${bin}` })).body;
    for await (const row of itemsAbove(0, read)) {
      const item = readItem(row, 'type');
      if (item.deletedAt !== null) continue;
      this.expectIn(bin, item);
      const sig = toBase64Url(makeDeleteTag(sodium, tenant.masterKey, item.id));
      await this.send({ method: 'DELETE', path: `/api/items/${item.id}`, body: JSON.stringify({ sig }) });
    }
    await this.send({ method: 'DELETE', path: `/api/bins/${bin}`, body: '{}' });
    return true;
  }

  /**
   * Throws `ProtocolError` unless the item's own tag has the bin: a server that lists other items as those of the run would
   * get the tags with which to delete them on every device.
   */
  private expectIn(bin: string, item: LiveItem): void {
    const { sodium, tenant } = this.parts;
    const refused = orRefusal(() => checkItemTag(sodium, tenant.masterKey, item)) instanceof CryptoRefusal;
    if (refused || item.binId !== bin)
      throw new ProtocolError(`the server lists ${item.id} in ${bin}, its tag does not`);
  }

  private send(request: TargetRequest, onRetry?: (error: Refused) => void): Promise<TargetReply> {
    const { target, tenant } = this.parts;
    const attempt = () => target.send(asDevice(tenant, request, this.turn++ % tenant.devices.length));
    return withRetries(attempt, { onRetry });
  }
}
