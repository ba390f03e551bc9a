/** Clients behind a server that lies: what does not verify is refused with its reason, and nothing leaks (contract 9 and 10). */
import t from 'tap';
import { certifyDevice } from '../src/crypto/device.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newId } from './support/client.js';
import { next, note, refusal, shows, world } from './support/client-world.js';
import { Liar } from './support/liar.js';
import { victim } from './support/victim.js';

t.setTimeout(300_000);

type Json = Record<string, unknown>;

const flipped = (text: string): string => {
  const bytes = Buffer.from(text, 'base64url');
  bytes[0] = (bytes[0] ?? 0) ^ 1;
  return bytes.toString('base64url');
};
const sealOf = (frame: Json): Json => frame['payloadEnc'] as Json;
const resealed = (frame: Json, more: Json): Json => ({ ...frame, payloadEnc: { ...sealOf(frame), ...more } });
const without = (frame: Json, ...fields: readonly string[]): Json => ({
  ...frame,
  payloadEnc: Object.fromEntries(Object.entries(sealOf(frame)).filter(([field]) => !fields.includes(field))),
});

/** Lies about an item, and what a client must say of each. `other` is another item's true frame. */
const ITEM_LIES: readonly [title: string, reason: string, lie: (frame: Json, other: Json) => Json][] = [
  ['CLIENT-02: the tag taken away', 'no_sig', (frame) => without(frame, 'sig')],
  [
    'CLIENT-03: a tag of the server',
    'bad_sig',
    (frame) => resealed(frame, { sig: Buffer.alloc(32, 7).toString('base64url') }),
  ],
  ['CLIENT-03: the tag of another item', 'bad_sig', (frame, other) => resealed(frame, { sig: sealOf(other)['sig'] })],
  [
    'CLIENT-03: relabelled as a password',
    'bad_sig',
    (frame) => ({ ...frame, itemType: 'password', type: typeOf(frame, 'password') }),
  ],
  ['CLIENT-03: made newer', 'bad_sig', (frame) => ({ ...frame, ts: Number(frame['ts']) + 1 })],
  ['CLIENT-03: under another id', 'bad_sig', (frame) => ({ ...frame, id: newId() })],
  ['CLIENT-03: in another bin', 'bad_sig', (frame) => ({ ...frame, binId: 'elsewhere' })],
  [
    'CLIENT-03: a bit of the ciphertext',
    'bad_sig',
    (frame) => resealed(frame, { ct: flipped(String(sealOf(frame)['ct'])) }),
  ],
  [
    'CLIENT-03: a bit of the nonce',
    'bad_sig',
    (frame) => resealed(frame, { nonce: flipped(String(sealOf(frame)['nonce'])) }),
  ],
  [
    'CLIENT-03: the content of another item',
    'bad_sig',
    (frame, other) => ({ ...frame, payloadEnc: other['payloadEnc'] }),
  ],
  [
    'CLIENT-04: the wraps of another item',
    'bad_ct',
    (frame, other) => resealed(frame, { master: sealOf(other)['master'], keys: sealOf(other)['keys'] }),
  ],
  [
    'CLIENT-04: no wrap at all',
    'no_key',
    (frame) => ({ ...without(frame, 'master'), payloadEnc: { ...sealOf(without(frame, 'master')), keys: {} } }),
  ],
  [
    'CLIENT-04: wraps that are noise',
    'no_key',
    (frame) => resealed(without(frame, 'master'), { keys: {}, master: noise() }),
  ],
];
/** The type of a row; of a frame it is the frame's. */
const typeOf = (frame: Json, type: string): unknown => ('itemType' in frame ? frame['type'] : type);
const noise = (): Json => ({
  nonce: Buffer.alloc(24, 1).toString('base64url'),
  ct: Buffer.alloc(48, 1).toString('base64url'),
});

const isItem = (frame: Json): boolean => frame['type'] === 'item';

