/**
 * Independent clients on one real server: each reads what the other wrote, and the one that was made from the reference's
 * pages alone works.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { join as joinByWords } from '../src/sdk/pairing.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { PROJECT_ROOT } from '../src/root.js';
import { bytes, Device, newId, readItem, url, type Json } from './reference-client/client.js';
import { next, shows, wiretap, world, type Wiretap } from './support/client-world.js';
import { until } from './support/events.js';
import {
  deleteTag,
  equal,
  newBlobNonce,
  openBlob,
  openItem,
  openMeta,
  passwordOf,
  sealBlob,
  sealFor,
  sealItem,
  sealMeta,
  tag,
  words,
  type Sealed,
} from './reference-client/cryptography.js';
import { runServer } from './support/server.js';
import * as crypto from './reference-client/cryptography.js';

const PAYLOAD = { text: 'Grüße, 世界 🔑', more: [1, null] };

/** A wire with the real Argon2id: the independent client has no fast variant. */
function trueWire(): Wiretap {
  const tap = wiretap();
  return { ...tap, platform: { ...tap.platform, sodium: nodeSodium } };
}

t.test('SDK-27: a client made from the reference alone and the library read what the other wrote', async (t) => {
  const all = await world(t, { tap: trueWire() });
  const { first } = all;
  await first.device.connect();
  const me = new Device(all.url, 'a', 'Other hands 📱');

  const rowOf = async (id: string): Promise<Json> => {
    const { items } = await me.call<{ items: Json[] }>('GET', '/items?since=0&limit=1000');
    const row = items.find((one) => one['id'] === id);
    if (row === undefined) throw new Error(`no item ${id}`);
    return row;
  };
  /** The payload's text, by the device's own key and by the master wrap. */
  const textOf = async (id: string): Promise<string> => {
    const item = readItem(await rowOf(id));
    const { json } = crypto.openItem({ ...item, master: null }, me.reader);
    t.equal(
      crypto.openItem({ ...item, keys: new Map() }, me.reader).json,
      json,
      'the master wrap gives the same payload',
    );
    return json ?? '';
  };
  const put = async (head: Pick<crypto.Sealed, 'id' | 'binId' | 'type' | 'ts'>, json: string): Promise<number> =>
    me.write(crypto.sealItem(head, json, { master: me.master, devices: await me.recipients() }));

  await t.test('the independent client joins by the words that the library shows', async (t) => {
    const shown: string[] = [];
    const before = await first.device.put({ binId: 'inbox', type: 'text', payload: PAYLOAD, asIs: true });
    const offer = await first.device.offerPairing(({ digits }) => shown.push(digits) > 0);
    const rewrapped = next(first, 'rewrapped');
    await me.join(offer.words, (digits) => shown.push(digits));
    t.equal(new Set(shown).size, 1, 'both screens show the same digits');
    t.equal(shown.length, 2);
    await Promise.all([offer.joined, rewrapped]);
    t.same(JSON.parse(await textOf(before.id)), PAYLOAD, 'an earlier item opens by the key that the library added');
  });

  await t.test('both derive the same master key and fingerprints', async (t) => {
    const { masterKey, deviceId, keys } = first.identity();
    const [master, open] = [Buffer.from(masterKey), Buffer.from(keys.publicKey)];
    t.ok(crypto.equal(crypto.keysOfPhrase(all.phrase).master, master), 'the master keys are equal');
    const { fingerprint, masterFingerprint } = await first.device.status();
    t.equal(crypto.fingerprint(deviceId, open), fingerprint);
    t.equal(crypto.masterFingerprint(me.master), masterFingerprint);
  });

  await t.test('the independent client reads items, new content, moves, bins and deletes of the library', async (t) => {
    const { id } = await first.device.put({ binId: 'inbox', type: 'text', payload: PAYLOAD, asIs: true });
    t.equal(await textOf(id), JSON.stringify(PAYLOAD));
    await first.device.put({ id, binId: 'inbox', type: 'link', payload: { url: 'https://example.org/' } });
    t.equal(await textOf(id), '{"url":"https://example.org/"}');
    await first.device.bins.create('shopping', { name: 'Einkäufe', emoji: '🛒' });
    const { bins } = await me.call<{ bins: Json[] }>('GET', '/bins');
    const meta = bytes(bins.find((one) => one['id'] === 'shopping')?.['meta']);
    t.same(JSON.parse(crypto.openMeta(meta, 'shopping', me.master)), { name: 'Einkäufe', emoji: '🛒' });
    await first.device.move(id, 'shopping');
    t.equal((await rowOf(id))['binId'], 'shopping');
    t.equal(await textOf(id), '{"url":"https://example.org/"}', 'the item opens under its new tag');
    await first.device.delete(id);
    const { deletedAt, sig } = await rowOf(id);
    t.ok(deletedAt, 'the item is deleted');
    t.ok(crypto.equal(bytes(sig), crypto.deleteTag(id, me.master)), 'the delete has its tag');
  });

  await t.test('the library reads items, new content, bins and deletes of the independent client', async (t) => {
    const head = { id: newId(), binId: 'inbox', type: 'text', ts: Date.now() };
    const arrives = shows(first, head.id);
    await put(head, '{ "text": "von anderer Hand", "n": 1.50 }');
    t.match(await arrives, { payload: { text: 'von anderer Hand', n: 1.5 }, senderDevice: me.id });
    const changed = shows(first, head.id, ({ type }) => type === 'code');
    await put({ ...head, type: 'code', ts: head.ts + 1 }, '{"text":"x"}');
    t.same((await changed).payload, { text: 'x' });
    await me.call('POST', '/bins', { id: 'b-1', meta: url(crypto.sealMeta('{"name":"Fremd"}', 'b-1', me.master)) });
    await first.device.bins.refresh('changed');
    const bins = await first.device.bins.list();
    t.match(
      bins.find(({ id }) => id === 'b-1'),
      { label: { name: 'Fremd' } },
    );
    const deleted = next(first, 'delete', ({ id }) => id === head.id);
    await me.call('DELETE', `/items/${head.id}`, { sig: url(crypto.deleteTag(head.id, me.master)) });
    await deleted;
    t.equal(await first.device.get(head.id), undefined);
    t.same(await first.device.hidden(), [], 'no item is hidden');
    t.same(first.problems, []);
  });

  await t.test('the library joins by the words that the independent client shows', async (t) => {
    const words = crypto.words(Buffer.from('0011223344556677', 'hex'));
    const offer = await me.offer(words);
    const shown: string[] = [];
    const joining = joinByWords({
      platform: trueWire().platform,
      serverUrl: all.url,
      name: 'Ours',
      glyph: 'tablet',
      words,
      onDigits: (digits) => shown.push(digits),
    });
    joining.catch(() => undefined);
    let request: Json | undefined;
    // An Argon2id computation precedes the request.
    const looked = async (): Promise<boolean> => {
      [request] = (await me.call<{ requests: Json[] }>('GET', '/devices/pair-requests')).requests;
      return request !== undefined;
    };
    await until('its request', looked, 60_000);
    t.match(request, { name: 'Ours', glyph: 'tablet' });
    await me.approve(offer, request ?? {}, (digits) => shown.push(digits) > 0);
    const identity = await joining;
    t.equal(identity.deviceId, request?.['deviceId']);
    t.ok(crypto.equal(Buffer.from(identity.masterKey), me.master));
    t.equal(new Set(shown).size, 1, 'both screens show the same digits');
    t.equal(shown.length, 2);
  });
});

