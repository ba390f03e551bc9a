/** Vectors of a blob's bytes: chunks of 64 KiB, and variants that must be refused. */
import { createHash } from 'node:crypto';
import { fixed, refused, valid, type Vector } from './cases.js';
import { aead, hex, join, utf8, type Bytes } from './reference.js';

const CHUNK = 65_536;
const TAG = 16;
const TS = 1_760_000_000_123;
const KEY = fixed('blob key');
const PREFIX = fixed('blob nonce prefix', 19);
const NONCE = join(PREFIX, new Uint8Array(5));
const AAD = utf8(`file|${TS}`);

/** Byte i is i mod 251: a plaintext that need not be stored in the vector. */
const counted = (length: number): Bytes => Uint8Array.from({ length }, (_, at) => at % 251);

/** One chunk, by a second, plain implementation. */
function chunk(message: Bytes, number: number, last: boolean): Bytes {
  const at = Buffer.alloc(4);
  at.writeUInt32BE(number);
  return aead(message, { aad: AAD, nonce: join(PREFIX, at, new Uint8Array([last ? 1 : 0])), key: KEY });
}

function sealed(plain: Bytes): Bytes {
  const count = Math.max(1, Math.ceil(plain.length / CHUNK));
  const part = (at: number): Bytes => plain.slice(at * CHUNK, (at + 1) * CHUNK);
  return join(...Array.from({ length: count }, (_, at) => chunk(part(at), at, at === count - 1)));
}

const input = { key: hex(KEY), nonce: hex(NONCE), type: 'file', ts: TS };
const sha256 = (bytes: Bytes): string => createHash('sha256').update(bytes).digest('hex');

function whole(comment: string, length: number): Vector {
  const ct = sealed(counted(length));
  const expected = { aad: hex(AAD), size: ct.length, sha256: sha256(ct), end: hex(ct.slice(-TAG)), opened: length };
  return valid(comment, { ...input, length }, expected);
}

/** A refused vector: the ciphertext of `length` bytes with these edits, applied in order. */
const spoiled = (comment: string, length: number, edits: readonly object[]): Vector =>
  refused(comment, { ...input, length, edits }, 'bad_ct');

const SMALL = utf8('Grüße, 世界');
const small = (comment: string, ct: Bytes, over: object = {}): Vector =>
  refused(comment, { ...input, ct: hex(ct), ...over }, 'bad_ct');

/** One piece under the whole nonce, as a client without chunks writes it. */
function onePiece(): Vector[] {
  const nonce = fixed('blob nonce of one piece', 24);
  const ct = aead(SMALL, { aad: AAD, nonce, key: KEY });
  const own = { ...input, nonce: hex(nonce) };
  return [
    valid('one piece: the nonce does not end in five zero bytes', { ...own, ct: hex(ct) }, { plain: hex(SMALL) }),
    refused('one piece, cut', { ...own, ct: hex(ct.slice(0, -1)) }, 'bad_ct'),
    refused('a blob in chunks, read as one piece', { ...own, ct: hex(sealed(SMALL)) }, 'bad_ct'),
    small('one piece, read as chunks', ct),
  ];
}

/** blob.json */
export const blobs = (): Vector[] => [
  valid('a few bytes', { ...input, ct: hex(sealed(SMALL)) }, { plain: hex(SMALL) }),
  valid('empty: one empty last chunk', { ...input, ct: hex(sealed(new Uint8Array(0))) }, { plain: '' }),
  whole('empty', 0),
  whole('one byte', 1),
  whole('one byte less than a chunk', CHUNK - 1),
  whole('exactly one chunk: it is the last one', CHUNK),
  whole('one byte over a chunk', CHUNK + 1),
  whole('exactly three chunks', 3 * CHUNK),
  whole('three chunks and a half', 3.5 * CHUNK),
  small('nothing at all', new Uint8Array(0)),
  small('shorter than a tag', sealed(SMALL).slice(0, TAG - 1)),
  small('the only chunk is not marked as the last', chunk(SMALL, 0, false)),
  small('the only chunk is not the first', chunk(SMALL, 1, true)),
  small(
    'an altered byte',
    sealed(SMALL).map((byte, at) => (at === 2 ? byte ^ 1 : byte)),
  ),
  small('under another ts', sealed(SMALL), { ts: TS + 1 }),
  small('under another type', sealed(SMALL), { type: 'image' }),
  small('under another key', sealed(SMALL), { key: hex(fixed('another blob key')) }),
  small('under another nonce', sealed(SMALL), { nonce: hex(join(fixed('other prefix', 19), new Uint8Array(5))) }),
  spoiled('cut off behind the first of two chunks', 2 * CHUNK, [{ keep: CHUNK + TAG }]),
  spoiled('cut off inside the last chunk', 2 * CHUNK, [{ keep: 2 * CHUNK + TAG }]),
  spoiled('one byte more', CHUNK, [{ append: '00' }]),
  spoiled('the last chunk once more', CHUNK + 1, [{ append: hex(sealed(counted(CHUNK + 1)).slice(-TAG - 1)) }]),
  spoiled('an empty last chunk behind a whole one', CHUNK + 1, [
    { keep: CHUNK + TAG },
    { append: hex(chunk(new Uint8Array(0), 1, true)) },
  ]),
  spoiled('the first two of three chunks exchanged', 2 * CHUNK + 1, [{ exchange: [0, 1] }]),
  spoiled('an altered byte in the second chunk', 2 * CHUNK, [{ flip: CHUNK + TAG + 5 }]),
  spoiled('an altered tag of the first chunk', 2 * CHUNK, [{ flip: CHUNK + 3 }]),
  ...onePiece(),
];
