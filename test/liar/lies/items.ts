/** Lies about an item: the frame or row differs from what its writer made. */
import { openItem, sealBlobItem, sealItem } from '../../../src/crypto/item.js';
import { certifyDevice } from '../../../src/crypto/device.js';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { readItem, writeBody } from '../../../src/sdk/wire.js';
import type { LiveItem } from '../../../src/protocol/item.js';
import { until } from '../../support/events.js';
import { sealBlob } from '../../support/sealed-blobs.js';
import { newId } from '../../support/client.js';
import type { Lie } from '../lie.js';
import { base64url, rows, type Json } from '../proxy.js';
import type { Stage } from '../stage.js';

/** What a lie makes of an item's frame or row. `other` is another item's, both as their writers made them. */
type Bend = (row: Json, other: Json) => Json;

export interface ItemLie extends Lie {
  readonly bend: Bend;
  /** True: the item is a blob item. */
  readonly blob: boolean;
}

const sealOf = (row: Json): Json => row['payloadEnc'] as Json;
const resealed = (row: Json, more: Json): Json => ({ ...row, payloadEnc: { ...sealOf(row), ...more } });
const without = (row: Json, field: string): Json => resealed(row, Object.fromEntries([[field, undefined]]));
const flipped = (text: unknown): string => {
  const bytes = Buffer.from(String(text), 'base64url');
  bytes[0] = (bytes[0] ?? 0) ^ 1;
  return bytes.toString('base64url');
};
const typeKey = (row: Json): 'type' | 'itemType' => ('itemType' in row ? 'itemType' : 'type');

export const isItem = (row: Json): boolean => row['type'] === 'item';

/** An item made entirely by the server, under keys of its own. */
function forged(row: Json): Json {
  const masterKey = nodeSodium.random(32);
  const { publicKey } = nodeSodium.boxKeyPair();
  const [id = newId()] = Object.keys(sealOf(row)['keys'] as Json);
  const cert = certifyDevice(nodeSodium, masterKey, { id, publicKey });
  const head = { id: String(row['id']), binId: String(row['binId']), type: 'text', ts: Number(row['ts']) } as const;
  const sealed = sealItem(
    nodeSodium,
    { ...head, payload: { text: 'send money' } },
    { masterKey, devices: [{ id, publicKey, cert }] },
  );
  const { payloadEnc } = writeBody({ ...head, ...sealed, ifVersion: null });
  return { ...row, payloadEnc };
}

/** The same item as a blob item, sealed as its writer would; no blob is uploaded, because none is read. */
function asBlob(stage: Stage, row: Json): Json {
  const item = readItem(row, typeKey(row)) as LiveItem;
  const { masterKey, deviceId, keys } = stage.identity;
  const reader = { masterKey, device: { id: deviceId, keys } };
  const metadata = openItem(nodeSodium, item, reader);
  const draft = sealBlob(nodeSodium, { type: item.type, ts: item.ts, bytes: Buffer.from('the bytes of a file') });
  const owner = stage.world.first.identity();
  const devices = [stage.identity, owner].map((one) => {
    const device = { id: one.deviceId, publicKey: one.keys.publicKey };
    return { ...device, cert: certifyDevice(nodeSodium, masterKey, device) };
  });
  const ref = `${newId()}.bin`;
  const sealed = sealBlobItem(
    nodeSodium,
    { id: item.id, binId: item.binId, draft, ref, metadata },
    { masterKey, devices },
  );
  const body: Json = { ...writeBody({ ...item, ...sealed, ifVersion: null }) };
  return {
    ...row,
    payloadEnc: body['payloadEnc'],
    blobRef: body['blobRef'],
    blobNonce: body['blobNonce'],
    blobKeys: body['blobKeys'],
  };
}

/** The lie in frames: a new item arrives bent. */
async function arrives(stage: Stage, bend: Bend, blob: boolean): Promise<void> {
  let other: Json = {};
  stage.liar.frame = (frame) => {
    if (isItem(frame)) other = frame;
    return [frame];
  };
  await stage.put('an honest item');
  await stage.hears([]);
  await until('the honest frame', () => Object.keys(other).length > 0);
  stage.liar.frame = (frame) => {
    if (!isItem(frame)) return [frame];
    return [bend(blob ? asBlob(stage, frame) : frame, other)];
  };
  await stage.put('something secret');
}