const refusal = (code: string): { readonly message: RegExp } => ({ message: new RegExp(` ${code}$`) });
const jsonOf = (item: Sealed, device: Device): unknown =>
  JSON.parse(openItem(item, device.reader).json ?? 'null') as unknown;

/** A new item of the device, sealed for all devices; `ts` later than that of the item that it replaces. */
async function sealed(by: Device, type: string, payload: Json, before?: Sealed): Promise<Sealed> {
  const { id, binId, ts } = before ?? { id: newId(), binId: 'inbox', ts: 0 };
  const head = { id, binId, type, ts: Math.max(Date.now(), ts + 1) };
  return sealItem(head, JSON.stringify(payload), { master: by.master, devices: await by.recipients() });
}

/** A file with its content as a blob. */
async function sealedFile(by: Device, name: string, content: Buffer): Promise<Sealed> {
  const head = { id: newId(), binId: 'inbox', type: 'file', ts: Date.now() };
  const [key, nonce, devices] = [randomBytes(32), newBlobNonce(), await by.recipients()];
  const ref = await by.upload(sealBlob(content, head, { key, nonce }));
  const blob = { ref, nonce, keys: sealFor(key, devices) };
  const json = JSON.stringify({ name, size: content.length, mime: 'application/pdf' });
  return sealItem(head, json, { master: by.master, devices, key, blob });
}

