/**
 * Items between the wire and the bytes they are kept as: a write's body straight into the arena, a row's bytes straight into
 * the text of a frame or a listing, in either shape (SHAPE-14 to 24).
 */
import { invalid, ServiceError } from '../protocol/errors.js';
import type {
  DeleteFrame,
  EnvelopeA,
  ItemFieldsA,
  ItemFrameA,
  ItemFrameB,
  ItemRowA,
  ItemRowB,
  MasterText,
  Piece,
  WrappedKeyB,
} from '../protocol/frames.js';
import { ULID } from '../protocol/ids.js';
import { CONTENT_TYPES } from '../protocol/item.js';
import type { RequireSig } from '../protocol/item-codec.js';
import {
  AEAD_TAG_BYTES,
  INLINE_CIPHERTEXT_MAX,
  MASTER_WRAP_BYTES,
  NONCE_BYTES,
  SEALED_KEY_MAX,
  SEALED_KEY_MIN,
  SEALED_KEYS_PER_ITEM,
  SIG_BYTES,
} from '../protocol/limits.js';
import type { EnvelopeBody, ItemBodyA, ItemBodyB, MasterBody, WrappedKeyBody } from '../protocol/requests.js';
import type { Shape } from '../protocol/shape.js';
import {
  SEGMENT_BYTES,
  type Arena,
  BLOB_NONCE_AT,
  Change,
  ENTRY_HEAD,
  FIXED_BYTES,
  HAS,
  HASHED_TEXT_MAX,
  MASTER_AT,
  NONCE_AT,
  SIG_AT,
  ULID_CHARS,
  type ItemRow,
} from './change.js';
import { JsonWriter, type Alphabet } from './json-writer.js';

/** A part of fixed length: where it lies from the row's `at`, how long it is, and the bit that says it is there. */
interface FixedPart {
  readonly at: number;
  readonly bytes: number;
  readonly bit: number;
}

const NONCE: FixedPart = { at: NONCE_AT, bytes: NONCE_BYTES, bit: HAS.nonce };
const SIG: FixedPart = { at: SIG_AT, bytes: SIG_BYTES, bit: HAS.sig };
const MASTER_NONCE: FixedPart = { at: MASTER_AT, bytes: NONCE_BYTES, bit: HAS.master };
const MASTER_CT: FixedPart = { at: MASTER_AT + NONCE_BYTES, bytes: MASTER_WRAP_BYTES, bit: HAS.master };
const BLOB_NONCE: FixedPart = { at: BLOB_NONCE_AT, bytes: NONCE_BYTES, bit: HAS.blobNonce };

const notBase64 = (path: string): ServiceError => invalid(path, 'must be base64 or base64url without white space');

const EQUALS_SIGN = 61;

/**
 * The number of bytes that a base64 text of either alphabet stands for, padded or not (SHAPE-05). Throws `validation` where
 * no byte string is so long, or is padded by half.
 */
function lengthOf(path: string, text: string): number {
  const { length } = text;
  let chars = length;
  while (chars > 0 && length - chars < 2 && text.charCodeAt(chars - 1) === EQUALS_SIGN) chars--;
  if (chars === length ? length % 4 === 1 : length % 4 !== 0) throw notBase64(path);
  return Math.floor((chars * 3) / 4);
}

/** Decodes a text of known length to its place. Throws `validation` for white space and other characters. */
function putBase64(bytes: Buffer, at: number, { path, text, length }: Base64Part): void {
  // Node takes either alphabet under either name, but the one that is named it decodes four times as fast.
  const alphabet = text.includes('+') || text.includes('/') ? 'base64' : 'base64url';
  // It skips what it does not know, so a wrong character shows as a missing byte; only characters past ASCII could be folded
  // into the alphabet, and those are longer as UTF-8 than as text.
  const found = bytes.write(text, at, length, alphabet);
  if (found !== length || Buffer.byteLength(text) !== text.length) throw notBase64(path);
}

interface Base64Part {
  readonly path: string;
  readonly text: string;
  readonly length: number;
}

/** Decodes a part to its place, or says which field is wrong. */
function putFixed(
  change: Change,
  part: FixedPart,
  { path, text }: { readonly path: string; readonly text: string },
): void {
  const length = lengthOf(path, text);
  if (length !== part.bytes) throw invalid(path, `must be ${part.bytes} bytes, got ${length}`);
  putBase64(change.bytes, change.at + part.at, { path, text, length });
  change.has |= part.bit;
}