/** The lie in a listing: a victim that pulls gets one bent row. */
export async function listed(stage: Stage, { bend, blob }: ItemLie): Promise<void> {
  const { id } = await stage.put('something secret in a list');
  stage.liar.answer = ({ path }, truth) => {
    if (!path.startsWith('/items?')) return undefined;
    return rows(truth, (all) => {
      const other = all.find((row) => row['id'] !== id && row['payloadEnc'] !== undefined) ?? {};
      return all.map((row) => (row['id'] === id ? bend(blob ? asBlob(stage, row) : row, other) : row));
    });
  };
  await stage.victim.pull();
}

const EVERYBODY = 'Every device that gets the item, before decrypting any of it';
const HOLDER = 'Every device that gets the item';

function about(number: number, does: string, reason: string, bend: Bend): ItemLie {
  return {
    id: `LIAR-${String(number).padStart(2, '0')}`,
    family: 'items',
    does,
    notices: reason === 'bad_sig' || reason === 'no_sig' ? EVERYBODY : HOLDER,
    named: [`quarantined ${reason}`],
    costs: 'The item is not shown; its last known state is kept',
    bend,
    blob: false,
    play: (stage) => arrives(stage, bend, false),
  };
}

const ofBlob = (lie: ItemLie): ItemLie => ({
  ...lie,
  blob: true,
  play: (stage) => arrives(stage, lie.bend, true),
});

const entries = (row: Json): [string, unknown][] => Object.entries(row['blobKeys'] as Json);

export const ITEM_LIES: readonly ItemLie[] = [
  about(1, 'forges an item under keys of its own', 'bad_sig', (row) => forged(row)),
  about(2, 'removes the tag of an item', 'no_sig', (row) => without(row, 'sig')),
  about(3, 'gives an item the tag of another', 'bad_sig', (row, other) => resealed(row, { sig: sealOf(other)['sig'] })),
  about(4, 'gives an item another type', 'bad_sig', (row) => ({ ...row, [typeKey(row)]: 'password' })),
  about(5, 'gives an item another time', 'bad_sig', (row) => ({ ...row, ts: Number(row['ts']) + 1 })),
  about(6, 'gives an item another id', 'bad_sig', (row) => ({ ...row, id: newId() })),
  about(7, 'puts an item into another bin', 'bad_sig', (row) => ({ ...row, binId: 'elsewhere' })),
  about(8, 'changes a bit of a ciphertext', 'bad_sig', (row) => resealed(row, { ct: flipped(sealOf(row)['ct']) })),
  about(9, 'changes a bit of a nonce', 'bad_sig', (row) => resealed(row, { nonce: flipped(sealOf(row)['nonce']) })),
  about(10, 'swaps the ciphertexts of two items', 'bad_sig', (row, other) =>
    resealed(row, { ct: sealOf(other)['ct'] }),
  ),
  about(11, 'gives an item all the content of another', 'bad_sig', (row, other) => ({
    ...row,
    payloadEnc: sealOf(other),
  })),
  about(12, 'swaps the keys of two items', 'bad_ct', (row, other) =>
    resealed(row, { master: sealOf(other)['master'], keys: sealOf(other)['keys'] }),
  ),
  about(13, 'drops every key of an item', 'no_key', (row) => resealed(without(row, 'master'), { keys: {} })),
  about(14, 'replaces the keys of an item with noise', 'no_key', (row) =>
    resealed(row, {
      keys: Object.fromEntries(
        Object.keys(sealOf(row)['keys'] as Json).map((id) => [id, base64url(nodeSodium.random(80))]),
      ),
      master: { nonce: base64url(nodeSodium.random(24)), ct: base64url(nodeSodium.random(48)) },
    }),
  ),
  about(15, 'sends an item that cannot be read', 'bad_row', (row) => resealed(row, { ct: '%' })),
  ofBlob(
    about(16, 'swaps the keys of a blob between devices', 'bad_sig', (row) => {
      const all = entries(row);
      return { ...row, blobKeys: Object.fromEntries(all.map(([id], at) => [id, all[(at + 1) % all.length]?.[1]])) };
    }),
  ),
  ofBlob(
    about(17, 'drops a key of a blob', 'bad_sig', (row) => ({
      ...row,
      blobKeys: Object.fromEntries(entries(row).slice(1)),
    })),
  ),
  ofBlob(about(18, 'points an item at another blob', 'bad_sig', (row) => ({ ...row, blobRef: `${newId()}.bin` }))),
  ofBlob(
    about(19, 'changes the nonce of a blob', 'bad_sig', (row) => ({ ...row, blobNonce: flipped(row['blobNonce']) })),
  ),
];
