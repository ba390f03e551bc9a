/** Vectors of items in their three forms, deletes and bin meta. */
import { boxKeys, fixed, LAPTOP, MASTER_KEY, PHONE, refused, spoilt, valid, type Vector } from './cases.js';
import { certOf } from './cases-devices.js';
import { aead, auth, b32, hex, lp, seal, secretbox, utf8, join, type Bytes } from './reference.js';

const HEAD = { id: '01JAB0JTEM0000000000000001', binId: 'inbox', ts: 1_760_000_000_123 };
const BLOB_REF = '01JAB0B10B0000000000000001.bin';
const MAC_KEY = b32(MASTER_KEY, utf8('service-item-mac-v1'));

/** An item in the vectors' own neutral form: bytes in hex, neither of the wire shapes. */
interface Row {
  id: string;
  binId: string;
  type: string;
  ts: number;
  inline: { ct: string; nonce: string; keys: Record<string, string> } | null;
  blob: { ref: string; nonce: string; keys: Record<string, string> } | null;
  master: { nonce: string; ct: string } | null;
  sig: string | null;
}

const raw = (value: string): Bytes => new Uint8Array(Buffer.from(value, 'hex'));

function tagInput(row: Omit<Row, 'sig'>): Bytes {
  const parts: (string | Bytes)[] = ['service-item-sig-v1', row.id, row.binId, row.type, String(row.ts)];
  parts.push(raw(row.inline?.ct ?? ''), raw(row.inline?.nonce ?? ''));
  if (row.blob !== null) {
    // The ids here are ASCII, so the order of text is the order of bytes.
    const ids = Object.keys(row.blob.keys).sort();
    parts.push(row.blob.ref, raw(row.blob.nonce), String(ids.length));
    for (const id of ids) parts.push(id, raw(row.blob.keys[id] ?? ''));
  }
  return lp(...parts);
}

const signed = (row: Omit<Row, 'sig'>): Row => ({ ...row, sig: hex(auth(tagInput(row), MAC_KEY)) });

const sealedFor = (key: Bytes, label: string): Record<string, string> => ({
  // In descending order of ids: a client that does not sort them gets another tag.
  [PHONE.id]: hex(seal(key, PHONE.keys.publicKey, fixed(`${label} phone`))),
  [LAPTOP.id]: hex(seal(key, LAPTOP.keys.publicKey, fixed(`${label} laptop`))),
});

interface Plain {
  readonly type: string;
  readonly payload: string | null;
  readonly blob: Bytes | null;
}

interface Made {
  readonly plain: Plain;
  readonly row: Row;
  readonly key: Bytes;
  readonly blobCt: string | null;
}

function make(label: string, plain: Plain): Made {
  const { type, payload, blob } = plain;
  const key = fixed(`${label} item key`);
  const nonce = fixed(`${label} nonce`, 24);
  const blobNonce = fixed(`${label} blob nonce`, 24);
  const aad = utf8(`${type}|${HEAD.ts}`);
  const masterNonce = fixed(`${label} master nonce`, 24);
  const row = signed({
    ...HEAD,
    type,
    inline:
      payload === null
        ? null
        : { ct: hex(aead(utf8(payload), { aad, nonce, key })), nonce: hex(nonce), keys: sealedFor(key, label) },
    blob: blob === null ? null : { ref: BLOB_REF, nonce: hex(blobNonce), keys: sealedFor(key, `${label} blob`) },
    master: { nonce: hex(masterNonce), ct: hex(secretbox(key, masterNonce, MASTER_KEY)) },
  });
  return { plain, row, key, blobCt: blob === null ? null : hex(aead(blob, { aad, nonce: blobNonce, key })) };
}

const inHex = ({ id, keys }: typeof LAPTOP): Record<string, unknown> => ({
  id,
  publicKey: hex(keys.publicKey),
  secretKey: hex(keys.secretKey),
});

const reading = (
  item: Row,
  blobCt: string | null = null,
  device: unknown = inHex(LAPTOP),
): Record<string, unknown> => ({
  masterKey: hex(MASTER_KEY),
  device,
  item,
  blobCt,
});