function putCiphertext(change: Change, path: string, text: string): void {
  const length = lengthOf(path, text);
  if (length > INLINE_CIPHERTEXT_MAX) throw new ServiceError('item_too_large', undefined, { path });
  if (length < AEAD_TAG_BYTES) throw invalid(path, `must be at least ${AEAD_TAG_BYTES} bytes, got ${length}`);
  putBase64(change.bytes, change.at + FIXED_BYTES, { path, text, length });
  change.has |= HAS.inline;
  change.ctBytes = length;
}

/** Puts lists of keys behind one another: `begin`, then `add` for each, then `end`. One list at a time. */
class KeyList {
  private bytes: Buffer = Buffer.alloc(0);
  private path = '';
  private from = 0;
  private at = 0;
  private last = '';
  private sorted = true;

  begin(bytes: Buffer, from: number, path: string): void {
    this.bytes = bytes;
    this.path = path;
    this.from = from;
    this.at = from;
    this.last = '';
    this.sorted = true;
  }

  add(device: string, text: string): void {
    const { bytes, at } = this;
    if (!ULID.test(device)) throw invalid(this.path, `a device id must match ${ULID.source}`);
    const path = `${this.path}.${device}`;
    const length = lengthOf(path, text);
    if (length < SEALED_KEY_MIN || length > SEALED_KEY_MAX) {
      throw invalid(path, `must be ${SEALED_KEY_MIN} to ${SEALED_KEY_MAX} bytes, got ${length}`);
    }
    if (device <= this.last) this.sorted = false;
    this.last = device;
    bytes.write(device, at, 'latin1');
    bytes.writeUInt16BE(length, at + ULID_CHARS);
    putBase64(bytes, at + ENTRY_HEAD, { path, text, length });
    this.at = at + ENTRY_HEAD + length;
  }

  /** The list's bytes. Its entries lie by device id: the same write may come with them in another order. */
  end(): number {
    if (!this.sorted) this.sort();
    return this.at - this.from;
  }

  private sort(): void {
    const { bytes, from, at: to } = this;
    const entries: { readonly device: string; readonly entry: Buffer }[] = [];
    for (let at = from; at < to;) {
      const next = at + ENTRY_HEAD + bytes.readUInt16BE(at + ULID_CHARS);
      entries.push({
        device: bytes.toString('latin1', at, at + ULID_CHARS),
        entry: Buffer.from(bytes.subarray(at, next)),
      });
      at = next;
    }
    entries.sort((one, other) => (one.device < other.device ? -1 : 1));
    let at = from;
    let before = '';
    for (const { device, entry } of entries) {
      if (device === before) throw invalid(`${this.path}.${device}`, 'given twice');
      before = device;
      at += entry.copy(bytes, at);
    }
  }
}

const keyList = new KeyList();

