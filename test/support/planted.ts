/** Items as a holder of the master key can write them with another program: any text in the place of a payload. */
import type { Client, World } from './client-world.js';
import { newId } from './client.js';
import { bodyOf } from '../reference-client/client.js';
import { sealItem } from '../reference-client/cryptography.js';

/** An item's type, and the plaintext under its seal. */
export interface Plant {
  readonly type: string;
  readonly payload: string;
}

/** Writes the items over the wire, past the library; gives their ids. */
export async function plant(
  { server }: Pick<World, 'server'>,
  by: Client,
  plants: readonly Plant[],
): Promise<readonly string[]> {
  const { masterKey, token } = by.identity();
  const listed = await by.device.devices.list();
  const devices = new Map(
    listed.filter(({ revokedAt }) => revokedAt === null).map(({ id, pubkey }) => [id, Buffer.from(pubkey)]),
  );
  const items = plants.map(({ type, payload }, at) => {
    const head = { id: newId(), binId: 'inbox', type, ts: Date.now() + at };
    return sealItem(head, payload, { master: Buffer.from(masterKey), devices });
  });
  for (const item of items) {
    const reply = await server.wire.post('/items', bodyOf(item, 'a'), { token: token.text, shape: 'a' });
    if (reply.status !== 200) throw new Error(`${reply.status}: ${item.ct.length}`);
  }
  return items.map(({ id }) => id);
}
