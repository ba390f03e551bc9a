/** Items: sealing, opening, moving, re-wrapping, and their tags. */
import fc from 'fast-check';
import t from 'tap';
import { certifyDevice, type ListedDevice, type OwnDevice } from '../src/crypto/device.js';
import { checkDeleteTag, checkItemTag, makeDeleteTag, makeItemTag, type SealedItem } from '../src/crypto/item-tag.js';
import { moveTag, openItem, rewrapItem, sealBlobItem, sealItem, type Reader } from '../src/crypto/item.js';
import { loadBrowserSodium } from '../src/crypto/sodium-browser.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Sodium } from '../src/crypto/sodium.js';
import { equalBytes, text } from '../src/protocol/bytes.js';
import type { ItemRowB } from '../src/protocol/frames.js';
import { CONTENT_TYPES, type ItemHead, type LiveItem, type Payload } from '../src/protocol/item.js';
import { readItem } from '../src/sdk/wire.js';
import { rowText } from './support/item-text.js';
import { openBlob, sealBlob, sealOnePiece } from './support/sealed-blobs.js';
import { fixed } from './vectors/cases.js';

const node = nodeSodium;
const browser = await loadBrowserSodium();
const MASTER = fixed('items master');
const HEAD: ItemHead = { id: '01JAB0JTEM0000000000000001', binId: 'inbox', type: 'text', ts: 1_760_000_000_123 };
const refusal = (reason: string) => ({ name: 'CryptoRefusal', reason });

function device(number: number): OwnDevice & { listed: ListedDevice } {
  const id = `01JAB0DEV1CE0000000000000${number}`;
  const keys = node.boxKeyPair();
  const identity = { id, publicKey: keys.publicKey };
  return { id, keys, listed: { ...identity, cert: certifyDevice(node, MASTER, identity) } };
}

const [LAPTOP, PHONE, TABLET] = [device(1), device(2), device(3)];
const TWO = [LAPTOP.listed, PHONE.listed];
const THREE = [...TWO, TABLET.listed];
const TO = { masterKey: MASTER, devices: TWO };
const BY_MASTER: Reader = { masterKey: MASTER, device: null };
const reader = (own: OwnDevice): Reader => ({ masterKey: MASTER, device: own });

const inlineItem = (payload = { text: 'hello' }, sodium: Sodium = node): SealedItem => ({
  ...HEAD,
  ...sealItem(sodium, { ...HEAD, payload }, TO),
});

const CONTENT = text('the bytes of a file');
const METADATA = { name: 'a.txt', size: CONTENT.length, mime: 'text/plain' };

function blobItem(metadata: typeof METADATA | null, sodium: Sodium = node): { item: SealedItem; ct: Uint8Array } {
  const draft = sealBlob(sodium, { type: 'file', ts: HEAD.ts, bytes: CONTENT });
  const part = { id: HEAD.id, binId: HEAD.binId, draft, ref: '01JAB0B10B0000000000000001.bin', metadata };
  return { item: { ...HEAD, type: 'file', ...sealBlobItem(sodium, part, TO) }, ct: draft.ct };
}

/** The item with other parts, and a valid tag over them, as a holder of the master key could make it. */
const resigned = (item: SealedItem, change: Partial<SealedItem>): SealedItem => {
  const changed = { ...item, ...change };
  return { ...changed, sig: makeItemTag(node, MASTER, changed) };
};

const flipped = (bytes: Uint8Array): Uint8Array => bytes.map((byte, at) => (at === bytes.length - 1 ? byte ^ 1 : byte));