const TEXT = '{"text":"Grüße, 世界 🔑","n":1}';
const METADATA = '{"name":"notes.pdf","size":12,"mime":"application/pdf"}';
const CONTENT = utf8('blob content');

/** What a reader gets of an item. */
function opening({ plain, row, key }: Made): Record<string, unknown> {
  return {
    aad: hex(utf8(`${row.type}|${row.ts}`)),
    itemKey: hex(key),
    sigInput: hex(tagInput(row)),
    sig: row.sig,
    payload: plain.payload === null ? null : (JSON.parse(plain.payload) as unknown),
    blob: plain.blob === null ? null : hex(plain.blob),
  };
}

/** Each field that the tag covers, changed on its own under the original `sig`. */
function tampered(made: Made): Vector[] {
  const { row, blobCt } = made;
  const changed = (comment: string, change: Partial<Row>): Vector =>
    refused(comment, reading({ ...row, ...change }, blobCt), 'bad_sig');
  const cases = [
    changed('another id', { id: '01JAB0JTEM0000000000000002' }),
    changed('another bin', { binId: 'other' }),
    changed('another type', { type: 'link' }),
    changed('another ts', { ts: row.ts + 1 }),
    changed('an altered sig', { sig: spoilt(row.sig ?? '') }),
    changed('a short sig', { sig: (row.sig ?? '').slice(2) }),
  ];
  const { inline, blob } = row;
  if (inline !== null) {
    cases.push(changed('altered ct', { inline: { ...inline, ct: spoilt(inline.ct) } }));
    cases.push(changed('altered nonce', { inline: { ...inline, nonce: spoilt(inline.nonce) } }));
  }
  if (blob !== null) {
    const { [PHONE.id]: phone = '', [LAPTOP.id]: laptop = '' } = blob.keys;
    cases.push(changed('another blob', { blob: { ...blob, ref: '01JAB0B10B0000000000000002.bin' } }));
    cases.push(changed('altered blob nonce', { blob: { ...blob, nonce: spoilt(blob.nonce) } }));
    cases.push(changed('a blob key left out', { blob: { ...blob, keys: { [LAPTOP.id]: laptop } } }));
    cases.push(
      changed('an altered blob key', { blob: { ...blob, keys: { ...blob.keys, [PHONE.id]: spoilt(phone) } } }),
    );
    cases.push(changed('blob keys exchanged', { blob: { ...blob, keys: { [PHONE.id]: laptop, [LAPTOP.id]: phone } } }));
    cases.push(changed('the blob taken away', { blob: null }));
    if (inline !== null) cases.push(changed('the metadata taken away', { inline: null }));
  }
  return cases.map((vector) => ({ ...vector, comment: `${row.type}: ${vector.comment}` }));
}

const FOREIGN_KEY = fixed('foreign item key');
/** The master wrap of another item. The tag does not cover it, and it opens, but to a key that is not this item's. */
const FOREIGN = {
  nonce: hex(fixed('foreign nonce', 24)),
  ct: hex(secretbox(FOREIGN_KEY, fixed('foreign nonce', 24), MASTER_KEY)),
};

/** Items into which the server put keys of another item, and which open nevertheless. */
function mixed(text: Made, image: Made, file: Made): Vector[] {
  const inline = opening(text);
  const strange = { [LAPTOP.id]: hex(seal(FOREIGN_KEY, LAPTOP.keys.publicKey, fixed('foreign seal'))) };
  const given = text.row.inline ?? { ct: '', nonce: '', keys: {} };
  const meta = file.row.inline ?? given;
  return [
    valid(
      "the master wrap is another item's: it opens, and decrypts nothing; the own key is next",
      reading({ ...text.row, master: FOREIGN }),
      inline,
    ),
    valid(
      "the own key is another item's: it opens, and decrypts nothing; the master wrap does",
      reading({ ...text.row, inline: { ...given, keys: strange } }),
      inline,
    ),
    valid(
      "blob only, with another item's master wrap: the own key of `blobKeys`, which the tag covers, comes first",
      reading({ ...image.row, master: FOREIGN }, image.blobCt),
      opening(image),
    ),
    valid(
      "blob with metadata, with another item's master wrap and inline key: the own key of `blobKeys` opens both",
      reading({ ...file.row, master: FOREIGN, inline: { ...meta, keys: strange } }, file.blobCt),
      opening(file),
    ),
  ];
}

