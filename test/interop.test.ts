/** An independent client and our library on one real server: each reads what the other wrote. */
import t from 'tap';
import { join as joinByWords } from '../src/sdk/pairing.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { bytes, Device, newId, readItem, url, type Json } from './reference-client/client.js';
import * as crypto from './reference-client/cryptography.js';
import { next, shows, wiretap, world, type Wiretap } from './support/client-world.js';
import { until } from './support/events.js';

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
