/** Devices, items and changes for tests below the wire: what they hold is opaque to the server, so it is made up. */
import { createHash } from 'node:crypto';
import { ServiceError, type ErrorName } from '../../src/protocol/errors.js';
import type { Blob, Inline, ItemWrite, MasterWrap, SealedKeys } from '../../src/protocol/item.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import type { ItemBodyA } from '../../src/protocol/requests.js';
import { Arena, type Change } from '../../src/server/tenant/change.js';
import { decodeWriteA, tagged } from '../../src/server/tenant/decode.js';
import type { TenantActor } from '../../src/server/http/ports.js';
import { keysA } from './item-text.js';

/** Ids that fit the form of a ULID and say what they are. */
export const deviceId = (n: number): string => `D${n}`.padStart(26, '0');
export const itemId = (n: number): string => `T${n}`.padStart(26, '0');
export const blobRef = (n: number): string => `${`B${n}`.padStart(26, '0')}.bin`;

export const TS = 1_700_000_000_000;
export const BIN = 'inbox';
export const OTHER_BIN = 'other';

/** `length` bytes that are the same for the same name, and others for another. */
export function bytes(name: string, length: number): Uint8Array {
  const out = Buffer.alloc(length);
  const seed = createHash('sha256').update(name).digest();
  for (let at = 0; at < length; at += seed.length) seed.copy(out, at);
  return out;
}

export const keysFor = (devices: readonly string[], label = 'key'): SealedKeys =>
  new Map(devices.map((device) => [device, bytes(`${label} ${device}`, 80)]));

export const master = (label = 'master'): MasterWrap => ({
  nonce: bytes(`${label} nonce`, 24),
  ct: bytes(`${label} ct`, 48),
});

export const sig = (label: string): Uint8Array => bytes(`sig ${label}`, 32);

export const inline = (text: string, devices: readonly string[] = [deviceId(1)], ctBytes = 40): Inline => ({
  ct: bytes(`ct ${text}`, ctBytes),
  nonce: bytes(`nonce ${text}`, 24),
  keys: keysFor(devices),
});

export const blob = (ref: string, devices: readonly string[] = [deviceId(1)]): Blob => ({
  ref,
  nonce: bytes(`blob nonce ${ref}`, 24),
  keys: keysFor(devices, 'blob key'),
});

/** A write of a short text; what is given replaces its part. */
export const writeOf = (given: Partial<ItemWrite> & { readonly text?: string } = {}): ItemWrite => {
  const { text = 'one', ...rest } = given;
  return {
    id: itemId(1),
    binId: BIN,
    type: 'text',
    ts: TS,
    ifVersion: null,
    inline: inline(text),
    blob: null,
    master: null,
    sig: sig(text),
    ...rest,
  };
};

export interface ChangeContext {
  readonly tenantId: string;
  readonly generation?: number;
  readonly deviceId?: string;
  readonly refused?: boolean;
  readonly refusedFor?: Change['refusedFor'];
}

/** Where the changes of tests lie. */
/** Who can read what `textWrite` makes. */
export const BOTH = [deviceId(1), deviceId(2)];
/** A write of item `n`, for two devices. */
export const textWrite = (n: number, label = `text ${n}`): ItemWrite =>
  writeOf({ id: itemId(n), ts: TS + n, text: label, inline: inline(label, BOTH) });

export const arena = new Arena(1024 * 1024 * 1024);

/** The body of shape A that asks for a write. */
export function bodyOf({ id, binId, type, ts, ifVersion, inline, blob, master, sig }: ItemWrite): ItemBodyA {
  const seal = {
    master: master && { nonce: toBase64Url(master.nonce), ct: toBase64Url(master.ct) },
    sig: sig && toBase64Url(sig),
  };
  const envelope = inline && {
    ct: toBase64Url(inline.ct),
    nonce: toBase64Url(inline.nonce),
    keys: keysA(inline.keys),
    ...seal,
  };
  const ofBlob = blob && { blobRef: blob.ref, blobNonce: toBase64Url(blob.nonce), blobKeys: keysA(blob.keys) };
  return { id, binId, type, ts, ifVersion, payloadEnc: envelope, ...ofBlob, ...(envelope === null ? seal : {}) };
}

function inContext(change: Change, context: ChangeContext): Change {
  const { tenantId, generation = 1, deviceId: device = deviceId(1), refused = false, refusedFor = 'all' } = context;
  const refusal = refused ? new ServiceError('forbidden') : null;
  return Object.assign(change, {
    tenantId,
    generation,
    senderDevice: device,
    changedBy: device,
    refusal,
    refusedFor,
  });
}

/** The write as the actor hands it to the commit. */
export const writeChange = (write: ItemWrite, context: ChangeContext): Change =>
  inContext(decodeWriteA(arena, bodyOf(write), 'never'), context);

const tagText = (tag: Uint8Array | null): string | null => tag && toBase64Url(tag);

export const deleteChange = (id: string, tag: Uint8Array | null, context: ChangeContext): Change =>
  inContext(Object.assign(tagged(arena, 'delete', tagText(tag)), { id }), context);

export const moveChange = (
  move: { readonly id: string; readonly binId: string; readonly version: number; readonly sig: Uint8Array },
  context: ChangeContext,
): Change => {
  const { id, binId, version: ifVersion } = move;
  return inContext(Object.assign(tagged(arena, 'move', tagText(move.sig)), { id, binId, ifVersion }), context);
};

/** Has a write stored by an actor. Rejects with what it is refused with. */
export function write(actor: Pick<TenantActor, 'arena' | 'submit'>, what: ItemWrite, device: string): Promise<Change> {
  return new Promise((resolve, reject) => {
    const change = decodeWriteA(actor.arena, bodyOf(what), 'never');
    change.reply = { stored: resolve, refused: reject };
    actor.submit(change, device);
  });
}

/** The name of the error that a promise is refused with; anything else is passed on. */
export async function refusal(promise: Promise<unknown>): Promise<ErrorName | 'none'> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof ServiceError) return error.error;
    throw error;
  }
  return 'none';
}