void t.test('CRYPTO-01 CRYPTO-02: what one binding seals the other opens, for any payload', (t) => {
  const value = fc.jsonValue({ maxDepth: 2, stringUnit: 'binary' });
  const payload = fc.dictionary(fc.string({ maxLength: 8 }), value, { maxKeys: 4, noNullPrototype: true });
  for (const [sealer, opener] of [
    [node, browser],
    [browser, node],
  ] as const) {
    fc.assert(
      fc.property(payload, fc.constantFrom(...CONTENT_TYPES), (plain, type) => {
        const head = { ...HEAD, type };
        const item = { ...head, ...sealItem(sealer, { ...head, payload: plain }, TO) };
        const opened = [
          openItem(opener, item, reader(PHONE)),
          openItem(opener, { ...item, master: null }, reader(PHONE)),
        ];
        return opened.every((one) => JSON.stringify(one) === JSON.stringify(plain));
      }),
      { numRuns: 25 },
    );
    for (const metadata of [METADATA, null]) {
      const { item, ct } = blobItem(metadata, sealer);
      t.same(openItem(opener, item, BY_MASTER), metadata);
      t.ok(equalBytes(openBlob(opener, { item, ct }, reader(PHONE)), CONTENT));
      t.ok(equalBytes(openBlob(opener, { item: { ...item, master: null }, ct }, reader(PHONE)), CONTENT), 'own key');
    }
  }
  const { ct, ...draft } = sealOnePiece(browser, { type: 'file', ts: HEAD.ts, bytes: CONTENT });
  const part = { id: HEAD.id, binId: HEAD.binId, draft, ref: '01JAB0B10B0000000000000001.bin', metadata: null };
  const item = { ...HEAD, type: 'file' as const, ...sealBlobItem(browser, part, TO) };
  t.ok(equalBytes(openBlob(node, { item, ct }, reader(PHONE)), CONTENT), 'a blob in one piece');
  t.same(openItem(node, { ...HEAD, ...sealItem(node, { ...HEAD, payload: text('{"text":"raw"}') }, TO) }, BY_MASTER), {
    text: 'raw',
  });
  t.end();
});

void t.test(
  'CRYPTO-07: the AAD is type|ts: another type or ts does not open even with a good sig, another bin does',
  (t) => {
    const item = inlineItem();
    t.throws(() => openItem(node, resigned(item, { type: 'link' }), BY_MASTER), refusal('bad_ct'));
    t.throws(() => openItem(node, resigned(item, { ts: item.ts + 1 }), BY_MASTER), refusal('bad_ct'));
    t.same(openItem(node, resigned(item, { binId: 'other' }), BY_MASTER), { text: 'hello' });
    const key = node.secretboxOpen(item.master?.ct ?? text(''), item.master?.nonce ?? text(''), MASTER) ?? text('');
    const { ct, nonce } = item.inline ?? { ct: text(''), nonce: text('') };
    const plain = node.aeadDecrypt({ message: ct, aad: text('text|1760000000123'), nonce, key });
    t.same(JSON.parse(Buffer.from(plain ?? text('')).toString()), { text: 'hello' });
    t.end();
  },
);

void t.test(
  'CRYPTO-08 CRYPTO-09: master is a secretbox of the item key; a sealed key has 80 bytes and one device opens it',
  (t) => {
    const item = inlineItem();
    t.equal(item.master?.ct.length, 48);
    t.equal(item.master?.nonce.length, 24);
    const key = node.secretboxOpen(item.master?.ct ?? text(''), item.master?.nonce ?? text(''), MASTER);
    for (const own of [LAPTOP, PHONE]) {
      const sealed = item.inline?.keys.get(own.id) ?? text('');
      t.equal(sealed.length, 80);
      t.ok(equalBytes(node.sealOpen(sealed, own.keys) ?? text(''), key ?? text('none')), 'the same key');
      t.equal(node.sealOpen(sealed, TABLET.keys), undefined, 'not for another device');
    }
    const wrapless = { ...item, master: null };
    t.same(openItem(node, wrapless, reader(LAPTOP)), { text: 'hello' });
    t.throws(() => openItem(node, wrapless, reader(TABLET)), refusal('no_key'), 'no entry');
    t.throws(() => openItem(node, wrapless, reader({ ...LAPTOP, keys: TABLET.keys })), refusal('no_key'), 'other keys');
    t.throws(
      () => openItem(node, wrapless, reader({ ...PHONE, id: LAPTOP.id })),
      refusal('no_key'),
      "another device's entry",
    );
    t.end();
  },
);

