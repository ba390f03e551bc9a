/** A client from other hands beside ours, on one real server: each reads what the other wrote. */
import t from 'tap';
import { join as joinByWords } from '../src/client/pairing.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newId } from './support/devices.js';
import { until } from './support/events.js';
import { next, shows, wiretap, world, type Wiretap } from './support/client-world.js';
import {
  certOf,
  codeOf,
  deleteTag,
  linkOf,
  makeItem,
  makeMeta,
  masterOf,
  newWords,
  openSealed,
  pair,
  raw,
  readItem,
  readMeta,
  url,
  type PlainItem,
} from './support/independent.js';
import { hex, seal, type Bytes } from './vectors/reference.js';

t.setTimeout(600_000);

const HOST = '127.0.0.1';
const PAYLOAD = { text: 'Grüße, 世界 🔑', more: [1, null] };

/** A wire with the true Argon2id: the other side has no quick one. */
function trueWire(): Wiretap {
  const tap = wiretap();
  return { ...tap, platform: { ...tap.platform, sodium: nodeSodium } };
}

t.test('SDK-27: a client made from the reference alone and ours read each other', async (t) => {
  const all = await world(t, { tap: trueWire() });
  const { first, server } = all;
  const { wire } = server;
  await first.device.connect();
  const master = await masterOf(all.phrase);
  t.equal(hex(master), hex(first.identity().masterKey), 'the phrase gives both the same master key');

  const me = { id: newId(), keys: pair(), name: 'Other hands 📱', glyph: 'phone' };
  let token = '';

  const ask = () => ({ token, shape: 'a' as const });
  const rowOf = async (id: string): Promise<PlainItem> => {
    const list = (await wire.get('/items?since=0&limit=1000', ask())).list('items');
    return list.find((row) => row['id'] === id) as unknown as PlainItem;
  };

  await t.test('it joins by the words that ours shows', async (t) => {
    const shown: string[] = [];
    const before = await first.device.put({ binId: 'inbox', type: 'text', payload: PAYLOAD, asIs: true });
    const offer = await first.device.offerPairing(({ digits }) => {
      shown.push(digits);
      return true;
    });
    const { wire: code, codeKey } = await codeOf(offer.words);
    const epk = raw((await wire.post('/devices/pair-fetch-epk', { code }, { shape: 'a' })).text('epk'));
    const { id: deviceId, name, glyph } = me;
    const meeting = { wire: code, host: HOST, epk, npk: me.keys.open, deviceId, name, glyph };
    const link = linkOf(meeting, codeKey, me.keys.secret, epk);
    const request = { code, deviceId, host: HOST, pubkey: url(me.keys.open), name, glyph };
    const body = { ...request, attestation: url(link.attestation) };
    // Only now: the other hands' Argon2id above takes many seconds.
    const rewrapped = next(first, 'rewrapped');
    const reply = await wire.post('/devices/pair-fetch-npk', body, { shape: 'a' });
    t.equal(reply.status, 200, reply.raw);
    const [wrapped, cert] = [raw(reply.text('wrappedMasterKey')), raw(reply.text('deviceCert'))];
    t.equal(hex(link.confirmation(wrapped, cert)), hex(raw(reply.text('confirmation'))), 'the confirmation');
    t.equal(hex(openSealed(wrapped, me.keys)), hex(master), 'the master key');
    t.equal(hex(cert), hex(certOf(master, deviceId, me.keys.open)), 'the certificate');
    t.same(shown, [link.digits], 'the same digits on both screens');
    token = reply.text('token');
    await Promise.all([offer.joined, rewrapped]);
    const row = await rowOf(before.id);
    t.same(JSON.parse(readItem(row, master, me)), PAYLOAD, 'an item from before, by the key that ours added');
  });

  /** Everybody in the list whose certificate is right. */
  const devices = async (): Promise<ReadonlyMap<string, Bytes>> => {
    const list = (await wire.get('/devices', ask())).list('devices');
    return new Map(
      list.map(({ id, pubkey, cert }) => {
        t.equal(hex(raw(cert)), hex(certOf(master, String(id), raw(pubkey))), `certificate of ${String(id)}`);
        return [String(id), raw(pubkey)];
      }),
    );
  };

  await t.test('it reads what ours writes: item, new content, move, bin and delete', async (t) => {
    const { id } = await first.device.put({ binId: 'inbox', type: 'text', payload: PAYLOAD, asIs: true });
    t.equal(readItem(await rowOf(id), master, me), JSON.stringify(PAYLOAD));
    await first.device.put({ id, binId: 'inbox', type: 'link', payload: { url: 'https://example.org/' } });
    t.equal(readItem(await rowOf(id), master, me), '{"url":"https://example.org/"}');
    await first.device.bins.create('shopping', { name: 'Einkäufe', emoji: '🛒' });
    const bin = (await wire.get('/bins', ask())).list('bins').find((one) => one['id'] === 'shopping');
    t.same(JSON.parse(readMeta('shopping', raw(bin?.['meta']), master)), { name: 'Einkäufe', emoji: '🛒' });
    await first.device.move(id, 'shopping');
    const moved = await rowOf(id);
    t.equal(moved.binId, 'shopping');
    t.equal(readItem(moved, master, me), '{"url":"https://example.org/"}', 'under its new tag');
    await first.device.delete(id);
    const gone = (await rowOf(id)) as unknown as Record<string, unknown>;
    t.ok(gone['deletedAt'], 'deleted');
    const tags = [gone['sig'], gone['deleteSig']].filter((tag) => tag !== undefined && tag !== null);
    t.same(
      tags.map((tag) => hex(raw(tag))),
      [hex(deleteTag(master, id))],
      'the tag of the delete',
    );
  });

  await t.test('ours reads what it writes: item, new content, bin and delete', async (t) => {
    const head = { id: newId(), binId: 'inbox', type: 'text', ts: Date.now() };
    const arrives = shows(first, head.id);
    const text = '{ "text": "von anderer Hand", "n": 1.50 }';
    const item = makeItem(head, text, { master, devices: await devices() });
    t.equal((await wire.post('/items', item, ask())).status, 200);
    t.match(await arrives, { payload: { text: 'von anderer Hand', n: 1.5 }, senderDevice: me.id });
    const later = { ...head, type: 'code', ts: head.ts + 1 };
    const changed = shows(first, head.id, ({ type }) => type === 'code');
    await wire.post('/items', makeItem(later, '{"text":"x"}', { master, devices: await devices() }), ask());
    t.same((await changed).payload, { text: 'x' });
    const meta = url(makeMeta('b-1', '{"name":"Fremd"}', master));
    t.equal((await wire.post('/bins', { id: 'b-1', meta }, ask())).status, 200);
    await first.device.bins.refresh('changed');
    const bins = await first.device.bins.list();
    t.match(
      bins.find(({ id }) => id === 'b-1'),
      { label: { name: 'Fremd' } },
    );
    const deleted = next(first, 'delete', ({ id }) => id === head.id);
    const reply = await wire.delete(`/items/${head.id}`, { ...ask(), body: { sig: url(deleteTag(master, head.id)) } });
    t.equal(reply.status, 200);
    await deleted;
    t.equal(await first.device.get(head.id), undefined);
    t.same(await first.device.hidden(), [], 'nothing was refused');
    t.same(first.problems, []);
  });

  await t.test('ours joins by the words that it shows', async (t) => {
    const words = newWords();
    const { wire: code, codeKey } = await codeOf(words);
    const own = pair();
    t.equal((await wire.post('/devices/pair-init', { code, epk: url(own.open) }, ask())).status, 200);
    const seen: string[] = [];
    const joining = joinByWords({
      platform: trueWire().platform,
      serverUrl: all.url,
      name: 'Ours',
      glyph: 'tablet',
      words,
      onDigits: (digits) => seen.push(digits),
    });
    joining.catch(() => undefined);
    let request: Record<string, unknown> | undefined;
    // Argon2id stands before it.
    const looked = async (): Promise<boolean> => {
      [request] = (await wire.get('/devices/pair-requests', ask())).list('requests');
      return request !== undefined;
    };
    await until('its request', looked, 60_000);
    const npk = raw(request?.['pubkey']);
    const [deviceId, host, name, glyph] = ['deviceId', 'host', 'name', 'glyph'].map((field) =>
      String(request?.[field]),
    ) as [string, string, string, string];
    t.same([host, name, glyph], [HOST, 'Ours', 'tablet']);
    const link = linkOf({ wire: code, host, epk: own.open, npk, deviceId, name, glyph }, codeKey, own.secret, npk);
    t.equal(hex(raw(request?.['attestation'])), hex(link.attestation), 'the attestation');
    const [wrapped, cert] = [seal(master, npk, pair().secret), certOf(master, deviceId, npk)];
    const release = { wrappedMasterKey: url(wrapped), deviceCert: url(cert) };
    const body = { code, ...release, confirmation: url(link.confirmation(wrapped, cert)) };
    t.equal((await wire.post('/devices/pair-wrap', body, ask())).status, 200);
    const identity = await joining;
    t.equal(identity.deviceId, deviceId);
    t.equal(hex(identity.masterKey), hex(master));
    t.same(seen, [link.digits], 'the same digits on both screens');
  });
});
