/** Runs the vectors of a blob's bytes against encryptor and decryptor, fed in portions of odd sizes. */
import { BlobDecryptor, BlobEncryptor, SEALED_CHUNK_BYTES } from '../../src/crypto/blob-stream.js';
import { itemAad } from '../../src/crypto/item.js';
import type { Sodium } from '../../src/crypto/sodium.js';
import { concat } from '../../src/protocol/bytes.js';
import { isContentType } from '../../src/protocol/item.js';

type Fields = Record<string, unknown>;

/** A change of the ciphertext: keep so many bytes, append bytes, flip the lowest bit of a byte, exchange two chunks. */
interface Edit {
  readonly keep?: number;
  readonly append?: string;
  readonly flip?: number;
  readonly exchange?: readonly [number, number];
}

/** A Buffer in a larger ArrayBuffer, as decoded bytes often are: the code must not write to it, nor use the rest. */
const unhex = (value: unknown): Uint8Array => Buffer.from(String(value), 'hex');
const hexOf = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

function edited(ct: Uint8Array, { keep, append, flip, exchange }: Edit): Uint8Array {
  if (keep !== undefined) return ct.slice(0, keep);
  if (append !== undefined) return concat([ct, unhex(append)]);
  if (flip !== undefined) return ct.map((byte, at) => (at === flip ? byte ^ 1 : byte));
  const chunks = Array.from({ length: Math.ceil(ct.length / SEALED_CHUNK_BYTES) }, (_, at) =>
    ct.slice(at * SEALED_CHUNK_BYTES, (at + 1) * SEALED_CHUNK_BYTES),
  );
  const [one, other] = exchange ?? [0, 0];
  [chunks[one], chunks[other]] = [chunks[other] ?? new Uint8Array(0), chunks[one] ?? new Uint8Array(0)];
  return concat(chunks);
}

/** Portions that end before, at and after the end of a chunk. */
function* portions(bytes: Uint8Array): Generator<Uint8Array> {
  const sizes = [1, 65_535, 65_552, 17, 200_000];
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = sizes[turn % sizes.length] ?? 1;
    yield bytes.slice(at, at + size);
    at += size;
  }
}

/** blob.json: the plaintext of `ct`, or the ciphertext of `length` bytes. Throws where that opens to other bytes. */
export function blobCheck(sodium: Sodium, input: Fields): Fields {
  const named = String(input['type']);
  const type = isContentType(named) ? named : 'file';
  const aad = itemAad({ type, ts: Number(input['ts']) });
  const secret = { key: unhex(input['key']), nonce: unhex(input['nonce']), aad };
  const open = (ct: Uint8Array): Uint8Array => {
    const decryptor = new BlobDecryptor(sodium, { ...secret, keys: [secret.key] });
    const opened: Uint8Array[] = [];
    for (const portion of portions(ct)) opened.push(...decryptor.push(portion));
    return concat([...opened, decryptor.finish()]);
  };
  if (input['ct'] !== undefined) return { plain: hexOf(open(unhex(input['ct']))) };
  const plain = Uint8Array.from({ length: Number(input['length']) }, (_, at) => at % 251);
  const encryptor = new BlobEncryptor(sodium, secret);
  const sealed: Uint8Array[] = [];
  for (const portion of portions(plain)) sealed.push(...encryptor.push(portion));
  const ct = concat([...sealed, encryptor.finish()]);
  const edits = (input['edits'] ?? []) as readonly Edit[];
  const opened = open(edits.reduce(edited, ct));
  if (!Buffer.from(opened).equals(plain)) throw new Error('what was written is not what was read');
  const sha256 = hexOf(sodium.sha256(ct));
  return { aad: hexOf(aad), size: ct.length, sha256, end: hexOf(ct.slice(-16)), opened: opened.length };
}
