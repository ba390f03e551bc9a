/** Vectors of items in their three forms, deletes and bin meta. */
import { fixed, LAPTOP, MASTER_KEY, PHONE, refused, spoilt, valid, type Vector } from './cases.js';
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
  // In falling order of ids: whoever does not sort them gets another tag.
  [PHONE.id]: hex(seal(key, PHONE.keys.publicKey, fixed(`${label} phone`))),
  [LAPTOP.id]: hex(seal(key, LAPTOP.keys.publicKey, fixed(`${label} laptop`))),
});

interface Made {
  readonly row: Row;
  readonly key: Bytes;
  readonly blobCt: string | null;
}

function make(label: string, content: { type: string; payload: string | null; blob: Bytes | null }): Made {
  const key = fixed(`${label} item key`);
  const nonce = fixed(`${label} nonce`, 24);
  const blobNonce = fixed(`${label} blob nonce`, 24);
  const aad = utf8(`${content.type}|${HEAD.ts}`);
  const masterNonce = fixed(`${label} master nonce`, 24);
  const row = signed({
    ...HEAD,
    type: content.type,
    inline:
      content.payload === null
        ? null
        : { ct: hex(aead(utf8(content.payload), { aad, nonce, key })), nonce: hex(nonce), keys: sealedFor(key, label) },
    blob:
      content.blob === null ? null : { ref: BLOB_REF, nonce: hex(blobNonce), keys: sealedFor(key, `${label} blob`) },
    master: { nonce: hex(masterNonce), ct: hex(secretbox(key, masterNonce, MASTER_KEY)) },
  });
  return { row, key, blobCt: content.blob === null ? null : hex(aead(content.blob, { aad, nonce: blobNonce, key })) };
}

const LAPTOP_HEX = {
  id: LAPTOP.id,
  publicKey: hex(LAPTOP.keys.publicKey),
  secretKey: hex(LAPTOP.keys.secretKey),
};

const reading = (item: Row, blobCt: string | null = null, device: unknown = LAPTOP_HEX): Record<string, unknown> => ({
  masterKey: hex(MASTER_KEY),
  device,
  item,
  blobCt,
});

const TEXT = '{"text":"Grüße, 世界 🔑","n":1}';
const METADATA = '{"name":"notes.pdf","size":12,"mime":"application/pdf"}';
const CONTENT = utf8('blob content');

function opening(made: Made, plain: { payload: string | null; blob: Bytes | null }): Record<string, unknown> {
  return {
    aad: hex(utf8(`${made.row.type}|${made.row.ts}`)),
    itemKey: hex(made.key),
    sigInput: hex(tagInput(made.row)),
    sig: made.row.sig,
    payload: plain.payload === null ? null : (JSON.parse(plain.payload) as unknown),
    blob: plain.blob === null ? null : hex(plain.blob),
  };
}

/** Every covered field changed on its own; `sig` stays the one of the row. */
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

/** Items whose sig holds and which yet do not open. */
function unopenable(made: Made): Vector[] {
  const { row } = made;
  const inline = row.inline ?? { ct: '', nonce: '', keys: {} };
  const body = (payload: string | Bytes, over: Partial<Row> = {}): Row => {
    const message = typeof payload === 'string' ? utf8(payload) : payload;
    const ct = hex(aead(message, { aad: utf8(`${row.type}|${row.ts}`), nonce: raw(inline.nonce), key: made.key }));
    return signed({ ...row, ...over, inline: { ...inline, ct } });
  };
  const foreign = { nonce: hex(fixed('foreign nonce', 24)), ct: '' };
  foreign.ct = hex(secretbox(fixed('foreign item key'), raw(foreign.nonce), MASTER_KEY));
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
      reading({ ...row, master: foreign, inline: onlyPhone }),
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

/** item.json: full items, and what must be refused about them. */
export function items(): Vector[] {
  const text = make('inline', { type: 'text', payload: TEXT, blob: null });
  const image = make('blob only', { type: 'image', payload: null, blob: CONTENT });
  const file = make('blob with metadata', { type: 'file', payload: METADATA, blob: CONTENT });
  const inlineExpected = opening(text, { payload: TEXT, blob: null });
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
    valid(
      'blob only: empty ct and nonce under the sig',
      reading(image.row, image.blobCt),
      opening(image, { payload: null, blob: CONTENT }),
    ),
    valid(
      'blob with metadata: one key opens both',
      reading(file.row, file.blobCt),
      opening(file, { payload: METADATA, blob: CONTENT }),
    ),
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
    refused(
      'the tag of the item itself',
      { ...input, sig: make('inline', { type: 'text', payload: TEXT, blob: null }).row.sig },
      'bad_sig',
    ),
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