void t.test('CRYPTO-10: the same payload encrypted twice differs in every part, and the item key is erased', (t) => {
  const [one, other] = [inlineItem(), inlineItem()];
  const parts = (item: SealedItem) => [
    item.inline?.ct,
    item.inline?.nonce,
    item.master?.ct,
    item.master?.nonce,
    item.sig,
  ];
  parts(one).forEach((part, at) => t.notOk(equalBytes(part ?? text(''), parts(other)[at] ?? text('')), `part ${at}`));
  const drawn: Uint8Array[] = [];
  const watched: Sodium = {
    ...node,
    random: (length) => {
      const bytes = node.random(length);
      if (length === 32) drawn.push(bytes);
      return bytes;
    },
  };
  inlineItem({ text: 'x' }, watched);
  t.same(
    drawn.map((key) => key.every((byte) => byte === 0)),
    [true],
  );
  t.end();
});

void t.test('SIG-01 SIG-02: a change of anything covered is bad_sig', (t) => {
  const { item, ct } = blobItem(METADATA);
  const inline = item.inline ?? { ct, nonce: ct, keys: new Map<string, Uint8Array>() };
  const blob = item.blob ?? { ref: '', nonce: ct, keys: new Map<string, Uint8Array>() };
  const laptopKey = blob.keys.get(LAPTOP.id) ?? ct;
  const changes: Record<string, Partial<SealedItem>> = {
    id: { id: '01JAB0JTEM0000000000000002' },
    binId: { binId: 'inbox2' },
    type: { type: 'image' },
    ts: { ts: item.ts + 1 },
    ct: { inline: { ...inline, ct: flipped(inline.ct) } },
    nonce: { inline: { ...inline, nonce: flipped(inline.nonce) } },
    'no inline': { inline: null },
    blobRef: { blob: { ...blob, ref: '01JAB0B10B0000000000000002.bin' } },
    blobNonce: { blob: { ...blob, nonce: flipped(blob.nonce) } },
    'blob key altered': { blob: { ...blob, keys: new Map(blob.keys).set(LAPTOP.id, flipped(laptopKey)) } },
    'blob key added': { blob: { ...blob, keys: new Map(blob.keys).set(TABLET.id, laptopKey) } },
    'blob key missing': { blob: { ...blob, keys: new Map([[LAPTOP.id, laptopKey]]) } },
    'no blob': { blob: null },
    sig: { sig: flipped(item.sig ?? ct) },
    'sig cut': { sig: (item.sig ?? ct).slice(0, 31) },
  };
  for (const [what, change] of Object.entries(changes)) {
    const changed = { ...item, ...change };
    t.throws(() => openItem(node, changed, BY_MASTER), refusal('bad_sig'), what);
    t.throws(() => openBlob(node, { item: changed, ct }, BY_MASTER), refusal('bad_sig'), what);
    t.throws(() => moveTag(node, changed, { binId: 'b', masterKey: MASTER }), refusal('bad_sig'), `${what}, moved`);
    const by = { ...reader(LAPTOP), devices: THREE };
    t.throws(() => rewrapItem(node, changed, by), refusal('bad_sig'), `${what}, re-wrapped`);
  }
  t.throws(() => openItem(node, item, { ...BY_MASTER, masterKey: fixed('other') }), refusal('bad_sig'));
  t.throws(() => openBlob(node, { item, ct: flipped(ct) }, BY_MASTER), refusal('bad_ct'));
  t.end();
});

