/** The identity that an application saves for a device, and the payloads that it may pass to it. */
import fc from 'fast-check';
import t from 'tap';
import { Device } from '../src/sdk/device.js';
import { SavableIdentity } from '../src/sdk/identity.js';
import * as browserEntry from '../src/sdk/browser.js';
import * as nodeEntry from '../src/sdk/node.js';
import { PayloadError } from '../src/sdk/payloads/shapes.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import type { PutRequest } from '../src/sdk/writer.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { fakeFetch, fakeSockets, newIdentity } from './support/client.js';
import { note, refusal, wiretap, world } from './support/client-world.js';
import { TestClock } from './support/clock.js';

t.test('SDK-28: an identity survives a round trip through JSON, and the device opens again', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.put(note('kept'));
  const identity = first.identity();
  const saved = JSON.stringify(identity);
  for (const back of [
    SavableIdentity.parse(saved),
    SavableIdentity.parse(JSON.parse(saved)),
    SavableIdentity.parse(SavableIdentity.of(identity).toJSON()),
  ]) {
    t.same(back, identity);
    t.equal(JSON.stringify(back), saved);
    const again = await all.open(back, { store: new MemoryStore() });
    await again.device.pull();
    t.match(await again.device.list(), [{ payload: { text: 'kept' } }]);
  }
  t.match(JSON.parse(saved), { format: 'service-identity', version: 1 });
});

t.test('SDK-28: a renewed token is delivered in an identity that can be saved', async (t) => {
  const tap = wiretap();
  const all = await world(t, { tap });
  const { first } = all;
  const kept: SavableIdentity[] = [];
  const identity = SavableIdentity.of({ ...first.identity(), token: { text: 'over', expiresAt: null } });
  const device = await Device.open({
    platform: tap.platform,
    identity,
    onIdentity: (next) => kept.push(next),
    onProblem: (error) => t.fail(error.message),
  });
  await device.me();
  device.close();
  t.match(SavableIdentity.parse(JSON.stringify(kept.at(-1))), { deviceId: first.device.id });
  t.not(kept.at(-1)?.token.text, 'over');
});

t.test('SDK-28: anything but a saved identity is refused with the field at fault, and not quoted', async (t) => {
  const good = SavableIdentity.of(newIdentity()).toJSON();
  const secret = good.secretKey;
  const bad: readonly (readonly [unknown, RegExp])[] = [
    ['', /JSON/],
    [`{"secretKey":"${secret}`, /JSON/],
    [null, /object/],
    [[], /object/],
    [7, /object/],
    [{}, /format/],
    [{ ...good, format: 'other' }, /format/],
    [{ ...good, version: 2 }, /version/],
    [{ ...good, secretKey: secret.slice(1) }, /secretKey/],
    [{ ...good, secretKey: undefined }, /secretKey/],
    [{ ...good, masterKey: { 0: 1 } }, /masterKey/],
    [{ ...good, serverUrl: 'ftp://x' }, /serverUrl/],
    [{ ...good, serverUrl: 'nowhere' }, /serverUrl/],
    [{ ...good, glyph: 'toaster' }, /glyph/],
    [{ ...good, token: secret }, /token/],
    [{ ...good, token: { text: 'not a token\n' } }, /token/],
  ];
  for (const [saved, message] of bad) {
    t.throws(() => SavableIdentity.parse(saved), { name: 'ClientError', code: 'bad_identity', message });
    t.throws(() => SavableIdentity.parse(JSON.stringify(saved)), { code: 'bad_identity' });
  }
  fc.assert(
    fc.property(fc.anything(), (anything) => {
      try {
        SavableIdentity.parse(anything);
        return false;
      } catch (error) {
        return (
          error instanceof Error &&
          (error as { code?: unknown }).code === 'bad_identity' &&
          !error.message.includes(secret)
        );
      }
    }),
  );
  // What JSON makes of an identity's bytes without `SavableIdentity`: the second start of a program that saved them so.
  const { keys, masterKey, ...rest } = newIdentity();
  const plain = JSON.parse(JSON.stringify({ ...rest, keys, masterKey })) as never;
  const platform = { sodium: nodeSodium, fetch, sockets: fakeSockets().port, clock: new TestClock(), random: () => 0 };
  for (const identity of [plain, good as never, null as never, {} as never]) {
    const error = await refusal(Device.open({ platform, identity, onProblem: () => undefined }));
    t.match(error, { name: 'ClientError', code: 'bad_identity' });
  }
});

