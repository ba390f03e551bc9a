/** The small client against the vectors, by the page on Vectors alone. Nothing of `src/` is used. */
import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { bodyOf, respelled } from './client.js';
import * as c from './cryptography.js';
import type { Keys, Pair, Reader, Sealed } from './cryptography.js';

type Json = Readonly<Record<string, unknown>>;
type Check = (input: Json) => Json;

interface Vector {
  readonly comment: string;
  readonly input: Json;
  readonly expected: Json;
  readonly valid: boolean;
}

const raw = (value: unknown): Buffer => Buffer.from(typeof value === 'string' ? value : '', 'hex');
const hex = (bytes: Buffer): string => bytes.toString('hex');
const text = (value: unknown): string => String(value);
const pairOf = (row: Json): Pair => ({ open: raw(row['publicKey']), secret: raw(row['secretKey']) });
const keysOf = (keys: unknown): Keys =>
  new Map(Object.entries((keys ?? {}) as Record<string, string>).map(([id, key]) => [id, raw(key)]));

function itemOf(row: Json): Sealed {
  const [inline, blob, master] = ['inline', 'blob', 'master'].map((name) => row[name] as Json | null);
  const { id, binId, type, ts, sig } = row as unknown as Record<'id' | 'binId' | 'type', string> & Json;
  return {
    ...{ id, binId, type, ts: Number(ts), ct: raw(inline?.['ct']), nonce: raw(inline?.['nonce']) },
    keys: keysOf(inline?.['keys']),
    master: master ? { nonce: raw(master['nonce']), ct: raw(master['ct']) } : null,
    sig: sig === null ? null : raw(sig),
    blob: blob ? { ref: text(blob['ref']), nonce: raw(blob['nonce']), keys: keysOf(blob['keys']) } : null,
  };
}

/** The reader of a vector; without a device, one whose id is in no item, so that only the master wrap opens it. */
function readerOf(input: Json): Reader {
  const device = input['device'] as Json | null;
  const pair = device ? pairOf(device) : c.newPair();
  return { master: raw(input['masterKey']), device: { id: text(device?.['id']), pair } };
}

const items: Check = (input) => {
  const [item, by] = [itemOf(input['item'] as Json), readerOf(input)];
  const { key, json } = c.openItem(item, by);
  const blob = input['blobCt'] === null ? null : hex(c.openBlob(raw(input['blobCt']), item, by));
  const moved = { ...item, binId: text(input['moveTo']) };
  return {
    aad: hex(Buffer.from(c.aadOf(item))),
    itemKey: hex(key),
    sigInput: hex(c.tagInput(item)),
    sig: hex(c.tag(item, by.master)),
    payload: json === null ? null : (JSON.parse(json) as unknown),
    blob,
    ...('moveTo' in input ? { movedSig: hex(c.tag(moved, by.master)) } : {}),
  };
};

const rewraps: Check = (input) => {
  const by = readerOf(input);
  const listed = input['devices'] as Json[];
  const devices = listed.map((row) => ({ id: text(row['id']), open: raw(row['publicKey']), cert: raw(row['cert']) }));
  const item = c.rewrap(itemOf(input['item'] as Json), by, c.certified(devices, by.master));
  const opened = (keys?: Keys): Json =>
    Object.fromEntries(
      [...(keys ?? [])].map(([id, sealed]) => {
        const device = listed.find((row) => row['id'] === id);
        return [id, device ? hex(c.openSeal(sealed, pairOf(device)) ?? Buffer.alloc(0)) : null];
      }),
    );
  return {
    keys: item.ct.length === 0 ? null : opened(item.keys),
    blobKeys: item.blob && opened(item.blob.keys),
    master: hex(c.openWrap(item.master, by.master) ?? Buffer.alloc(0)),
    tagHolds: item.sig !== null && c.equal(item.sig, c.tag(item, by.master)),
  };
};