void t.test('SIG-03 SIG-04: blob keys sort by id bytes; a blob-only item is tagged with empty ct and nonce', (t) => {
  const { item } = blobItem(null);
  const blob = item.blob ?? { ref: '', nonce: text(''), keys: new Map<string, Uint8Array>() };
  const reversed = { ...item, blob: { ...blob, keys: new Map([...blob.keys].reverse()) } };
  t.same(openItem(node, reversed, BY_MASTER), null);
  const nothing = { ct: new Uint8Array(0), nonce: new Uint8Array(0), keys: new Map<string, Uint8Array>() };
  t.ok(equalBytes(makeItemTag(node, MASTER, { ...item, inline: nothing }), item.sig ?? text('')));
  // UTF-16 order of text puts U+10000 before U+FFFD; byte order puts it behind.
  const keysOf = (ids: string[]) => new Map(ids.map((id) => [id, blob.nonce]));
  const tagOf = (ids: string[]) => makeItemTag(node, MASTER, { ...item, blob: { ...blob, keys: keysOf(ids) } });
  t.ok(equalBytes(tagOf(['\u{10000}', '\ufffd']), tagOf(['\ufffd', '\u{10000}'])));
  t.end();
});

void t.test('SIG-05: sig does not cover inline keys and the master wrap', (t) => {
  const item = inlineItem();
  const stripped = {
    ...item,
    master: null,
    inline: item.inline && { ...item.inline, keys: new Map<string, Uint8Array>() },
  };
  t.doesNotThrow(() => checkItemTag(node, MASTER, stripped));
  t.end();
});

const keyMap = (keys: ItemRowB['wrapped']): Record<string, string> =>
  Object.fromEntries((keys ?? []).map(({ device_id: device, key }) => [device, key]));

/** A live row of shape B as shape A has it. */
function inShapeA(row: ItemRowB): unknown {
  const { id, master, sig, ct, nonce } = row;
  const envelope = { ct: ct ?? '', nonce: nonce ?? '', keys: keyMap(row.wrapped), master, sig };
  return {
    ...{ id, master, sig, version: row.version, senderDevice: row.sender_device, deletedAt: null },
    binId: row.bin_id,
    type: row.type ?? '',
    ts: row.ts ?? 0,
    payloadEnc: ct === '' ? null : envelope,
    blobRef: row.blob_ref,
    blobNonce: row.blob_nonce,
    blobKeys: row.blob_keys === null ? null : keyMap(row.blob_keys),
  };
}

const live = (value: unknown): LiveItem => readItem(value, 'type') as LiveItem;

void t.test('SIG-06: sig is valid over what either wire shape returns', (t) => {
  for (const item of [inlineItem(), blobItem(METADATA).item, blobItem(null).item]) {
    const row: LiveItem = { ...item, senderDevice: LAPTOP.id, version: 7, deletedAt: null };
    const fromA = live(JSON.parse(rowText('a', row)));
    t.doesNotThrow(() => checkItemTag(node, MASTER, fromA), `A, ${item.type}`);
    const fromB = live(inShapeA(JSON.parse(rowText('b', row)) as ItemRowB));
    t.doesNotThrow(() => checkItemTag(node, MASTER, fromB), `B, ${item.type}`);
  }
  t.end();
});

void t.test('SIG-07: the tag of a delete is valid for its item only, and not as the tag of an item', (t) => {
  const sig = makeDeleteTag(node, MASTER, HEAD.id);
  t.doesNotThrow(() => checkDeleteTag(browser, MASTER, { id: HEAD.id, sig }));
  t.throws(() => checkDeleteTag(node, MASTER, { id: '01JAB0JTEM0000000000000002', sig }), refusal('bad_sig'));
  t.throws(() => checkDeleteTag(node, fixed('other'), { id: HEAD.id, sig }), refusal('bad_sig'));
  t.throws(() => checkDeleteTag(node, MASTER, { id: HEAD.id, sig: inlineItem().sig }), refusal('bad_sig'));
  t.throws(() => checkDeleteTag(node, MASTER, { id: HEAD.id, sig: null }), refusal('no_sig'));
  t.throws(() => openItem(node, { ...inlineItem(), sig }, BY_MASTER), refusal('bad_sig'));
  t.end();
});