function putKeyMap(change: Change, from: number, { path, map }: { path: string; map: Record<string, string> }): number {
  let count = 0;
  keyList.begin(change.bytes, from, path);
  for (const device in map) {
    if (++count > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
    keyList.add(device, map[device] ?? '');
  }
  return keyList.end();
}

function putKeyArray(
  change: Change,
  from: number,
  { path, array }: { path: string; array: readonly WrappedKeyBody[] },
): number {
  if (array.length > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  keyList.begin(change.bytes, from, path);
  for (const { deviceId, key } of array) keyList.add(deviceId, key);
  return keyList.end();
}

function putMaster(change: Change, path: string, master: MasterBody | null | undefined): void {
  if (master === null || master === undefined) return;
  putFixed(change, MASTER_NONCE, { path: `${path}.nonce`, text: master.nonce });
  putFixed(change, MASTER_CT, { path: `${path}.ct`, text: master.ct });
}

function putBlobRef(change: Change, ref: string): void {
  // The name is opaque to clients; a name that could never have been handed out is simply not there.
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(ref)) throw new ServiceError('blob_not_found', undefined, { path: 'blobRef' });
  change.blobRef = ref;
}

/** Nonce and keys beside an empty ciphertext have to fit, and are not kept: the blob has its own. */
function forgetInline(change: Change): void {
  change.bytes.fill(0, change.at + NONCE_AT, change.at + SIG_AT);
  change.has &= ~HAS.nonce;
  change.keysBytes = 0;
}

function takeHead(change: Change, body: ItemBodyA | ItemBodyB): void {
  const { id, binId, type, ts, ifVersion } = body;
  const known = CONTENT_TYPES.find((one) => one === type);
  if (known === undefined) throw new ServiceError('unknown_type', undefined, { path: 'type' });
  change.id = id;
  change.binId = binId;
  change.type = known;
  change.ts = ts;
  change.ifVersion = ifVersion ?? null;
}

/** Bytes that a list of keys may take, by the length of its texts. */
function roomForMap(map: Record<string, string> | null | undefined): number {
  let room = 0;
  for (const device in map) room += ENTRY_HEAD + (map[device]?.length ?? 0);
  return room;
}

function roomForArray(array: readonly WrappedKeyBody[] | null | undefined): number {
  let room = 0;
  if (array) for (const { key } of array) room += ENTRY_HEAD + key.length;
  return room;
}

/** A change whose bytes begin where the arena has room for them, the fixed ones all zero. Not taken yet. */
function begin(arena: Arena, kind: Change['kind'], room: number): Change {
  if (FIXED_BYTES + room + HASHED_TEXT_MAX > SEGMENT_BYTES) throw new ServiceError('item_too_large');
  const segment = arena.reserve(FIXED_BYTES + room + HASHED_TEXT_MAX);
  const change = new Change(kind, segment, segment.used);
  change.bytes.fill(0, change.at, change.at + FIXED_BYTES);
  return change;
}

/** The write is whole: its hash is made, and its bytes are taken until it is answered. */
function finish(arena: Arena, change: Change): Change {
  change.hash();
  arena.pin(change.segment, change.end);
  return change;
}

/**
 * A shape A body that fits its schema as a change. Its bytes are pinned in the arena: `arena.unpin` when it is answered.
 * Throws `validation`, `item_too_large`, `unknown_type`, `blob_not_found`, `unavailable`; then nothing is taken.
 */
export function decodeWriteA(arena: Arena, body: ItemBodyA, requireSig: RequireSig): Change {
  const envelope = body.payloadEnc ?? null;
  const ref = body.blobRef ?? null;
  const room = (envelope?.ct.length ?? 0) + roomForMap(envelope?.keys) + roomForMap(body.blobKeys);
  const change = begin(arena, 'write', room);
  takeHead(change, body);
  if (envelope === null && ref === null) throw invalid('payloadEnc', 'payloadEnc or blobRef is required');
  if (ref === null && ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null)) {
    throw invalid('blobRef', 'required beside blobNonce or blobKeys');
  }
  const path = envelope === null ? '' : 'payloadEnc.';
  const { sig, master } = envelope ?? body;
  if (sig !== null && sig !== undefined) putFixed(change, SIG, { path: `${path}sig`, text: sig });
  else if (requireSig === 'always' || (requireSig === 'a' && envelope !== null)) {
    throw invalid(`${path}sig`, `required, ${SIG_BYTES} bytes`);
  }
  if (envelope !== null) putEnvelope(change, envelope, ref !== null);
  if (ref !== null) putBlobA(change, ref, body);
  putMaster(change, `${path}master`, master);
  return finish(arena, change);
}

/** An envelope. Beside a blob (`mayBeEmpty`) an empty ct is allowed and means: no metadata. */
function putEnvelope(change: Change, { ct, nonce, keys }: EnvelopeBody, mayBeEmpty: boolean): void {
  const empty = mayBeEmpty && ct === '';
  putFixed(change, NONCE, { path: 'payloadEnc.nonce', text: nonce });
  if (!empty) putCiphertext(change, 'payloadEnc.ct', ct);
  change.keysBytes = putKeyMap(change, change.keysAt, { path: 'payloadEnc.keys', map: keys });
  if (empty) forgetInline(change);
}

function putBlobA(change: Change, ref: string, { blobNonce, blobKeys }: ItemBodyA): void {
  if (typeof blobNonce !== 'string') throw invalid('blobNonce', 'required beside blobRef');
  if (!blobKeys) throw invalid('blobKeys', 'required beside blobRef');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, { path: 'blobNonce', text: blobNonce });
  change.blobKeysBytes = putKeyMap(change, change.blobKeysAt, { path: 'blobKeys', map: blobKeys });
}