t.test('items', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const second = await all.pair();
  const liar = await Liar.before(t, all.server.port);
  const fooled = await victim(t, liar, second.identity());
  let other: Json = {};
  liar.frame = (frame) => {
    if (isItem(frame)) other = frame;
    return [frame];
  };
  await fooled.device.connect();
  await shows(fooled, (await first.device.put(note('an honest item'))).id);

  for (const [title, reason, lie] of ITEM_LIES) {
    t.test(title, async (t) => {
      liar.frame = (frame) => [isItem(frame) ? lie(frame, other) : frame];
      const told = next(fooled, 'quarantined');
      const { id } = await first.device.put(note('something secret'));
      const { reason: found, id: named } = await told;
      t.equal(found, reason);
      t.equal(await fooled.device.get(named), undefined, 'it is not shown');
      t.notOk((await fooled.device.list()).some((item) => item.id === id));
      liar.frame = (frame) => [frame];
      await shows(fooled, (await first.device.put(note('an honest one after it'))).id);
    });
  }

  t.test('CLIENT-02 CLIENT-03 CLIENT-04: the same lies in a listing', async (t) => {
    for (const [title, reason, lie] of ITEM_LIES) {
      const { id } = await first.device.put(note('listed'));
      const reader = await victim(t, liar, second.identity());
      liar.answer = ({ path }, truth) =>
        path.startsWith('/items?')
          ? { ...truth, items: (truth['items'] as Json[]).map((row) => (row['id'] === id ? lie(row, other) : row)) }
          : undefined;
      const told = next(reader, 'quarantined');
      await reader.device.pull();
      t.equal((await told).reason, reason, title);
      t.equal(await reader.device.get(id), undefined);
      reader.device.close();
      liar.answer = () => undefined;
    }
  });

  t.test('a delete that no device made hides the item, keeps its content, and is told', async (t) => {
    const { id: victimId } = await first.device.put(note('to be deleted by the server'));
    const { id: otherId } = await first.device.put(note('deleted by its owner'));
    await shows(fooled, otherId);
    let ownerTag: unknown;
    const seen = next(fooled, 'delete', (event) => event.id === otherId);
    liar.frame = (frame) => {
      if (frame['type'] === 'delete') ownerTag = frame['sig'];
      return [frame];
    };
    await first.device.delete(otherId);
    await seen;
    for (const [sig, reason] of [
      [undefined, 'no_sig'],
      [Buffer.alloc(32).toString('base64url'), 'bad_sig'],
      [ownerTag, 'bad_sig'],
    ] as const) {
      const reader = await victim(t, liar, second.identity());
      await reader.device.connect();
      liar.frame = (frame) => [
        isItem(frame)
          ? { type: 'delete', id: frame['id'], version: frame['version'], ...(sig === undefined ? {} : { sig }) }
          : frame,
      ];
      const told = next(reader, 'untagged_delete');
      await first.device.put({ ...note('to be deleted by the server, again'), id: victimId });
      t.match(await told, { id: victimId, reason });
      t.match(await reader.device.kept(victimId), { payload: { text: String } }, 'the last content is kept');
      reader.device.close();
      liar.frame = (frame) => [frame];
    }
  });

  t.test('an old state under a new version, and a deleted item that comes back, are refused', async (t) => {
    const frames: Json[] = [];
    const reader = await victim(t, liar, second.identity());
    liar.frame = (frame) => {
      if (isItem(frame)) frames.push(frame);
      return [frame];
    };
    await reader.device.connect();
    const { id } = await first.device.put(note('old'));
    await shows(reader, id);
    const old = frames.find((frame) => frame['id'] === id) ?? {};
    const { version } = await first.device.put({ ...note('new'), id });
    await shows(reader, id, (item) => item.version === version);
    for (const reason of ['rolled_back', 'resurrected']) {
      if (reason === 'resurrected') {
        const gone = next(reader, 'delete', (event) => event.id === id);
        await first.device.delete(id);
        await gone;
      }
      liar.frame = (frame) => [isItem(frame) ? { ...old, version: frame['version'] } : frame];
      const told = next(reader, 'quarantined');
      await first.device.put(note('what the liar hides behind'));
      t.match(await told, { id, reason });
      t.equal(await reader.device.get(id), undefined);
      liar.frame = (frame) => [frame];
      if (reason === 'rolled_back') {
        const { version: again } = await first.device.put({ ...note('newest'), id });
        await shows(reader, id, (item) => item.version === again);
      }
    }
    reader.device.close();
  });

  t.test('CLIENT-30: an item that the server counts and hides everywhere is reported missing', async (t) => {
    const { id } = await first.device.put(note('hidden'));
    const hide = (rows: readonly Json[]): Json[] => rows.filter((row) => row['id'] !== id);
    liar.frame = (frame) => (frame['id'] === id ? [] : [frame]);
    liar.answer = ({ path }, truth) =>
      path.startsWith('/items?') ? { ...truth, items: hide(truth['items'] as Json[]) } : undefined;
    const reader = await victim(t, liar, second.identity());
    const missing = next(reader, 'missing');
    await reader.device.connect();
    const { expected, held } = await missing;
    t.equal(held.itemCount, expected.itemCount - 1);
    t.ok(held.versionSum < expected.versionSum);
    reader.device.close();
    liar.frame = (frame) => [frame];
    liar.answer = () => undefined;
  });

  t.test('CLIENT-32 CLIENT-35: nonsense between frames and cut lines do not stop the stream', async (t) => {
    const reader = await victim(t, liar, second.identity());
    const nonsense: Json[] = [
      { type: 'advert', text: 'buy' },
      { type: 'item' },
      { type: 'delete', id: 5 },
      { type: 'caught_up' },
      {},
    ];
    liar.frame = (frame) => [...nonsense, frame];
    await reader.device.connect();
    const { id, version } = await first.device.put(note('through the noise'));
    await shows(reader, id);
    t.ok(reader.problems.length > 0, 'what breaks the contract is reported');
    liar.heard.length = 0;
    const back = next(reader, 'caught_up');
    liar.cut();
    await back;
    const hellos = liar.heard.filter((text) => text.includes('"hello"')).map((text) => JSON.parse(text) as Json);
    t.ok(
      hellos.some((hello) => hello['since'] === version),
      'it goes on from the last version it applied',
    );
    reader.device.close();
    liar.frame = (frame) => [frame];
  });
});