void t.test('CLIENT-02 CLIENT-03: an unsigned or forged item is refused before anything is decrypted', (t) => {
  const touched = (): never => {
    throw new Error('decrypted something');
  };
  const blind: Sodium = { ...node, aeadDecrypt: touched, sealOpen: touched, secretboxOpen: touched };
  const { item, ct } = blobItem(METADATA);
  for (const [bad, reason] of [
    [{ ...item, sig: null }, 'no_sig'],
    [{ ...item, binId: 'x' }, 'bad_sig'],
  ] as const) {
    t.throws(() => openItem(blind, bad, reader(LAPTOP)), refusal(reason));
    t.throws(() => openBlob(blind, { item: bad, ct }, reader(LAPTOP)), refusal(reason));
    t.throws(() => rewrapItem(blind, bad, { ...reader(LAPTOP), devices: THREE }), refusal(reason));
  }
  t.throws(() => openItem(blind, item, reader(LAPTOP)), { message: 'decrypted something' }, 'the guard works');
  t.end();
});

void t.test(
  "CLIENT-04: an item opens through master, or through the device's key where master is missing or bad",
  (t) => {
    const item = inlineItem();
    const foreign = inlineItem({ text: 'another item' });
    for (const master of [
      null,
      foreign.master,
      { nonce: fixed('n', 24), ct: fixed('c', 48) },
      { nonce: text('x'), ct: text('') },
    ]) {
      t.same(openItem(node, { ...item, master }, reader(PHONE)), { text: 'hello' });
    }
    t.throws(() => openItem(node, { ...item, master: foreign.master }, BY_MASTER), refusal('bad_ct'), 'nothing fits');
    for (const junk of [new Uint8Array(80).fill(7), text(''), node.seal(fixed('short', 16), PHONE.keys.publicKey)]) {
      const inline = item.inline && { ...item.inline, keys: new Map([[PHONE.id, junk]]) };
      t.throws(() => openItem(node, { ...item, master: null, inline }, reader(PHONE)), refusal('no_key'));
    }
    for (const [payload, what] of [
      ['[]', 'no object'],
      ['{', 'no JSON'],
      ['\ufeff{}', 'a byte order mark'],
    ] as const) {
      const bad = { ...HEAD, ...sealItem(node, { ...HEAD, payload: text(payload) }, TO) };
      t.throws(() => openItem(node, bad, BY_MASTER), refusal('bad_payload'), what);
    }
    t.throws(() => inlineItem({ text: 'x'.repeat(65_536) }), refusal('too_large'));
    t.end();
  },
);

void t.test(
  'CLIENT-05 CLIENT-06 CLIENT-07: sealing for an uncertified device names it; certified, it gets a key',
  (t) => {
    const intruder = node.boxKeyPair();
    const slipped: ListedDevice[] = [
      { id: TABLET.id, publicKey: intruder.publicKey, cert: null },
      { id: TABLET.id, publicKey: intruder.publicKey, cert: TABLET.listed.cert },
      {
        id: TABLET.id,
        publicKey: intruder.publicKey,
        cert: certifyDevice(node, fixed('guess'), { id: TABLET.id, publicKey: intruder.publicKey }),
      },
      { id: TABLET.id, publicKey: TABLET.keys.publicKey, cert: LAPTOP.listed.cert },
      { id: PHONE.id, publicKey: TABLET.keys.publicKey, cert: TABLET.listed.cert },
    ];
    for (const bad of slipped) {
      const to = { masterKey: MASTER, devices: [LAPTOP.listed, bad] };
      const named = { ...refusal('uncertified_device'), message: new RegExp(`^no valid certificate for ${bad.id}: `) };
      t.throws(() => sealItem(node, { ...HEAD, payload: {} }, to), named);
      const draft = sealBlob(node, { type: 'file', ts: HEAD.ts, bytes: CONTENT });
      t.throws(() => sealBlobItem(node, { ...HEAD, draft, ref: 'r', metadata: null }, to), named);
      t.throws(() => rewrapItem(node, { ...inlineItem(), master: null }, { ...reader(LAPTOP), ...to }), named);
    }
    const cert = certifyDevice(node, MASTER, { id: TABLET.id, publicKey: TABLET.keys.publicKey });
    const certified = { masterKey: MASTER, devices: [LAPTOP.listed, { ...TABLET.listed, cert }] };
    const sealed = { ...HEAD, ...sealItem(node, { ...HEAD, payload: { text: 'now' } }, certified), master: null };
    t.same(openItem(node, sealed, reader(TABLET)), { text: 'now' }, 'after certification');
    t.doesNotThrow(
      () => sealItem(node, { ...HEAD, payload: {} }, { masterKey: MASTER, devices: [LAPTOP.listed] }),
      'after revocation',
    );
    t.end();
  },
);