/** A shape B body that fits its schema (keys camelCase) as a change; see `decodeWriteA`. */
export function decodeWriteB(arena: Arena, body: ItemBodyB, requireSig: RequireSig): Change {
  const ref = body.blobRef ?? null;
  const room = body.ct.length + roomForArray(body.wrapped) + roomForArray(body.blobKeys ?? body.wrapped);
  const change = begin(arena, 'write', room);
  takeHead(change, body);
  if (ref === null && ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null)) {
    throw invalid('blob_ref', 'required beside blob_nonce or blob_keys');
  }
  const { sig } = body;
  if (sig !== null && sig !== undefined) putFixed(change, SIG, { path: 'sig', text: sig });
  else if (requireSig === 'always') throw invalid('sig', `required, ${SIG_BYTES} bytes`);
  const empty = ref !== null && body.ct === '';
  putFixed(change, NONCE, { path: 'nonce', text: body.nonce });
  if (!empty) putCiphertext(change, 'ct', body.ct);
  change.keysBytes = putKeyArray(change, change.keysAt, { path: 'wrapped', array: body.wrapped });
  if (empty) forgetInline(change);
  if (ref !== null) putBlobB(change, ref, body);
  putMaster(change, 'master', body.master);
  return finish(arena, change);
}

/** As the specification writes a B blob, `nonce` and `wrapped` are the blob's own (SHAPE-19). */
function putBlobB(change: Change, ref: string, body: ItemBodyB): void {
  const named = typeof body.blobNonce === 'string';
  const blobOnly = (change.has & HAS.inline) === 0;
  if (!named && !blobOnly) throw invalid('blob_nonce', 'required beside blob_ref and ct');
  if (named && !blobOnly && !body.blobKeys) throw invalid('blob_keys', 'required beside blob_nonce');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, { path: named ? 'blob_nonce' : 'nonce', text: body.blobNonce ?? body.nonce });
  const keys = body.blobKeys ? { path: 'blob_keys', array: body.blobKeys } : { path: 'wrapped', array: body.wrapped };
  change.blobKeysBytes = putKeyArray(change, change.blobKeysAt, keys);
}

/** A delete, or a move: nothing but its tag. `sig` has 32 bytes where it is given. Pinned as a write is. */
export function tagged(arena: Arena, kind: 'delete' | 'move', sig: string | null | undefined): Change {
  const change = begin(arena, kind, 0);
  if (sig !== null && sig !== undefined) putFixed(change, SIG, { path: 'sig', text: sig });
  arena.pin(change.segment, change.end);
  return change;
}

/**
 * A path of a refused write as shape B names it. The inner rings name fields as shape A does; B keeps the item's own
 * keys in `wrapped`, and a blob's too where the write has no `blob_keys` (SHAPE-27).
 * @param blobKeys the write has `blob_keys`.
 */
export function pathInB(path: string, blobKeys: boolean): string {
  const own = blobKeys ? /^payloadEnc\.keys(?=$|\.)/ : /^(payloadEnc\.keys|blobKeys)(?=$|\.)/;
  return path.replace(own, 'wrapped');
}

// Encoding. Written piece by piece: every value is a checked id, a number or base64, so nothing needs escaping, and a push to
// many devices costs one text instead of a walk by JSON.stringify. A `Piece` holds the keys to their types.

/** Text as it is: a `Piece` holds its keys to a type, at compile time only. */
export const asIs = (text: string): string => text;
const masterPiece: Piece<MasterText> = asIs;
const sealPiece: Piece<Pick<EnvelopeA, 'master' | 'sig'> & Pick<ItemFieldsA, 'master' | 'sig'>> = asIs;
const envelopePiece: Piece<EnvelopeA> = asIs;
const fieldsPiece: Piece<ItemFieldsA> = asIs;
const wrappedPiece: Piece<WrappedKeyB> = asIs;
const rowPieceB: Piece<ItemRowB> = asIs;
const deletePiece: Piece<DeleteFrame> = asIs;
const typePieceA: Piece<Pick<ItemRowA, 'type'>> = asIs;
const framePieceA: Piece<Pick<ItemFrameA, 'type' | 'itemType'>> = asIs;
const framePieceB: Piece<ItemFrameB> = asIs;

function quoted(out: JsonWriter, value: string | null): void {
  if (value === null) return out.text('null');
  out.text('"');
  out.text(value);
  out.text('"');
}

/** A part of fixed length as a text in quotes. */
function fixed(out: JsonWriter, { bytes, at }: ItemRow, part: FixedPart, alphabet: Alphabet): void {
  out.text('"');
  out.encoded(alphabet, bytes, { start: at + part.at, end: at + part.at + part.bytes });
  out.text('"');
}