const TABLET = { id: '01JAB0DEV1CE00000000000004', keys: boxKeys('tablet') };
const active = (device: typeof LAPTOP): Record<string, unknown> => ({
  ...inHex(device),
  cert: hex(certOf(MASTER_KEY, device.id, device.keys.publicKey)),
});

/**
 * rewrap.json: a device re-wraps for one that joined, after another was revoked. Sealed boxes are random, so the
 * devices' secret keys are given, and each device opens its own box.
 */
export function rewraps(): Vector[] {
  const { text, image, file } = made();
  const devices = [active(LAPTOP), active(TABLET)];
  const input = (row: Row, over: object = {}): Record<string, unknown> => ({ ...reading(row), devices, ...over });
  const keyed = ({ key }: Made): Record<string, string> => ({ [LAPTOP.id]: hex(key), [TABLET.id]: hex(key) });
  const expected = (one: Made, master = one.key): Record<string, unknown> => ({
    keys: one.row.inline === null ? null : keyed(one),
    blobKeys: one.row.blob === null ? null : keyed(one),
    master: hex(master),
    tagHolds: true,
  });
  const lone = image.row.blob ?? { ref: '', nonce: '', keys: {} };
  const notOwn = signed({ ...image.row, blob: { ...lone, keys: { [PHONE.id]: lone.keys[PHONE.id] ?? '' } } });
  const { cert: _, ...uncertified } = active(TABLET);
  return [
    valid(
      'inline: the device that joined gets a key, that of the revoked one is gone',
      input(text.row),
      expected(text),
    ),
    valid('inline, without a master wrap: one is made', input(signed({ ...text.row, master: null })), expected(text)),
    valid('blob only: `blobKeys` without the revoked device, and the tag made anew', input(image.row), expected(image)),
    valid('blob with metadata: both lists, and the tag made anew', input(file.row), expected(file)),
    valid(
      "inline, with another item's master wrap: the key that decrypts is passed on",
      input({ ...text.row, master: FOREIGN }),
      expected(text, FOREIGN_KEY),
    ),
    valid(
      "blob only, with another item's master wrap: the key of `blobKeys` is passed on",
      input({ ...image.row, master: FOREIGN }),
      expected(image, FOREIGN_KEY),
    ),
    refused('blob only, with no key but the master wrap: nothing proves it', input(notOwn), 'no_key'),
    refused('a tag that does not hold', input({ ...text.row, sig: spoilt(text.row.sig ?? '') }), 'bad_sig'),
    refused(
      'blob only, with a tag that does not hold: nothing else would show it',
      input({ ...image.row, sig: spoilt(image.row.sig ?? '') }),
      'bad_sig',
    ),
    refused(
      'a device without a certificate',
      input(text.row, { devices: [active(LAPTOP), { ...uncertified, cert: null }] }),
      'uncertified_device',
    ),
    refused(
      'a device with the certificate of another',
      input(text.row, { devices: [active(LAPTOP), { ...active(TABLET), cert: active(LAPTOP)['cert'] }] }),
      'uncertified_device',
    ),
  ];
}

/** An item of each form. */
const made = (): { text: Made; image: Made; file: Made } => ({
  text: make('inline', { type: 'text', payload: TEXT, blob: null }),
  image: make('blob only', { type: 'image', payload: null, blob: CONTENT }),
  file: make('blob with metadata', { type: 'file', payload: METADATA, blob: CONTENT }),
});