void t.test('CLIENT-36: a re-wrap adds the missing device, drops the unlisted, and keeps content and tag', (t) => {
  const by = { ...reader(LAPTOP), devices: [LAPTOP.listed, TABLET.listed] };
  const whole = (item: SealedItem): SealedItem => ({ ...item, ...(rewrapItem(node, item, by) as Payload) });
  for (const { item, ct } of [{ item: inlineItem(), ct: null }, blobItem(METADATA), blobItem(null)]) {
    const after = whole(item);
    t.doesNotThrow(() => checkItemTag(node, MASTER, after));
    t.same(after.inline?.ct, item.inline?.ct, 'same ct');
    const kept = (after.inline ?? after.blob)?.keys.get(LAPTOP.id);
    t.same(kept, (item.inline ?? item.blob)?.keys.get(LAPTOP.id), 'present keys are kept');
    for (const part of [after.inline, after.blob]) if (part) t.same([...part.keys.keys()], [LAPTOP.id, TABLET.id]);
    const bare = { ...after, master: null };
    t.same(openItem(node, bare, reader(TABLET)), openItem(node, item, BY_MASTER));
    if (ct) t.ok(equalBytes(openBlob(node, { item: bare, ct }, reader(TABLET)), CONTENT));
    t.equal(rewrapItem(node, after, by), null, 'nothing left to do');
    t.ok(rewrapItem(node, { ...after, master: null }, by)?.master, 'a missing master wrap is added');
  }
  t.end();
});

void t.test('CLIENT-36: a re-wrap spreads no key that is not proven to be the item’s', (t) => {
  const foreign = inlineItem({ text: 'another item' });
  const by = { ...BY_MASTER, devices: THREE };
  const inline = { ...inlineItem(), master: foreign.master };
  t.throws(() => rewrapItem(node, inline, by), refusal('bad_ct'), 'inline: the wrap must decrypt it');
  const only = { ...blobItem(null).item, master: foreign.master };
  t.throws(() => rewrapItem(node, only, by), refusal('no_key'), 'blob only: a wrap alone is no proof');
  const again = { ...only, ...(rewrapItem(node, only, { ...reader(PHONE), devices: THREE }) as Payload) };
  const key = (own: OwnDevice) => node.sealOpen(again.blob?.keys.get(own.id) ?? text(''), own.keys) ?? text('none');
  t.ok(equalBytes(key(TABLET), key(PHONE)), 'the key that the tag covers is passed on, not the foreign wrap');
  t.end();
});

void t.test('CLIENT-36: a re-wrap keeps separate keys of a blob and its metadata, as another client may use', (t) => {
  const { item: one, ct } = blobItem(null);
  const { inline, master } = sealItem(node, { ...HEAD, type: 'file', payload: METADATA }, TO);
  const item = resigned(one, { inline, master });
  const after = {
    ...item,
    ...(rewrapItem(node, item, { ...reader(LAPTOP), devices: THREE }) as Payload),
    master: null,
  };
  t.same(openItem(node, after, reader(TABLET)), METADATA);
  t.ok(equalBytes(openBlob(node, { item: after, ct }, reader(TABLET)), CONTENT));
  t.end();
});

void t.test('CLIENT-38: a mover recomputes sig for the new bin, and readers accept it', (t) => {
  const item = inlineItem();
  const moved = { ...item, binId: 'archive', sig: moveTag(node, item, { binId: 'archive', masterKey: MASTER }) };
  t.same(openItem(browser, moved, reader(PHONE)), { text: 'hello' });
  t.throws(() => openItem(node, { ...moved, binId: 'inbox' }, BY_MASTER), refusal('bad_sig'));
  t.end();
});
