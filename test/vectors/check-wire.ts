/** The vectors of bodies: the core writes shape A, and the server reads the same write from both shapes. */
import type { SealedItem } from '../../src/crypto/item-tag.js';
import { toBase64 } from '../../src/protocol/base64.js';
import type { SealedKeys } from '../../src/protocol/item.js';
import type { ItemBodyB } from '../../src/protocol/requests.js';
import { writeBody } from '../../src/sdk/wire.js';
import { type Change } from '../../src/server/tenant/change.js';
import { HASH_BYTES } from '../../src/server/tenant/codec.js';
import { decodeWriteA, decodeWriteB } from '../../src/server/tenant/decode.js';
import { arena } from '../support/changes.js';

const list = (keys: SealedKeys): ItemBodyB['wrapped'] =>
  [...keys].map(([deviceId, key]) => ({ deviceId, key: toBase64(key) }));

/** The body of shape B, with its fields in camelCase, as the server has them. */
function bodyB({ id, binId, type, ts, inline, blob, master, sig }: SealedItem): ItemBodyB {
  const { nonce, keys } = inline ?? blob ?? { nonce: new Uint8Array(0), keys: new Map<string, Uint8Array>() };
  return {
    ...{
      id,
      binId,
      type,
      ts,
      ct: inline === null ? '' : toBase64(inline.ct),
      nonce: toBase64(nonce),
      wrapped: list(keys),
    },
    ...(master === null ? {} : { master: { nonce: toBase64(master.nonce), ct: toBase64(master.ct) } }),
    ...(sig === null ? {} : { sig: toBase64(sig) }),
    ...(blob === null ? {} : { blobRef: blob.ref }),
    ...(blob === null || inline === null ? {} : { blobNonce: toBase64(blob.nonce), blobKeys: list(blob.keys) }),
    ifVersion: 0,
  };
}

const hashOf = ({ bytes, at }: Change): string => Buffer.from(bytes.subarray(at, at + HASH_BYTES)).toString('hex');
const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function inSnakeCase(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(inSnakeCase);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [snake(name), inSnakeCase(inner)]));
}

/** Both bodies of an item. Throws where the server would treat them as two different writes. */
export function wireBodies(item: SealedItem): { readonly a: unknown; readonly b: unknown } {
  const [a, b] = [writeBody({ ...item, ifVersion: 0 }), bodyB(item)];
  const hashes = [decodeWriteA(arena, a, 'always'), decodeWriteB(arena, b, 'always')].map(hashOf);
  if (hashes[0] !== hashes[1]) throw new Error('the two bodies are two writes');
  return { a, b: inSnakeCase(b) };
}
