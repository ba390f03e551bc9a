/** A tenant with fixed keys, which the pages show byte for byte, computed by the independent implementations. */
import { boxKeys, fixed } from './cases.js';
import {
  aead,
  argon2,
  auth,
  b32,
  bip39Seed,
  ed25519Public,
  hex,
  hmacSha256,
  join,
  lp,
  seal,
  secretbox,
  utf8,
  words,
  x25519,
  type Bytes,
} from './reference.js';

const PHRASE = words(fixed('example phrase', 16));
const seed = bip39Seed(PHRASE);
const MASTER = await argon2(32, seed, utf8('service/v1/master-salt'));
const recoverySeed = await argon2(32, seed, utf8('service/v1/recovery-salt'));

/** The device that claims, and the one that is paired. */
export const FIRST = {
  id: '01JAB0F1RST000000000000001',
  name: 'Laptop',
  glyph: 'laptop',
  keys: boxKeys('example first'),
};
export const SECOND = {
  id: '01JAB0SEC0ND00000000000002',
  name: 'Käthe 📱',
  glyph: 'phone',
  keys: boxKeys('example second'),
};
type Named = Pick<typeof FIRST, 'id' | 'keys'>;

export const base64url = (bytes: Bytes): string => Buffer.from(bytes).toString('base64url');
const base64 = (bytes: Bytes): string => Buffer.from(bytes).toString('base64');

const certKey = b32(utf8('service-device-cert-v1'), MASTER);
export const certOf = ({ id, keys }: Named): Bytes => auth(lp('service-device-v1', id, keys.publicKey), certKey);
export const RECOVERY_PUBKEY = ed25519Public(recoverySeed);

// The item.

const HEAD = { id: '01JAB0JTEM0000000000000042', binId: 'inbox', type: 'text', ts: 1_760_000_000_123 };
const PAYLOAD = '{"text":"Grüße"}';
const AAD = `${HEAD.type}|${HEAD.ts}`;
const itemKey = fixed('example item key');
const nonce = fixed('example nonce', 24);
const ct = aead(utf8(PAYLOAD), { aad: utf8(AAD), nonce, key: itemKey });
const sealed = seal(itemKey, FIRST.keys.publicKey, fixed('example ephemeral'));
const wrapNonce = fixed('example wrap nonce', 24);
const wrap = secretbox(itemKey, wrapNonce, MASTER);
const macKey = b32(MASTER, utf8('service-item-mac-v1'));
const sigInput = lp('service-item-sig-v1', HEAD.id, HEAD.binId, HEAD.type, String(HEAD.ts), ct, nonce);
const sig = auth(sigInput, macKey);

export const BODY_A = {
  ...HEAD,
  payloadEnc: {
    ct: base64url(ct),
    nonce: base64url(nonce),
    keys: { [FIRST.id]: base64url(sealed) },
    master: { nonce: base64url(wrapNonce), ct: base64url(wrap) },
    sig: base64url(sig),
  },
  ifVersion: 0,
};
const BODY_B = {
  id: HEAD.id,
  bin_id: HEAD.binId,
  type: HEAD.type,
  ts: HEAD.ts,
  ct: base64(ct),
  nonce: base64(nonce),
  wrapped: [{ device_id: FIRST.id, key: base64(sealed) }],
  master: { nonce: base64(wrapNonce), ct: base64(wrap) },
  sig: base64(sig),
  if_version: 0,
};

// The pairing.

const VISIBLE = words(fixed('example code', 8));
const prk = await argon2(64, utf8(VISIBLE), utf8('service-pair-salt-v1'));
export const WIRE_CODE = words(b32(utf8('service-pair-lookup-v1'), prk).subarray(0, 8));
const codeKey = b32(utf8('service-pair-code-v1'), prk);
const OFFER = boxKeys('example session');
export const HOST = 'sync.example.org';
const transcript = lp(
  ...(['service-pair-v1', WIRE_CODE, HOST, OFFER.publicKey, SECOND.keys.publicKey] as const),
  ...([SECOND.id, SECOND.name, SECOND.glyph] as const),
);
const secret = b32(lp(transcript, x25519(OFFER.secretKey, SECOND.keys.publicKey)), codeKey);
const digitsHash = Buffer.from(b32(transcript, secret));
const wrappedMasterKey = seal(MASTER, SECOND.keys.publicKey, fixed('example release'));
const deviceCert = certOf(SECOND);

export const EPK = base64url(OFFER.publicKey);
export const ATTESTATION = base64url(hmacSha256(join(SECOND.keys.publicKey, OFFER.publicKey), secret));
export const RELEASE = {
  wrappedMasterKey: base64url(wrappedMasterKey),
  deviceCert: base64url(deviceCert),
  confirmation: base64url(hmacSha256(lp('confirm', wrappedMasterKey, deviceCert), secret)),
};

// The sections of the pages.

/** A bar would end the cell, in code too. */
const row = (name: string, value: string): string => `| ${name} | \`${value.replaceAll('|', '\\|')}\` |`;
const table = (rows: readonly (readonly [string, string])[]): string =>
  ['| | Hex, or text |', '| --- | --- |', ...rows.map(([name, value]) => row(name, value))].join('\n');
const json = (value: unknown): string => `\`\`\`json\n${JSON.stringify(value, null, 2)}\n\`\`\``;

/** A section of the page on Cryptography. */
export const ITEM_SECTION = `## One item, byte for byte

A note of a tenant with one device, with what comes up on the way. Random bytes are fixed here; a client draws them. The same
phrase, device and item stand in the [transcripts](pairing.md#claiming-word-for-word).

${table([
  ['phrase', PHRASE],
  ['master key', hex(MASTER)],
  ['MAC key', hex(macKey)],
  ['device id', FIRST.id],
  ["device's secret key", hex(FIRST.keys.secretKey)],
  ["device's public key", hex(FIRST.keys.publicKey)],
  ['payload', PAYLOAD],
  ['AAD', AAD],
  ['item key (random)', hex(itemKey)],
  ['nonce (random)', hex(nonce)],
  ['`ct`', hex(ct)],
  ['`keys`, the one entry', hex(sealed)],
  ['nonce of `master` (random)', hex(wrapNonce)],
  ['ct of `master`', hex(wrap)],
  ['tag input', hex(sigInput)],
  ['`sig`', hex(sig)],
  ["tag of the item's delete", hex(auth(lp('service-item-delete-v1', HEAD.id), macKey))],
])}

The body of \`POST /api/items\` in shape A:

${json(BODY_A)}

The same in shape B:

${json(BODY_B)}
`;

/** Of the page on Pairing: what both sides compute. */
export const PAIRING_VALUES = table([
  ['visible words', VISIBLE],
  ['prk', hex(prk)],
  ['wire code', WIRE_CODE],
  ['codeKey', hex(codeKey)],
  ["E's session secret key", hex(OFFER.secretKey)],
  ["N's device secret key", hex(SECOND.keys.secretKey)],
  ['T', hex(transcript)],
  ['secret', hex(secret)],
  ['digits', String(digitsHash.readUInt32BE() % 1_000_000).padStart(6, '0')],
]);