/** Joins the added device by the visible words of the existing one. Returns the digits that each device showed. */
async function pairUp(
  existing: Device,
  added: Device,
  line: Awaited<ReturnType<Device['connect']>>,
): Promise<string[]> {
  const visible = words(randomBytes(8));
  const offer = await existing.offer(visible);
  const shown: string[] = [];
  const joining = added.join(` ${visible.toUpperCase().replaceAll(' ', ' – ')}`, (digits) => shown.push(digits));
  const approving = existing.approve(offer, await line.next('pair_request'), (digits) => shown.push(digits) > 0);
  await Promise.all([joining, approving]);
  return shown;
}

async function itemsOf(device: Device): Promise<Json[]> {
  return (await device.call<{ items: Json[] }>('GET', '/items?since=0')).items;
}

t.test('REF-16: the client imports nothing of the project’s source', (t) => {
  for (const name of ['client', 'cryptography', 'liar', 'replica', 'vectors']) {
    const text = readFileSync(join(PROJECT_ROOT, 'test/reference-client', `${name}.ts`), 'utf8');
    const allowed =
      /^(node:\w+|\.\/(cryptography|client|replica)\.js|ws|sodium-native|@scure\/bip39\/wordlists\/english\.js)$/;
    for (const [, from = ''] of text.matchAll(/(?:from|import)\s*\(?'([^']+)'/g)) t.match(from, allowed, from);
  }
  t.end();
});

async function writesAndReads(t: Test, one: Device, two: Device): Promise<void> {
  const [first, second] = [await one.connect(), await two.connect()];
  await Promise.all([first.next('caught_up'), second.next('caught_up')]);
  const note = await sealed(two, 'text', { text: 'Grüße, 世界' });
  const version = await two.write(note, 0);
  const arrived = readItem(await first.next('item'));
  t.same(jsonOf(arrived, one), { text: 'Grüße, 世界' }, 'an item written in B reads in A');
  t.same(await second.next('ack'), { type: 'ack', id: note.id, version });

  const meta = sealMeta('{"name":"Arbeit","emoji":"🧰"}', 'work', two.master);
  await two.call('POST', '/bins', { id: 'work', meta: url(meta) });
  const { bin } = (await first.next('bin')) as { readonly bin: Json };
  t.equal(openMeta(bytes(bin['meta']), 'work', one.master), '{"name":"Arbeit","emoji":"🧰"}');

  const moved = { ...arrived, binId: 'work' };
  const sig = url(tag(moved, one.master));
  await one.call('POST', `/items/${note.id}/reconcile`, { binId: 'work', version, sig });
  t.same(
    jsonOf(readItem(await second.next('item')), two),
    { text: 'Grüße, 世界' },
    'the moved item opens with its new tag',
  );

  const later = await sealed(one, 'code', { lang: 'sql', label: 'x', text: 'SELECT 1' }, moved);
  await t.rejects(one.write(later, version), refusal('conflict'), 'a replacement of an outdated version is refused');
  t.equal(await one.write(later, version + 1), version + 2);
  t.equal(await one.write(later, version + 1), version + 2, 'the same write again gets the same version');
  const replaced = readItem(await second.next('item'));
  t.same(jsonOf(replaced, two), { lang: 'sql', label: 'x', text: 'SELECT 1' });
  const forged = { ...replaced, type: 'text' };
  t.throws(() => openItem(forged, two.reader), { message: 'bad_sig' }, 'an item whose type was changed does not open');

  await two.call('DELETE', `/items/${note.id}`, { sig: url(deleteTag(note.id, two.master)) });
  const { id, sig: proof } = await first.next('delete');
  t.ok(equal(bytes(proof), deleteTag(String(id), one.master)), 'the delete carries its tag');
  const revived = await sealed(two, 'text', { text: 'again' }, later);
  await t.rejects(two.write(revived), refusal('version_conflict'), 'a deleted item cannot be restored');
  t.equal(await one.write(later, version + 1), version + 3, 'the stored write again gets the version of the delete');
  await two.call('DELETE', '/bins/work');
  for (const line of [first, second]) line.close();
  await Promise.all([first.closed, second.closed]);
}

async function recoversAndRevokes(
  t: Test,
  one: Device,
  { two, phrase }: { two: Device; phrase: string },
): Promise<void> {
  await one.call('POST', '/password/set', { password: passwordOf('pässword', one.tenantId) });
  const three = new Device(one.origin, 'b', 'Three');
  await t.rejects(three.recover(phrase), refusal('password_required'));
  await three.recover(phrase, await three.ticket('pässword'));
  t.ok(equal(three.master, one.master), 'the phrase gives the same master key');

  const line = await two.connect();
  await line.next('caught_up');
  await three.call('POST', `/devices/${two.id}/revoke`);
  t.equal(await line.closed, 4403);
  await t.rejects(two.renew(), refusal('device_revoked'));
  t.same([...(await three.recipients()).keys()].sort(), [one.id, three.id].sort());
  for (const row of await itemsOf(three)) {
    if (row['deletedAt'] !== null) continue;
    const item = await three.rewrapped(readItem(row));
    t.ok(
      await three.write(item, Number(row['version'])),
      'the item is written again without the key of the revoked device',
    );
    t.same(jsonOf({ ...item, master: null }, one), jsonOf(item, three), 'each remaining device opens the item');
  }
}

t.test('REF-16: a client made from the pages alone claims, pairs, writes and recovers, in both shapes', async (t) => {
  const { port } = await runServer(t);
  const origin = `http://127.0.0.1:${port}`;
  const [one, two] = [new Device(origin, 'a', 'One'), new Device(origin, 'b', 'Zwei ☂')];
  const phrase = await one.claim();
  await t.rejects(new Device(origin, 'a', 'Late').claim(), refusal('bootstrap_already_done'));
  const secret = await sealed(one, 'password', { service: 'x', user: 'u', secret: 's' });
  const content = randomBytes(150_000);
  const file = await sealedFile(one, 'a.pdf', content);
  t.same([await one.write(secret), await one.write(file)], [1, 2]);

  const line = await one.connect(2);
  await line.next('caught_up');
  await t.rejects(
    two.join('zoo zoo zoo zoo zoo zoo', () => undefined),
    { message: 'bad_words' },
  );
  const [digits, ...others] = await pairUp(one, two, line);
  t.match(digits, /^\d{6}$/);
  t.same(others, [digits], 'both devices show the same digits');
  line.close();

  const replay = await two.connect();
  for (const plain of [
    { service: 'x', user: 'u', secret: 's' },
    { name: 'a.pdf', size: content.length, mime: 'application/pdf' },
  ])
    t.same(jsonOf(readItem(await replay.next('item')), two), plain, 'the new device opens the item by the master wrap');
  t.match(await replay.next('caught_up'), { itemCount: 2 });
  for (const item of [secret, file]) await one.write(await one.rewrapped(item));
  await replay.next('item');
  const item = readItem(await replay.next('item'));
  const alone = { ...item, master: null };
  const blob = await two.download(item.blob?.ref ?? '');
  t.ok(openBlob(blob, alone, two.reader).equals(content), 'the new device opens the blob by its own key');
  t.throws(
    () => openBlob(blob.subarray(0, 65_552), alone, two.reader),
    { message: 'bad_ct' },
    'a blob that is cut off at a chunk does not open',
  );
  replay.close();

  await two.renew();
  await writesAndReads(t, one, two);
  await recoversAndRevokes(t, one, { two, phrase });
  await t.rejects(itemsOf(two), refusal('device_revoked'));
});
