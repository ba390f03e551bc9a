/** True replies and frames, and every way to break one field of them. */
import type { DeviceApi, PublicApi } from '../../src/sdk/api.js';
import { newId } from '../support/client.js';
import type { Json } from './proxy.js';

/** Values that replace a field; `undefined`: the field is left out. */
const BROKEN: readonly unknown[] = [
  undefined,
  null,
  true,
  0,
  -1,
  0.5,
  2 ** 53,
  '',
  'x',
  '\u202e\u0000\ud800',
  'A'.repeat(70_000),
  [],
  [[]],
  {},
  { __proto__: null, toString: 1, length: -1 },
];

type Path = readonly (string | number)[];

/** The paths of all fields of a value; of a list only those of the first entry. */
function pathsOf(value: unknown, at: Path = []): Path[] {
  if (Array.isArray(value)) return value.length === 0 ? [] : [[...at, 0], ...pathsOf(value[0], [...at, 0])];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([key, inner]) => [[...at, key], ...pathsOf(inner, [...at, key])]);
}

const typeOf = (value: unknown): string => (Array.isArray(value) ? 'array' : typeof (value ?? undefined));

/** Null and an absent field are of no type: many fields may be absent. */
const isOfOtherType = (truth: unknown, by: unknown): boolean =>
  new Set(['undefined', typeOf(truth), typeOf(by)]).size === 3;

const valueAt = (value: unknown, path: Path): unknown =>
  path.reduce<unknown>((inner, step) => (inner as Record<string | number, unknown>)[step], value);

/** A value with one field broken. */
interface Broken {
  readonly where: string;
  readonly json: string;
  /** The field has a value of another type than in the true answer. */
  readonly wrongType: boolean;
}

function replaced(value: unknown, [step, ...rest]: Path, by: unknown): unknown {
  if (step === undefined) return by;
  const copy: unknown = Array.isArray(value) ? [...(value as unknown[])] : { ...(value as Json) };
  const inner = (copy as Record<string | number, unknown>)[step];
  (copy as Record<string | number, unknown>)[step] = replaced(inner, rest, by);
  return copy;
}

/** The value with one field broken, for each field and each broken value; first, broken values instead of the whole. */
export function* broken(value: Json): Generator<Broken> {
  for (const by of BROKEN.slice(1))
    yield { where: 'all', json: JSON.stringify(by), wrongType: isOfOtherType(value, by) };
  for (const path of pathsOf(value)) {
    const truth = valueAt(value, path);
    for (const by of BROKEN) {
      const json = JSON.stringify(replaced(value, path, by));
      yield { where: path.join('.'), json, wrongType: isOfOtherType(truth, by) };
    }
  }
}

const bytes = (length: number): string => Buffer.alloc(length, 7).toString('base64url');
const id = newId();
const device = { id, name: 'One', glyph: 'phone', pubkey: bytes(32), pairedAt: 1 };
const entry = { ...device, cert: bytes(32), revokedAt: null, lastSeenAt: 1, online: true, current: false };
const bin = { id: 'inbox', slug: 'inbox', meta: bytes(60), createdAt: 1, updatedAt: 1, itemCount: 0 };
const wrap = { nonce: bytes(24), ct: bytes(48) };
const payload = {
  payloadEnc: { ct: bytes(40), nonce: bytes(24), keys: { [id]: bytes(80) }, master: wrap, sig: bytes(32) },
  blobRef: `${id}.bin`,
  blobNonce: bytes(24),
  blobKeys: { [id]: bytes(80) },
};
const head = { id, binId: 'inbox', ts: 1_700_000_000_000, senderDevice: id, version: 1, deletedAt: null };
const pairing = {
  code: 'code',
  deviceId: id,
  host: 'h',
  pubkey: bytes(32),
  name: 'N',
  glyph: 'phone',
  attestation: bytes(32),
};
const server = {
  version: '1',
  region: 'r',
  storageUsedBytes: 0,
  storageCapBytes: 0,
  itemCount: 0,
  deviceCount: 1,
  devicesOnline: 0,
  headVersion: 1,
  versionSum: 1,
  epoch: 'e',
};
const stored = { id, version: 1 };
const joined = { device, token: 'token' };
const upload = {
  blobRef: `${id}.bin`,
  size: 5,
  offset: 0,
  expiresAt: 1,
  parts: [{ from: 0, size: 5, url: 'https://store.example/x', headers: {} }],
};

/** The API without a token, and with one. */
export interface Apis {
  readonly open: PublicApi;
  readonly own: DeviceApi;
}

/** A call, and a true answer to it. */
interface Sample {
  readonly name: string;
  readonly reply: Json;
  readonly call: (apis: Apis) => Promise<unknown>;
}

const nothing = new Uint8Array(32);
const pairBody = { code: 'c', pubkey: bytes(32), name: 'n', glyph: 'phone', attestation: bytes(32) } as const;