const base64url = (value: string): string => Buffer.from(value, 'hex').toString('base64url');
const base64 = (value: string): string => Buffer.from(value, 'hex').toString('base64');

/** wire.json: the same items as bodies of a write, in both shapes. */
export function wires(): Vector[] {
  const spelled = ({ row }: Made): Record<string, unknown> => {
    const { id, binId, type, ts, inline, blob, master, sig } = row;
    const map = (keys: Record<string, string>): Record<string, string> =>
      Object.fromEntries(Object.entries(keys).map(([device, key]) => [device, base64url(key)]));
    const list = (keys: Record<string, string>): unknown[] =>
      Object.entries(keys).map(([device_id, key]) => ({ device_id, key: base64(key) }));
    const signedA = {
      master: master && { nonce: base64url(master.nonce), ct: base64url(master.ct) },
      sig: base64url(sig ?? ''),
    };
    const signedB = {
      master: master && { nonce: base64(master.nonce), ct: base64(master.ct) },
      sig: base64(sig ?? ''),
    };
    const blobA = blob && { blobRef: blob.ref, blobNonce: base64url(blob.nonce), blobKeys: map(blob.keys) };
    const a = {
      ...{ id, binId, type, ts },
      ...(inline === null
        ? signedA
        : {
            payloadEnc: {
              ct: base64url(inline.ct),
              nonce: base64url(inline.nonce),
              keys: map(inline.keys),
              ...signedA,
            },
          }),
      ...blobA,
      ifVersion: 0,
    };
    const own = inline ?? { ct: '', nonce: blob?.nonce ?? '', keys: blob?.keys ?? {} };
    const blobB = blob && {
      blob_ref: blob.ref,
      ...(inline === null ? {} : { blob_nonce: base64(blob.nonce), blob_keys: list(blob.keys) }),
    };
    const b = {
      ...{ id, bin_id: binId, type, ts, ct: base64(own.ct), nonce: base64(own.nonce), wrapped: list(own.keys) },
      ...{ ...signedB, ...blobB, if_version: 0 },
    };
    return { a, b };
  };
  const { text, image, file } = made();
  return [
    valid('inline', { item: text.row }, spelled(text)),
    valid('blob only: in B its nonce and keys are `nonce` and `wrapped`', { item: image.row }, spelled(image)),
    valid('blob with metadata', { item: file.row }, spelled(file)),
  ];
}

/** Items that do not open: without a valid sig, or although it verifies. */
function unopenable(made: Made): Vector[] {
  const { row } = made;
  const inline = row.inline ?? { ct: '', nonce: '', keys: {} };
  const body = (payload: string | Bytes): Row => {
    const message = typeof payload === 'string' ? utf8(payload) : payload;
    const ct = hex(aead(message, { aad: utf8(`${row.type}|${row.ts}`), nonce: raw(inline.nonce), key: made.key }));
    return signed({ ...row, inline: { ...inline, ct } });
  };
  const onlyPhone = { ...inline, keys: { [PHONE.id]: inline.keys[PHONE.id] ?? '' } };
  const phoneAsLaptop = { ...inline, keys: { [LAPTOP.id]: inline.keys[PHONE.id] ?? '' } };
  return [
    refused('no sig', reading({ ...row, sig: null }), 'no_sig'),
    refused('another master key', { ...reading(row), masterKey: hex(fixed('other master')) }, 'bad_sig'),
    refused(
      'no master wrap and no key for this device',
      reading(signed({ ...row, master: null, inline: onlyPhone })),
      'no_key',
    ),
    refused(
      'no master wrap and a key sealed to another device',
      reading(signed({ ...row, master: null, inline: phoneAsLaptop })),
      'no_key',
    ),
    refused('no master wrap and no device', reading(signed({ ...row, master: null }), null, null), 'no_key'),
    refused(
      'the master wrap of another item, and no key',
      reading({ ...row, master: FOREIGN, inline: onlyPhone }),
      'bad_ct',
    ),
    refused('AAD of another ts, signed anew', reading(signed({ ...row, ts: row.ts + 1 })), 'bad_ct'),
    refused('AAD of another type, signed anew', reading(signed({ ...row, type: 'link' })), 'bad_ct'),
    refused('no JSON', reading(body('{"text":')), 'bad_payload'),
    refused('JSON, but no object', reading(body('["text"]')), 'bad_payload'),
    refused('null', reading(body('null')), 'bad_payload'),
    refused('not UTF-8', reading(body(join(utf8('{"text":"'), Uint8Array.of(0xff), utf8('"}')))), 'bad_payload'),
  ];
}

