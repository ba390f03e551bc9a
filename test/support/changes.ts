/** Devices, items and changes for tests below the wire: what they hold is opaque to the server, so it is made up. */
import { createHash } from 'node:crypto';
import { ServiceError, type ErrorName } from '../../src/protocol/errors.js';
import type { Blob, Inline, ItemWrite, MasterWrap, SealedKeys } from '../../src/protocol/item.js';
import { Packed } from '../../src/tenant/packed.js';
import type { Change } from '../../src/tenant/ports.js';

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
  readonly refusedForBin?: boolean;
}

const contextOf = ({
  tenantId,
  generation = 1,
  deviceId: device = deviceId(1),
  refused = false,
  refusedForBin = false,
}: ChangeContext) => ({
  tenantId,
  generation,
  deviceId: device,
  refused,
  refusedForBin,
});

/** The write as the actor hands it to the commit. */
export const writeChange = (write: ItemWrite, context: ChangeContext): Change => ({
  ...contextOf(context),
  kind: 'write',
  id: write.id,
  binId: write.binId,
  ifVersion: write.ifVersion,
  write,
  type: write.type,
  sig: write.sig,
  packed: Packed.write(write),
});

const NO_WRITE = { write: null, type: null } as const;

export const deleteChange = (id: string, tag: Uint8Array | null, context: ChangeContext): Change => ({
  ...contextOf(context),
  ...NO_WRITE,
  kind: 'delete',
  id,
  binId: null,
  ifVersion: null,
  sig: tag,
  packed: Packed.tag(tag),
});

export const moveChange = (
  move: { readonly id: string; readonly binId: string; readonly version: number; readonly sig: Uint8Array },
  context: ChangeContext,
): Change => ({
  ...contextOf(context),
  ...NO_WRITE,
  kind: 'move',
  id: move.id,
  binId: move.binId,
  ifVersion: move.version,
  sig: move.sig,
  packed: Packed.tag(move.sig),
});

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