function ciphertext(out: JsonWriter, row: ItemRow, alphabet: Alphabet): void {
  out.text('"');
  out.encoded(alphabet, row.bytes, { start: row.at + FIXED_BYTES, end: row.keysAt });
  out.text('"');
}

/** A list of keys: where it lies. */
interface Keys {
  readonly from: number;
  readonly length: number;
}

const ownKeys = ({ keysAt, keysBytes }: ItemRow): Keys => ({ from: keysAt, length: keysBytes });
const blobKeys = ({ blobKeysAt, blobKeysBytes }: ItemRow): Keys => ({ from: blobKeysAt, length: blobKeysBytes });

function keysA(out: JsonWriter, { bytes }: ItemRow, { from, length }: Keys): void {
  out.text('{');
  for (let at = from; at < from + length;) {
    const start = at + ENTRY_HEAD;
    const end = start + bytes.readUInt16BE(at + ULID_CHARS);
    out.text(at === from ? '"' : ',"');
    out.copy(bytes, at, at + ULID_CHARS);
    out.text('":"');
    out.encoded('base64url', bytes, { start, end });
    out.text('"');
    at = end;
  }
  out.text('}');
}

function keysB(out: JsonWriter, { bytes }: ItemRow, { from, length }: Keys): void {
  out.text('[');
  for (let at = from; at < from + length;) {
    const start = at + ENTRY_HEAD;
    const end = start + bytes.readUInt16BE(at + ULID_CHARS);
    if (at > from) out.text(',');
    out.text(wrappedPiece('{"device_id":"'));
    out.copy(bytes, at, at + ULID_CHARS);
    out.text(wrappedPiece('","key":"'));
    out.encoded('base64', bytes, { start, end });
    out.text('"}');
    at = end;
  }
  out.text(']');
}

function masterText(out: JsonWriter, row: ItemRow, alphabet: Alphabet): void {
  out.text(masterPiece('{"nonce":'));
  fixed(out, row, MASTER_NONCE, alphabet);
  out.text(masterPiece(',"ct":'));
  fixed(out, row, MASTER_CT, alphabet);
  out.text('}');
}

/** `master` and `sig` of a live item, each with a leading comma, where they are present. */
function sealA(out: JsonWriter, row: ItemRow): void {
  if ((row.has & HAS.master) !== 0) {
    out.text(sealPiece(',"master":'));
    masterText(out, row, 'base64url');
  }
  if ((row.has & HAS.sig) === 0) return;
  out.text(sealPiece(',"sig":'));
  fixed(out, row, SIG, 'base64url');
}

function payloadA(out: JsonWriter, row: ItemRow): void {
  const inline = (row.has & HAS.inline) !== 0;
  if (inline) {
    out.text(fieldsPiece('"payloadEnc":'));
    out.text(envelopePiece('{"ct":'));
    ciphertext(out, row, 'base64url');
    out.text(envelopePiece(',"nonce":'));
    fixed(out, row, NONCE, 'base64url');
    out.text(envelopePiece(',"keys":'));
    keysA(out, row, ownKeys(row));
    sealA(out, row);
    out.text('}');
  } else out.text(fieldsPiece('"payloadEnc":null'));
  if (row.blobRef === null) out.text(fieldsPiece(',"blobRef":null,"blobNonce":null,"blobKeys":null'));
  else {
    out.text(fieldsPiece(`,"blobRef":"${row.blobRef}","blobNonce":`));
    fixed(out, row, BLOB_NONCE, 'base64url');
    out.text(fieldsPiece(',"blobKeys":'));
    keysA(out, row, blobKeys(row));
  }
  if (!inline) sealA(out, row);
}

/** `type` is the text that says the item's type: its key differs between row and frame, and it stands after the ids. */
function fieldsA(out: JsonWriter, row: ItemRow, type: string): void {
  out.text(fieldsPiece('"id":"'));
  out.text(row.id);
  out.text(fieldsPiece('","binId":"'));
  out.text(row.binId);
  out.text('",');
  out.text(type);
  quoted(out, row.type);
  out.text(fieldsPiece(',"senderDevice":'));
  quoted(out, row.senderDevice);
  out.text(fieldsPiece(`,"ts":${row.ts},"version":${row.version},"deletedAt":${row.deletedAt},`));
  if (row.deletedAt === null) return payloadA(out, row);
  out.text(fieldsPiece('"payloadEnc":null,"blobRef":null,"blobNonce":null,"blobKeys":null'));
  if ((row.has & HAS.sig) === 0) return;
  out.text(fieldsPiece(',"sig":'));
  fixed(out, row, SIG, 'base64url');
}