t.test('devices that the server slipped in', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair();
  const liar = await Liar.before(t, all.server.port);
  const { masterKey, deviceId } = second.identity();
  const spy = nodeSodium.boxKeyPair();
  const url = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64url');
  const spyId = newId();
  const certOf = (device: Json): unknown => device['cert'];
  const added =
    (cert: unknown) =>
    (devices: Json[]): Json[] => [
      ...devices,
      { ...devices[0], id: spyId, name: 'Spy', pubkey: url(spy.publicKey), cert, current: false },
    ];
  const another = (devices: Json[]): Json => devices.find((device) => device['id'] !== deviceId) ?? {};
  const lies: readonly [title: string, named: () => string, lie: (devices: Json[]) => Json[]][] = [
    ['CLIENT-05 CLIENT-06: one without a cert', () => spyId, added(null)],
    ['CLIENT-05 CLIENT-06: one with an invented cert', () => spyId, added(url(Buffer.alloc(32, 3)))],
    [
      'CLIENT-05 CLIENT-06: one with the cert of another',
      () => spyId,
      (devices) => added(certOf(another(devices)))(devices),
    ],
    [
      'CLIENT-05 CLIENT-06: one with a cert under another master key',
      () => spyId,
      added(url(certifyDevice(nodeSodium, nodeSodium.random(32), { id: spyId, publicKey: spy.publicKey }))),
    ],
    [
      'CLIENT-05 CLIENT-06: an own device with another key',
      () => all.first.device.id,
      (devices) =>
        devices.map((device) => (device['id'] === deviceId ? device : { ...device, pubkey: url(spy.publicKey) })),
    ],
  ];
  for (const [title, named, lie] of lies) {
    t.test(title, async (t) => {
      const fooled = await victim(t, liar, second.identity());
      liar.calls.length = 0;
      liar.answer = ({ path }, truth) =>
        path === '/devices' ? { ...truth, devices: lie(truth['devices'] as Json[]) } : undefined;
      const error = await refusal(fooled.device.put(note('not for spies')));
      t.equal(error.code, 'uncertified_device');
      t.match(error.message, named());
      t.same(
        liar.calls.filter(({ path }) => path.startsWith('/items')),
        [],
        'nothing was sent',
      );
      liar.answer = () => undefined;
      await fooled.device.roster.refresh();
      t.match(await fooled.device.put(note('when the list is true again')), { version: Number });
      fooled.device.close();
    });
  }

  t.test('CLIENT-05: under its own id a device believes its own key only', async (t) => {
    const fooled = await victim(t, liar, second.identity());
    liar.answer = ({ path }, truth) =>
      path === '/devices'
        ? {
            ...truth,
            devices: (truth['devices'] as Json[]).map((device) =>
              device['id'] === deviceId ? { ...device, pubkey: url(spy.publicKey) } : device,
            ),
          }
        : undefined;
    await fooled.device.put(note('mine'));
    liar.answer = () => undefined;
    const sent = liar.calls.findLast(({ path }) => path === '/items')?.body ?? {};
    const sealed = Buffer.from(String((sealOf(sent)['keys'] as Json)[deviceId]), 'base64url');
    t.equal(nodeSodium.sealOpen(sealed, spy), undefined, 'the spy opens nothing');
    t.ok(nodeSodium.sealOpen(sealed, second.identity().keys));
    fooled.device.close();
  });

  t.notOk(liar.leaked(masterKey), 'CLIENT-01: the master key was in nothing that was sent');
});