/** item.json: whole items, and variants that must be refused. */
export function items(): Vector[] {
  const { text, image, file } = made();
  const inlineExpected = opening(text);
  const moved = signed({ ...text.row, binId: 'archive' });
  const wrapless = signed({ ...text.row, master: null });
  return [
    valid('inline', reading(text.row), inlineExpected),
    valid('inline, opened with the master key alone', reading(text.row, null, null), inlineExpected),
    valid('inline, opened with the own sealed key alone', reading(wrapless), inlineExpected),
    valid(
      'inline, moved to another bin: same ct, other sig',
      { ...reading(text.row), moveTo: 'archive' },
      {
        ...inlineExpected,
        movedSig: moved.sig,
      },
    ),
    valid(
      'a broken master wrap does not matter while the own key opens',
      reading({ ...text.row, master: { nonce: '00'.repeat(24), ct: '00'.repeat(48) } }),
      inlineExpected,
    ),
    valid('blob only: empty ct and nonce under the sig', reading(image.row, image.blobCt), opening(image)),
    valid('blob with metadata: one key opens both', reading(file.row, file.blobCt), opening(file)),
    ...mixed(text, image, file),
    refused('the blob altered', reading(file.row, spoilt(file.blobCt ?? '')), 'bad_ct'),
    refused('the blob of another item', reading(file.row, image.blobCt), 'bad_ct'),
    ...[text, image, file].flatMap(tampered),
    ...unopenable(text),
  ];
}

/** item-delete.json: tags of deletes. */
export function deletes(): Vector[] {
  const sig = hex(auth(lp('service-item-delete-v1', HEAD.id), MAC_KEY));
  const input = { masterKey: hex(MASTER_KEY), id: HEAD.id, sig };
  return [
    valid('a delete', input, { sig }),
    refused('altered', { ...input, sig: spoilt(sig) }, 'bad_sig'),
    refused('of another item', { ...input, id: '01JAB0JTEM0000000000000002' }, 'bad_sig'),
    refused('under another master key', { ...input, masterKey: hex(fixed('other master')) }, 'bad_sig'),
    refused('the tag of the item itself', { ...input, sig: made().text.row.sig }, 'bad_sig'),
    refused('none', { ...input, sig: null }, 'no_sig'),
  ];
}

/** bin-meta.json: name and emoji of a bin. */
export function binMetas(): Vector[] {
  const meta = '{"name":"Küche","emoji":"🍳"}';
  const nonce = fixed('meta nonce', 24);
  const key = b32(utf8('service-bin-meta-v1'), MASTER_KEY);
  const sealed = (message: Bytes): string => hex(join(nonce, aead(message, { aad: utf8('kitchen'), nonce, key })));
  const input = { masterKey: hex(MASTER_KEY), binId: 'kitchen', sealed: sealed(utf8(meta)) };
  return [
    valid('nonce, then ciphertext', input, { meta: JSON.parse(meta) as unknown }),
    refused('altered', { ...input, sealed: spoilt(input.sealed) }, 'bad_ct'),
    refused('of another bin', { ...input, binId: 'garage' }, 'bad_ct'),
    refused('under another master key', { ...input, masterKey: hex(fixed('other master')) }, 'bad_ct'),
    refused('shorter than nonce and tag', { ...input, sealed: input.sealed.slice(0, 78) }, 'bad_ct'),
    refused('no object', { ...input, sealed: sealed(utf8('"Küche"')) }, 'bad_payload'),
  ];
}