const meetingOf = (row: Json): Omit<c.Meeting, 'code'> => ({
  ...{ host: text(row['host']), epk: raw(row['epk']), npk: raw(row['npk']) },
  ...{ deviceId: text(row['deviceId']), name: text(row['name']), glyph: text(row['glyph']) },
});
const codeIn = (row: Json): c.Code => ({ wire: text(row['wireCode']), key: raw(row['codeKey']) });

const pairing: Readonly<Record<string, Check>> = {
  link: (input) => {
    const meeting = { ...meetingOf(input), code: codeIn(input) };
    const { attestation, digits, secret } = c.linkOf(meeting, raw(input['nsk']), meeting.epk);
    return { transcript: hex(c.transcript(meeting)), secret: hex(secret), attestation: hex(attestation), digits };
  },
  judge: (input) => {
    const request = input['request'] as Json;
    const known = input['knownDevices'] as string[];
    const own = { code: codeIn(input), session: { open: raw(input['epk']), secret: raw(input['esk']) } };
    const { host, npk, deviceId, name, glyph } = meetingOf(request);
    const asked = { host, npk, deviceId, name, glyph, attestation: raw(request['attestation']) };
    const isKnown = (id: string): boolean => known.includes(id);
    return { attestation: hex(c.judge(asked, { ...own, host: text(input['ownHost']), isKnown }).attestation) };
  },
  accept: (input) => {
    const meeting = input['transcript'] as Json;
    const release = input['release'] as Json;
    const device = input['device'] as Json;
    const pair = { open: raw(meeting['npk']), secret: raw(input['secretKey']) };
    const own = { id: text(meeting['deviceId']), pair };
    c.expectOwn({ id: text(device['id']), pubkey: raw(device['publicKey']) }, own);
    const given = {
      wrapped: raw(release['wrappedMasterKey']),
      cert: raw(release['deviceCert']),
      confirmation: raw(release['confirmation']),
    };
    return { masterKey: hex(c.accept(given, c.confirming(raw(input['secret'])), own)) };
  },
};

const changed = (ct: Buffer, edit: Json): Buffer => {
  if (edit['keep'] !== undefined) return ct.subarray(0, Number(edit['keep']));
  if (edit['append'] !== undefined) return Buffer.concat([ct, raw(edit['append'])]);
  if (edit['flip'] !== undefined) return Buffer.from(ct.map((byte, at) => (at === edit['flip'] ? byte ^ 1 : byte)));
  const [one = 0, other = 0] = edit['exchange'] as number[];
  const size = 65_552;
  const all = Array.from({ length: Math.ceil(ct.length / size) }, (_, at) => ct.subarray(at * size, (at + 1) * size));
  [all[one], all[other]] = [all[other] ?? Buffer.alloc(0), all[one] ?? Buffer.alloc(0)];
  return Buffer.concat(all);
};

const blobs: Check = (input) => {
  const [key, nonce] = [raw(input['key']), raw(input['nonce'])];
  const head = { id: '', binId: '', type: text(input['type']), ts: Number(input['ts']) };
  const open = (ct: Buffer): Buffer => c.openPieces(ct, nonce, { key, aad: c.aadOf(head) });
  if (input['ct'] !== undefined) return { plain: hex(open(raw(input['ct']))) };
  const plain = Buffer.from(Uint8Array.from({ length: Number(input['length']) }, (_, at) => at % 251));
  const ct = c.sealBlob(plain, head, { key, nonce });
  const opened = open(((input['edits'] ?? []) as Json[]).reduce(changed, ct));
  const aad = hex(Buffer.from(c.aadOf(head)));
  return { aad, size: ct.length, sha256: c.sha256(ct), end: hex(ct.subarray(-16)), opened: opened.length };
};

function matching(given: unknown, made: Buffer, reason: string, name: string): Json {
  if (given === null) throw new Error('no_sig');
  if (!c.equal(raw(given), made)) throw new Error(reason);
  return { [name]: hex(made) };
}