function tagB(out: JsonWriter, row: ItemRow): void {
  if ((row.has & HAS.sig) === 0) out.text('null');
  else fixed(out, row, SIG, 'base64');
}

function payloadB(out: JsonWriter, row: ItemRow): void {
  // A blob without metadata reads back as the specification writes it: its nonce and keys stand in the item's place.
  const inline = (row.has & HAS.inline) !== 0;
  out.text(rowPieceB('"ct":'));
  ciphertext(out, row, 'base64');
  out.text(rowPieceB(',"nonce":'));
  fixed(out, row, inline ? NONCE : BLOB_NONCE, 'base64');
  out.text(rowPieceB(',"wrapped":'));
  keysB(out, row, inline ? ownKeys(row) : blobKeys(row));
  out.text(rowPieceB(',"master":'));
  if ((row.has & HAS.master) === 0) out.text('null');
  else masterText(out, row, 'base64');
  out.text(rowPieceB(',"sig":'));
  tagB(out, row);
  if (row.blobRef === null) return out.text(rowPieceB(',"blob_ref":null,"blob_nonce":null,"blob_keys":null'));
  out.text(rowPieceB(`,"blob_ref":"${row.blobRef}","blob_nonce":`));
  fixed(out, row, BLOB_NONCE, 'base64');
  out.text(rowPieceB(',"blob_keys":'));
  keysB(out, row, blobKeys(row));
}

function fieldsB(out: JsonWriter, row: ItemRow): void {
  out.text(rowPieceB(`"id":"${row.id}","version":${row.version},"bin_id":"`));
  out.text(row.binId);
  out.text(rowPieceB('","type":'));
  quoted(out, row.type);
  out.text(rowPieceB(',"sender_device":'));
  quoted(out, row.senderDevice);
  out.text(rowPieceB(`,"ts":${row.ts},"deleted_at":${row.deletedAt},`));
  if (row.deletedAt === null) return payloadB(out, row);
  out.text(rowPieceB('"ct":null,"nonce":null,"wrapped":null,"master":null,"sig":'));
  tagB(out, row);
  out.text(rowPieceB(',"blob_ref":null,"blob_nonce":null,"blob_keys":null'));
}

/** More than what stands around a row's bytes in its text. */
const AROUND_ROW = 1_024;
/** A row's bytes are at most so many times as long as text: of a B blob without metadata nonce and keys are said twice. */
const TIMES_AS_TEXT = 4;

/** Begins the text of a row: `out.since` takes what this returns. */
const beginRow = (out: JsonWriter, { at, end }: ItemRow): number => out.begin(AROUND_ROW + TIMES_AS_TEXT * (end - at));

const listed = new JsonWriter();

/** An item as a row of `GET /items`, as JSON text. */
export function rowText(shape: Shape, row: ItemRow): string {
  listed.restart();
  const from = beginRow(listed, row);
  listed.text('{');
  if (shape === 'a') fieldsA(listed, row, typePieceA('"type":'));
  else fieldsB(listed, row);
  listed.text('}');
  return listed.since(from).toString('latin1');
}

/**
 * The frame that brings an item's latest state to a socket: `item`, or `delete` for a deleted one. A view of what `out` holds,
 * good until that restarts.
 */
export function frameBytes(out: JsonWriter, shape: Shape, row: ItemRow): Buffer {
  const from = beginRow(out, row);
  if (row.deletedAt !== null) {
    out.text(deletePiece(`{"type":"delete","id":"${row.id}","version":${row.version}`));
    if ((row.has & HAS.sig) !== 0) {
      out.text(deletePiece(',"sig":'));
      fixed(out, row, SIG, shape === 'a' ? 'base64url' : 'base64');
    }
    out.text('}');
  } else if (shape === 'b') {
    out.text(framePieceB('{"type":"item","item":{'));
    fieldsB(out, row);
    out.text('}}');
  } else {
    out.text(framePieceA('{"type":"item",'));
    fieldsA(out, row, framePieceA('"itemType":'));
    out.text('}');
  }
  return out.since(from);
}