t.test(
  'SDK-29: an unknown type or a payload of another shape is refused before anything is sent or kept',
  async (t) => {
    const { fetch: asked, requests } = fakeFetch(() => ({ body: {} }));
    const store = new MemoryStore();
    const platform = {
      sodium: nodeSodium,
      fetch: asked,
      sockets: fakeSockets().port,
      clock: new TestClock(),
      random: () => 0,
    };
    const device = await Device.open({ platform, identity: newIdentity(), store, onProblem: () => undefined });
    const bytes = (json: string): Uint8Array => new TextEncoder().encode(json);
    const cases: readonly (readonly [type: unknown, payload: unknown, path: string, rule: RegExp])[] = [
      ['txt', { text: 'x' }, 'type', /one of password, link, text/],
      [undefined, { text: 'x' }, 'type', /one of/],
      ['__proto__', { text: 'x' }, 'type', /one of/],
      [{}, { text: 'x' }, 'type', /one of/],
      ['text', { text: 1 }, 'payload.text', /text/],
      ['text', { text: {} }, 'payload.text', /text/],
      ['text', {}, 'payload.text', /missing/],
      ['text', { text: '' }, 'payload.text', /missing/],
      ['text', { txt: 'x' }, 'payload.txt', /no field/],
      ['text', { text: 'x', colour: 'red' }, 'payload.colour', /no field/],
      ['text', JSON.parse('{"text":"x","__proto__":{}}'), 'payload.__proto__', /no field/],
      ['text', 'x', 'payload', /object/],
      ['text', null, 'payload', /object/],
      ['text', undefined, 'payload', /object/],
      ['text', [], 'payload', /object/],
      ['text', bytes('{"text":7}'), 'payload.text', /text/],
      ['link', { url: 'nowhere' }, 'payload.url', /address/],
      ['location', {}, 'payload', /name, an address/],
      ['location', { lat: 91, lng: 0 }, 'payload.lat', /90/],
      ['location', { lat: 1 }, 'payload.lng', /together/],
      ['file', { name: 'a', size: '1' }, 'payload.size', /number/],
      ['file', { name: 'a', size: NaN }, 'payload.size', /number/],
    ];
    for (const [type, payload, path, rule] of cases) {
      const error = await refusal(device.put({ binId: 'inbox', type, payload } as PutRequest));
      t.ok(error instanceof PayloadError, `${path}: ${error.message}`);
      t.match(error, { code: 'bad_payload', path, rule });
    }
    t.match(await refusal(device.put({ binId: 'inbox', type: 'text', payload: bytes('no JSON') })), {
      name: 'CryptoRefusal',
      reason: 'bad_payload',
    });
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...CONTENT_TYPES), fc.anything(), async (type, payload) => {
        const error = await refusal(device.put({ binId: 'inbox', type, payload } as PutRequest));
        return error instanceof PayloadError;
      }),
    );
    t.same(requests, [], 'nothing was requested');
    t.same(await store.pending(), [], 'nothing is kept');
    device.close();
  },
);

t.test("SDK-29: a payload of its type's shape is written as given; undefined fields are omitted", async (t) => {
  const { first } = await world(t);
  const put = async (type: PutRequest['type'], payload: Record<string, unknown>, asIs?: boolean) => {
    const { id } = await first.device.put({ binId: 'inbox', type, payload, asIs });
    return (await first.device.get(id))?.payload;
  };
  t.same(await put('link', { url: 'https://a.example', title: undefined }), { url: 'https://a.example' });
  t.same(await put('location', { lat: 0, lng: -180 }), { lat: 0, lng: -180 });
  const another = { text: 'x', of: { another: ['form'] } };
  t.same(await put('text', another, true), another);
  const { id } = await first.device.put({ binId: 'inbox', type: 'text', payload: another, asIs: true });
  await first.device.put({ id, binId: 'inbox', type: 'text', payload: { ...another, text: 'y' } });
  t.match(
    await first.device.get(id),
    { payload: { text: 'y', of: { another: ['form'] } } },
    'the fields that it has may stay',
  );
  const more = { id, binId: 'inbox', type: 'text', payload: { text: 'y', colour: 'red' } } as const;
  t.match(await refusal(first.device.put(more)), { path: 'payload.colour' });
});

t.test(
  'CLIENT-55: changes to one item are made in the order of the calls, however long the store takes for each',
  async (t) => {
    const all = await world(t);
    const store = new MemoryStore();
    const { device } = await all.open(all.first.identity(), { store });
    const { id } = await device.put(note('first'));
    const get = store.get.bind(store);
    // The earlier the call, the later the answer.
    let turns = 100;
    store.get = async (asked) => {
      for (let turn = (turns -= 20); turn > 0; turn--) await new Promise((resolve) => setImmediate(resolve));
      return get(asked);
    };
    const texts = ['one', 'two', 'three'];
    const edits = texts.map((text) => device.put({ ...note(text), id }));
    const gone = device.delete(id);
    const versions = (await Promise.all([...edits, gone])).map(({ version }) => version);
    t.same(
      versions,
      versions.toSorted((one, other) => one - other),
    );
    t.equal(new Set(versions).size, 4);
  },
);

t.test('SDK-30: the names of the other platform are exported, and throw `wrong_platform` when called', async (t) => {
  const wrong = { name: 'ClientError', code: 'wrong_platform' };
  t.throws(() => nodeEntry.browserPlatform(), wrong);
  t.throws(() => nodeEntry.openBrowserStore('notes', { tenantId: 't', deviceId: 'd' }), wrong);
  t.throws(() => browserEntry.nodePlatform(), wrong);
  t.throws(() => browserEntry.openNodeStore('/tmp', { tenantId: 't', deviceId: 'd' }), wrong);
  t.same(Object.keys(nodeEntry).sort(), Object.keys(browserEntry).sort());
});