export const SAMPLES: readonly Sample[] = [
  {
    name: 'GET /service/status',
    reply: { version: '1', mode: 'single', claimed: true, tenantId: 't', epoch: 'e', database: 'up' },
    call: ({ open }) => open.status(),
  },
  {
    name: 'POST /devices/bootstrap',
    reply: joined,
    call: ({ open }) => open.bootstrap({ name: 'n', glyph: 'phone', pubkey: bytes(32) }),
  },
  {
    name: 'POST /devices/pair-fetch-epk',
    reply: { epk: bytes(32), expiresAt: 1, tenantId: 't' },
    call: ({ open }) => open.pairFetchEpk('c'),
  },
  {
    name: 'POST /devices/pair-fetch-npk',
    reply: { ...joined, wrappedMasterKey: bytes(80), deviceCert: bytes(32), confirmation: bytes(32) },
    call: ({ open }) => open.pairFetchNpk(pairBody),
  },
  {
    name: 'POST /devices/reauth/challenge',
    reply: { challengeId: 'c', challenge: bytes(200) },
    call: ({ open }) => open.reauthChallenge(id),
  },
  {
    name: 'POST /devices/reauth',
    reply: { token: 't', expiresAt: 1 },
    call: ({ open }) => open.reauth({ deviceId: id, challengeId: 'c', answer: nothing }),
  },
  {
    name: 'POST /devices/recover/challenge',
    reply: { challengeId: 'c', challenge: bytes(32), tenantId: 't' },
    call: ({ open }) => open.recoverChallenge(),
  },
  { name: 'GET /password/exists', reply: { exists: true }, call: ({ open }) => open.passwordExists() },
  { name: 'POST /password/verify', reply: { ticket: 't' }, call: ({ open }) => open.passwordTicket('p', nothing) },
  {
    name: 'GET /me',
    reply: { device: { id, name: 'n', glyph: 'phone', pairedAt: 1 }, server },
    call: ({ own }) => own.me(),
  },
  { name: 'POST /ws-ticket', reply: { ticket: 't' }, call: ({ own }) => own.ticket() },
  { name: 'POST /items', reply: stored, call: ({ own }) => own.write('{}', null) },
  {
    name: 'POST /items/batch',
    reply: { results: [stored] },
    call: ({ own }) => own.batch([], null),
  },
  {
    name: 'POST /items/batch, refused',
    reply: { results: [{ id, error: { code: 'validation', message: 'm', details: {} } }] },
    call: ({ own }) => own.batch([], null),
  },
  { name: 'DELETE /items/:id', reply: stored, call: ({ own }) => own.remove(id, nothing, null) },
  {
    name: 'POST /items/:id/reconcile',
    reply: stored,
    call: ({ own }) => own.move(id, { binId: 'b', version: 1, sig: nothing }, null),
  },
  {
    name: 'GET /items',
    reply: { items: [{ ...head, type: 'text', ...payload }], nextSince: 1, hasMore: false, epoch: 'e', reset: false },
    call: ({ own }) => own.page({ since: 0, epoch: null }),
  },
  { name: 'GET /devices', reply: { devices: [entry] }, call: ({ own }) => own.devices() },
  {
    name: 'POST /devices/pair-init',
    reply: { lookupId: 'l', code: 'c', expiresAt: 1 },
    call: ({ own }) => own.pairInit('c', nothing),
  },
  { name: 'GET /devices/pair-requests', reply: { requests: [pairing] }, call: ({ own }) => own.pairRequests() },
  { name: 'GET /bins', reply: { bins: [bin] }, call: ({ own }) => own.bins() },
  { name: 'POST /bins', reply: { bin }, call: ({ own }) => own.createBin({ id: 'inbox' }) },
  { name: 'PATCH /bins/:id', reply: { bin }, call: ({ own }) => own.patchBin('inbox', {}) },
  {
    name: 'POST /uploads',
    reply: upload,
    call: ({ own }) => own.beginUpload({ contentLength: 5, contentType: 'a/b' }),
  },
  { name: 'POST /uploads/:ref', reply: upload, call: ({ own }) => own.continueUpload(`${id}.bin`) },
  {
    name: 'GET /blobs/:ref/url',
    reply: { url: 'https://store.example/x', expiresAt: 1, size: 5 },
    call: ({ own }) => own.downloadUrl(`${id}.bin`),
  },
];

/** One frame of every kind. Their versions are below any head, so that none acknowledges a later change. */
export const FRAMES: readonly Json[] = [
  { ...head, ...payload, type: 'item', itemType: 'text' },
  { type: 'delete', id, version: 1, sig: bytes(32) },
  { type: 'ack', id, version: 1 },
  { type: 'caught_up', version: 1, epoch: 'e', itemCount: 1, versionSum: 1 },
  { type: 'reset', epoch: 'e' },
  { type: 'pair_request', ...pairing },
  { type: 'device_joined', device },
  { type: 'device_revoked', id },
  { type: 'bin', bin },
  { type: 'error', code: 'validation', message: 'm' },
  { type: 'ping' },
];