/** A check for each file but primitives (libsodium's), recovery (a server's) and archive (not part of syncing). */
const CHECKS: Readonly<Record<string, Check>> = {
  lp: (input) => ({
    bytes: hex(
      c.lp(...(input['parts'] as Json[]).map((part) => ('text' in part ? text(part['text']) : raw(part['hex'])))),
    ),
  }),
  words: (input) => {
    const found = c.readWords(text(input['typed']), input['count'] === 6 ? 6 : 12);
    return { text: found, bytes: hex(c.bytesOfWords(found)) };
  },
  phrase: (input) => {
    const { master, recovery, seed, recoverySeed, itemMac } = c.keysOfPhrase(c.readWords(text(input['phrase']), 12));
    return {
      ...{ seed: hex(seed), masterKey: hex(master), itemMacKey: hex(itemMac), recoverySeed: hex(recoverySeed) },
      ...{ masterFingerprint: c.masterFingerprint(master).replaceAll(' ', ''), recoveryPubkey: hex(recovery.open) },
    };
  },
  password: (input) => {
    if (input['password'] === '') throw new Error('empty_password');
    return { sent: c.passwordOf(text(input['password']), text(input['tenantId'])) };
  },
  'pair-code': (input) => {
    const visibleCode = c.readWords(text(input['typed']), 6);
    const { wire, key, prk } = c.codeOf(visibleCode);
    return { visibleCode, prk: hex(prk), wireCode: wire, codeKey: hex(key) };
  },
  pairing: (input) => pairing[text(input['step'])]?.(input) ?? {},
  'device-cert': (input) => {
    const cert = c.certificate(raw(input['masterKey']), text(input['deviceId']), raw(input['publicKey']));
    const fingerprint = c.fingerprint(text(input['deviceId']), raw(input['publicKey'])).replaceAll(' ', '');
    return { ...matching(input['cert'] ?? '', cert, 'uncertified_device', 'cert'), fingerprint };
  },
  item: items,
  rewrap: rewraps,
  wire: (input) => {
    const item = itemOf(input['item'] as Json);
    const body = (shape: 'a' | 'b'): unknown =>
      JSON.parse(JSON.stringify(respelled({ ...bodyOf(item, shape), ifVersion: 0 }, shape)));
    return { a: body('a'), b: body('b') };
  },
  'item-delete': (input) =>
    matching(input['sig'], c.deleteTag(text(input['id']), raw(input['masterKey'])), 'bad_sig', 'sig'),
  reauth: (input) => {
    const ids = [text(input['tenantId']), text(input['deviceId']), text(input['challengeId'])] as const;
    const answer = c.answer(raw(input['challenge']), pairOf(input), ids);
    if (answer === undefined) throw new Error('bad_challenge');
    return { answer: hex(answer) };
  },
  'bin-meta': (input) => ({
    meta: JSON.parse(c.openMeta(raw(input['sealed']), text(input['binId']), raw(input['masterKey']))) as unknown,
  }),
  blob: blobs,
};

function cameOut(check: Check, { input, expected, valid }: Vector): boolean {
  try {
    const found = check(input);
    return valid && isDeepStrictEqual(found, expected);
  } catch (error) {
    return !valid && error instanceof Error && error.message === expected['reason'];
  }
}

/** Runs the vectors of a folder, or of one of its files: those that failed, and how many passed. */
export function tried(folder: string, only?: string): { readonly failed: readonly string[]; readonly passed: number } {
  const failed: string[] = [];
  let passed = 0;
  for (const [file, check] of Object.entries(CHECKS)) {
    if (only !== undefined && only !== file) continue;
    for (const vector of JSON.parse(readFileSync(`${folder}/${file}.json`, 'utf8')) as Vector[]) {
      if (cameOut(check, vector)) passed++;
      else failed.push(`${file}: ${vector.comment}`);
    }
  }
  return { failed, passed };
}
