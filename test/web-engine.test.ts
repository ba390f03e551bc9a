/** The web app's engine without a browser: the sealed identity, deletions that can be undone, uploads that wait. */
import { setImmediate } from 'node:timers/promises';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { ContentType } from '../src/protocol/item.js';
import type { ItemView } from '../src/sdk/events.js';
import { ApiError, ClientError, NetworkError, QueuedError } from '../src/sdk/errors.js';
import type { BegunUpload } from '../src/sdk/blobs/begun.js';
import { storeError } from '../src/sdk/store/error.js';
import type { PutRequest } from '../src/sdk/writer.js';
import { Cell } from '../src/web/engine/cell.js';
import { Engine } from '../src/web/engine/engine.js';
import { Notices } from '../src/web/engine/notices.js';
import { readRemembered, writeRemembered } from '../src/web/engine/remembered.js';
import { Removals, UNDO_MS } from '../src/web/engine/removals.js';
import { rowOf, safeHref } from '../src/web/engine/rows.js';
import { SharedInbox } from '../src/web/engine/shared-inbox.js';
import { typeOfFile, Uploads } from '../src/web/engine/uploads.js';
import { Vault } from '../src/web/engine/vault.js';
import type { PutParams } from '../src/web/link/messages.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { identity, Records } from './support/web-records.js';

/** Every byte and text of a value. */
function dumped(value: unknown): string {
  if (value instanceof Uint8Array) return Buffer.from(value).toString('latin1');
  if (typeof value === 'object' && value !== null && !(value instanceof CryptoKey))
    return Object.values(value).map(dumped).join(' ');
  return typeof value === 'string' ? value : '';
}

t.test(
  'WEB-50: browser storage holds no key as text, and no script can read the key that opens the identity',
  async (t) => {
    const records = new Records();
    const vault = new Vault(records, nodeSodium);
    await vault.create(identity);
    const all = [...records.kept.values()].map(dumped).join(' ');
    const saved = identity.toJSON();
    for (const secret of [saved.secretKey, saved.masterKey, saved.token.text]) t.notOk(all.includes(secret));
    t.notOk(all.includes(Buffer.from(identity.masterKey).toString('latin1')));
    const { key } = records.kept.get('lock') as { key: CryptoKey };
    t.equal(key.extractable, false);
    await t.rejects(crypto.subtle.exportKey('raw', key));
    t.same((await new Vault(records, nodeSodium).open()).toJSON(), saved, 'the identity opens at the next start');
  },
);

t.test('WEB-51: a passphrase opens what it locked, and nothing else does', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  await vault.create(identity);
  await vault.setLock({ kind: 'passphrase', passphrase: 'correct horse' });
  t.match(await vault.lockState(), { kind: 'passphrase' });
  vault.close();
  for (const accept of [
    () => vault.remember([]),
    () => vault.save(identity),
    () => vault.setLock({ kind: 'none' }),
    () => vault.setLockAfter(null),
  ])
    await t.rejects(accept(), { code: 'bad_identity' }, 'a locked vault accepts nothing');
  const next = new Vault(records, nodeSodium);
  const secret = new Uint8Array(32);
  for (const opener of [undefined, { passphrase: 'correct horsf' }, { passphrase: '' }, { secret }])
    await t.rejects(next.open(opener), { code: 'bad_identity' });
  t.same((await next.open({ passphrase: 'correct horse' })).toJSON(), identity.toJSON());
  await next.setLock({ kind: 'none' });
  t.same((await new Vault(records, nodeSodium).open()).toJSON(), identity.toJSON(), 'the lock can be removed');
});

t.test('WEB-51: a passkey opens what it locked, and another does not', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  await vault.create(identity);
  const secret = nodeSodium.random(32);
  const passkey = { credentialId: nodeSodium.random(16), salt: nodeSodium.random(32) };
  await vault.setLock({ kind: 'passkey', passkey, secret });
  const next = new Vault(records, nodeSodium);
  t.same(await next.lockState(), { kind: 'passkey', passkey });
  await t.rejects(next.open({ secret: nodeSodium.random(32) }), { code: 'bad_identity' });
  await t.rejects(next.open({ passphrase: 'x' }), { code: 'bad_identity' });
  t.same((await next.open({ secret })).toJSON(), identity.toJSON());
});

t.test('WEB-63: a lock that is set while another tab locks still opens what it locked', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  await vault.create(identity);
  const [before, after] = [{ passphrase: 'correct horse' }, { passphrase: 'battery staple' }];
  await vault.setLock({ kind: 'passphrase', ...before });
  const platform = { clock: new TestClock(), sodium: nodeSodium };
  const engine = new Engine(platform as never, records as never, 'https://sync.example.org');
  await (engine as unknown as { vault: Vault }).vault.open(before);
  engine.session.set({ close: () => Promise.resolve(), relock: () => undefined } as never);
  await Promise.all([engine.setLock({ kind: 'passphrase', ...after }), engine.lock()]);
  t.match(engine.phase.value, { phase: 'locked' });
  t.same((await new Vault(records, nodeSodium).open(after)).toJSON(), identity.toJSON());
});

t.test('WEB-57: a slug that a server left empty does not take what a start without it needs', async (t) => {
  const vault = new Vault(new Records(), nodeSodium);
  await vault.create(identity);
  const bin = { createdAt: 1, updatedAt: 1, itemCount: null, label: { name: 'Home' }, readable: true };
  await writeRemembered(vault, { devices: [], bins: ['home', ''].map((slug) => ({ ...bin, id: 'home', slug })) });
  t.match(await readRemembered(vault), {
    devices: [],
    bins: [{ label: { name: 'Home' } }, { label: { name: 'Home' } }],
  });
});

t.test('WEB-57: an unreachable server is queried by one request at a time whether it is claimed', async (t) => {
  const clock = new TestClock();
  const fetch = () => Promise.reject(new TypeError('no server'));
  const platform = { clock, fetch, sodium: nodeSodium, random: () => 0 };
  const engine = new Engine(platform as never, new Records() as never, 'https://sync.example.org');
  await engine.start();
  for (let times = 0; times < 10; times++) engine.askClaimed();
  for (let seconds = 0; seconds < 60; seconds++) {
    clock.advance(1_000);
    await setImmediate();
  }
  t.match(engine.phase.value, { phase: 'empty', claimed: null, problem: { code: 'network' } });
  t.equal(clock.waiting, 2, 'one timer waits in addition to that of the lock');
});

function removals(records: Records, clock: TestClock) {
  const removed: string[] = [];
  const made = new Removals(records, clock, {
    remove: (id) => {
      removed.push(id);
      return Promise.resolve();
    },
    changed: () => undefined,
  });
  return { made, removed };
}

t.test('WEB-52: a deletion can be undone for eight seconds, in which nothing is sent', async (t) => {
  const records = new Records();
  const clock = new TestClock();
  const { made, removed } = removals(records, clock);
  for (const id of ['one', 'two']) await made.add(id);
  t.equal(made.at('one'), clock.now() + UNDO_MS);
  clock.advance(UNDO_MS - 1);
  await made.cancel('one');
  t.same(removed, []);
  t.equal(made.at('one'), null);
  clock.advance(1);
  t.same(removed, ['two']);
  await until('nothing waits', () => records.kept.size === 0);
});

t.test('WEB-52: a deletion is carried out even where the tab was closed meanwhile', async (t) => {
  const records = new Records();
  const clock = new TestClock();
  const first = removals(records, clock);
  for (const id of ['one', 'two']) await first.made.add(id);
  first.made.close();
  clock.advance(UNDO_MS * 10);
  t.same(first.removed, [], 'not by the closed tab');
  const { made, removed } = removals(records, clock);
  await made.load();
  clock.advance(0);
  t.same(removed, ['one', 'two']);
  const past = new Records();
  await past.put('removal:three', clock.now() + 10 * 24 * 3_600_000);
  const later = removals(past, clock);
  await later.made.load();
  clock.advance(UNDO_MS);
  t.same(later.removed, ['three'], 'a clock that was set back delays a deletion by no more than the eight seconds');
});

t.test('WEB-52: a deletion that two tabs request at once can be undone', async (t) => {
  const records = new Records();
  const clock = new TestClock();
  const { made, removed } = removals(records, clock);
  await Promise.all([made.add('one'), made.add('one')]);
  await made.cancel('one');
  clock.advance(UNDO_MS);
  t.same([removed, records.kept.size], [[], 0]);
});

t.test('WEB-52 WEB-58: what is closed while it plans deletions stores no more of them', async (t) => {
  const records = new Records();
  const clock = new TestClock();
  const { made, removed } = removals(records, clock);
  const put = records.put.bind(records);
  records.put = (key, value) => {
    if (key === 'removal:two') made.close();
    return put(key, value);
  };
  for (const id of ['one', 'two']) await made.add(id);
  await t.rejects(made.add('three'), { code: 'closed' });
  clock.advance(UNDO_MS);
  t.same([removed, [...records.kept.keys()]], [[], ['removal:one', 'removal:two']]);
});

/** Uploads with a device whose answers the test gives; `begun`: its earlier uploads; `pending`: items in its outbox. */
function uploading(
  records: Records,
  put: (request: PutRequest) => Promise<unknown>,
  more: {
    readonly begun?: readonly Pick<BegunUpload, 'id' | 'sent'>[];
    readonly giveUp?: (id: string) => Promise<void>;
    readonly pending?: readonly string[];
    readonly get?: () => Promise<undefined>;
  } = {},
) {
  const { begun = [], giveUp = () => Promise.resolve(), pending = [], get } = more;
  const requests: PutRequest[] = [];
  const givenUp: string[] = [];
  const problems: unknown[] = [];
  const clock = new TestClock();
  const made = new Uploads(records, {
    remove: (id) => Promise.resolve(void givenUp.push(`item ${id}`)),
    device: {
      get: get ?? ((id) => Promise.resolve(pending.includes(id) ? ({ id, pending: true } as ItemView) : undefined)),
      put: async (request) => {
        requests.push(request);
        await put(request);
        return { id: request.id ?? '', version: 1 };
      },
      uploads: () => Promise.resolve(begun as readonly BegunUpload[]),
      giveUpUpload: (id) => {
        givenUp.push(id);
        return giveUp(id);
      },
    },
    clock,
    onProblem: (error) => problems.push(error),
  });
  return { made, requests, problems, clock, givenUp };
}

const file = (name: string, type: string): File => new File([new Uint8Array(10)], name, { type });
const waiting = (...files: readonly File[]) => files.map((file, at) => ({ id: `id-${at + 1}`, binId: 'inbox', file }));

t.test('WEB-56: a file whose item cannot be read for the moment is not sent again', async (t) => {
  const records = new Records();
  await uploading(records, () => new Promise(() => undefined)).made.add(waiting(file('a.pdf', 'application/pdf')));
  const put = (): Promise<unknown> => Promise.resolve();
  const failing = uploading(records, put, { get: () => Promise.reject(storeError('io')) });
  await t.rejects(failing.made.load(), { code: 'io' });
  t.same(failing.requests, [], 'it may be written already');
  const damaged = new ClientError('damaged_item', 'it does not open');
  const next = uploading(records, put, { get: () => Promise.reject(damaged) });
  await next.made.load();
  await until('it is sent', () => next.requests.length === 1);
});

t.test(
  'WEB-53: a file waits in the browser until its item is written, and resumes after a crash under the same id',
  async (t) => {
    const records = new Records();
    const first = uploading(records, () => new Promise(() => undefined));
    await first.made.add(waiting(file('a.pdf', 'application/pdf'), file('b.svg', 'image/svg+xml')));
    await until('the first is being sent', () => first.requests.length === 1);
    t.equal(records.kept.size, 2);
    const next = uploading(records, () => Promise.resolve());
    await next.made.load();
    await until('both are written', () => next.made.list.value.length === 0);
    t.same(
      next.requests.map(({ id, type, payload }) => ({ id, type, payload })),
      [
        { id: 'id-1', type: 'file', payload: { name: 'a.pdf', size: 10, mime: 'application/pdf' } },
        { id: 'id-2', type: 'file', payload: { name: 'b.svg', size: 10, mime: 'image/svg+xml' } },
      ],
      'an SVG is a file, because it may contain a script',
    );
    await until('nothing waits', () => records.kept.size === 0);
    t.same([...first.problems, ...next.problems], []);
  },
);

t.test(
  'WEB-92: an upload that outlived its tab shows where it continues, and a cancelled one is given up',
  async (t) => {
    const records = new Records();
    const first = uploading(records, () => new Promise(() => undefined));
    await first.made.add(waiting(file('a.bin', ''), file('b.bin', '')));
    first.made.close();
    const next = uploading(records, () => new Promise(() => undefined), { begun: [{ id: 'id-1', sent: 4 }] });
    await next.made.load();
    t.match(next.made.list.value, [
      { name: 'a.bin', done: 4, size: 10 },
      { name: 'b.bin', done: 0 },
    ]);
    await next.made.cancel('id-1');
    t.same(next.givenUp, ['id-1']);
    t.equal(records.kept.size, 1);
  },
);

t.test('WEB-93: an upload that was cancelled without a server is given up when the server is back', async (t) => {
  const records = new Records();
  let away = true;
  const giveUp = (): Promise<void> =>
    away ? Promise.reject(new NetworkError('network', 'no server')) : Promise.resolve();
  const first = uploading(records, () => new Promise(() => undefined), { giveUp });
  await first.made.add(waiting(file('a.bin', ''), file('b.bin', '')));
  await first.made.cancel('id-1');
  t.same(first.givenUp, ['id-1']);
  first.clock.advance(60_000);
  t.same(first.givenUp, ['id-1', 'id-1']);
  away = false;
  await setImmediate();
  first.made.resume();
  await setImmediate();
  first.made.resume();
  t.same(first.givenUp, ['id-1', 'id-1', 'id-1'], 'nothing is sent once the upload was given up');
  first.made.close();
  // The tab was closed before the server was back: the browser has nothing to continue the upload with.
  const begun = [
    { id: 'id-1', sent: 4 },
    { id: 'id-2', sent: 5 },
  ];
  const next = uploading(records, () => new Promise(() => undefined), { begun });
  await next.made.load();
  t.same(next.givenUp, ['id-1']);
  t.match(next.made.list.value, [{ name: 'b.bin', done: 5 }]);
  t.same([...first.problems, ...next.problems], []);
});

t.test(
  'WEB-53: an upload that found no server is tried again when the server is back; a cancelled one is gone',
  async (t) => {
    const records = new Records();
    let away = true;
    const { made, requests, clock } = uploading(records, () =>
      away ? Promise.reject(new NetworkError('network', 'no server')) : Promise.resolve(),
    );
    await made.add(waiting(file('a.bin', ''), file('b.bin', '')));
    await until('both have failed', () => made.list.value.every(({ state }) => state === 'failed'));
    t.match(made.list.value[0], { name: 'a.bin', size: 10, problem: null }, 'nobody has to do anything');
    t.equal(records.kept.size, 2, 'both files are kept');
    await made.cancel('id-2');
    away = false;
    clock.advance(60_000);
    await until('the other is written', () => made.list.value.length === 0);
    t.same(
      requests.map(({ id }) => id),
      ['id-1', 'id-2', 'id-1'],
    );
    await until('nothing waits', () => records.kept.size === 0);
  },
);

t.test('WEB-53: an upload that got 502 from a proxy is tried again, one that was refused is not', async (t) => {
  const proxy = new ApiError({ code: 'bad_reply', status: 502, message: 'a page of the proxy' });
  const refusal = new ApiError({ code: 'blob_too_large', status: 413, message: 'too large' });
  const { made, requests, clock } = uploading(new Records(), ({ id }) =>
    Promise.reject(id === 'id-1' ? proxy : refusal),
  );
  await made.add(waiting(file('a.bin', ''), file('b.bin', '')));
  await until('both have failed', () => made.list.value.every(({ state }) => state === 'failed'));
  t.match(made.list.value, [{ problem: null }, { problem: { code: 'blob_too_large' } }]);
  clock.advance(60_000);
  await until('it is tried again', () => requests.length > 2);
  await until('in vain', () => made.list.value.every(({ state }) => state === 'failed'));
  t.same(
    requests.map(({ id }) => id),
    ['id-1', 'id-2', 'id-1'],
  );
});

t.test(
  'WEB-82: a file whose item waits is kept until the item is written, and sent again where it is refused',
  async (t) => {
    const records = new Records();
    const { made, requests } = uploading(records, () =>
      Promise.reject(new QueuedError('id-1', new Error('no server'))),
    );
    await made.add(waiting(file('a.bin', '')));
    await until('its item waits', () => made.list.value[0]?.state === 'waiting' && requests.length === 1);
    t.equal(made.retry('another', 'queued'), false);
    t.equal(made.retry('id-1', 'queued'), true);
    await until('it is sent again', () => requests.length === 2);
    t.equal(records.kept.size, 1);
    await until('its item waits again', () => made.list.value[0]?.state === 'waiting');
    made.written('id-1');
    await until('nothing waits', () => records.kept.size === 0 && made.list.value.length === 0);
  },
);

t.test(
  'WEB-96: a file whose item waits in the outbox is told apart, not sent again by a later run, and deleted if cancelled',
  async (t) => {
    const records = new Records();
    const queued = (id: string) => Promise.reject(new QueuedError(id, new Error('no server')));
    const first = uploading(records, ({ id = '' }) => (id === 'id-1' ? queued(id) : new Promise(() => undefined)));
    await first.made.add(waiting(file('a.bin', ''), file('b.bin', '')));
    await until('the second is being sent', () => first.requests.length === 2);
    const counted = () => first.made.list.value.map(({ queued }) => queued);
    t.same(counted(), [true, false]);
    first.made.kept('id-2');
    t.same(counted(), [true, true], 'its reply is awaited, and a crash would not lose it');
    first.made.close();
    const next = uploading(records, () => new Promise(() => undefined), { pending: ['id-1'] });
    await next.made.load();
    await until('the second is being sent again', () => next.requests.length === 1);
    t.match(next.requests, [{ id: 'id-2' }]);
    t.match(next.made.list.value, [{ state: 'waiting', queued: true }, { queued: false }]);
    t.equal(next.made.retry('id-1', 'queued'), true, 'it is sent again where its item is refused');
    next.made.written('id-1');
    t.match(next.made.list.value, [{ name: 'b.bin' }]);
    next.made.kept('id-2');
    await next.made.cancel('id-2');
    t.same(next.givenUp, ['item id-2'], 'it would be sent later');
  },
);

t.test('WEB-82: refused changes of earlier runs are listed as before, the newest first', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  await vault.create(identity);
  const clock = new TestClock();
  const ports = { records, vault, clock, write: () => Promise.resolve() };
  const made = new Notices(ports);
  for (const title of ['one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight']) {
    clock.advance(1_000);
    const item = { id: title, binId: 'inbox', type: 'text', payload: { text: title } } as const;
    await made.refused(item, { title, error: new Error('conflict'), isNew: false });
  }
  const next = new Notices(ports);
  await next.load();
  t.same(next.list.value, made.list.value);
});

t.test('WEB-82: refused changes are kept encrypted, each separately, until written or dismissed', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  await vault.create(identity);
  let refuses = false;
  const written: unknown[] = [];
  const ports = {
    ...{ records, vault, clock: new TestClock() },
    write: (item: PutParams, how: string) => {
      if (refuses) return Promise.reject(new Error('refused'));
      written.push([item.payload, how]);
      return Promise.resolve();
    },
  };
  const made = new Notices(ports);
  const error = new Error('conflict');
  for (const words of ['one', 'two'])
    await made.refused(
      { id: words, binId: 'inbox', type: 'text', payload: { text: words } },
      { title: 'same', error, isNew: false },
    );
  made.add('reset');
  made.add('reset');
  t.equal(made.list.value.length, 3, 'equal notices without content are listed once');
  for (let at = 0; at < 150; at++) made.add('problem', Object.assign(new Error('x'), { code: `code_${at}` }));
  t.equal(
    made.list.value.filter(({ canResend }) => canResend).length,
    2,
    'many notices displace none that has content',
  );
  t.ok(made.list.value.length <= 102);
  t.notOk([...records.kept.values()].map(dumped).join(' ').includes('"text"'));
  const others = new Records();
  const stranger = new Vault(others, nodeSodium);
  await stranger.create(identity);
  await records.put('refused:damaged', await others.get('identity'));
  const hurt = new Notices(ports);
  await hurt.load();
  t.same(
    hurt.list.value.map(({ kind }) => kind).sort(),
    ['problem', 'rejected', 'rejected'],
    'a damaged record is reported, and the others are listed',
  );
  await records.remove('refused:damaged');
  const next = new Notices(ports);
  await next.load();
  const [first, second] = next.list.value;
  t.equal(next.list.value.length, 2);
  refuses = true;
  await t.rejects(next.resend(first?.id ?? '', 'copy'));
  t.equal(next.list.value.length, 2);
  refuses = false;
  await Promise.all([1, 2].map(() => next.resend(first?.id ?? '', 'overwrite')));
  t.equal(written.length, 1, 'a double click writes once');
  t.match(written, [[{ text: /one|two/ }, 'overwrite']]);
  await next.dismiss(second?.id ?? '');
  const third = next.refused(
    { id: 'three', binId: 'inbox', type: 'text', payload: { text: 'three' } },
    { title: 'three', error, isNew: false },
  );
  await next.dismiss(next.list.value[0]?.id ?? '');
  await third;
  t.same([next.list.value.length, [...records.kept.keys()].filter((key) => key.startsWith('refused:')).length], [0, 0]);
});

t.test(
  'WEB-53: where the browser has no room, none of the files is accepted, nor sent by the next start',
  async (t) => {
    const records = new Records();
    const failing = new Records();
    const full = (): Promise<never> => Promise.reject(new DOMException('full', 'QuotaExceededError'));
    Object.assign(failing, {
      kept: records.kept,
      put: (key: string, value: unknown) => (records.kept.size > 0 ? full() : records.put(key, value)),
      putAll: full,
      remove: full,
    });
    const { made, requests } = uploading(failing, () => Promise.resolve());
    await t.rejects(made.add(waiting(file('a', ''), file('b', ''))), { name: 'QuotaExceededError' });
    await setImmediate();
    t.same([requests.length, records.kept.size, made.list.value.length], [0, 0, 0]);
  },
);

t.test(
  'WEB-53 WEB-58: where the device is closed meanwhile, none of the files stays, and none is stored after',
  async (t) => {
    const records = new Records();
    const { made, requests } = uploading(records, () => Promise.resolve());
    const put = records.put.bind(records);
    const stored: string[] = [];
    records.put = (key, value) => {
      stored.push(key);
      if (stored.length === 2) made.close();
      return put(key, value);
    };
    const files = waiting(file('a', ''), file('b', ''));
    await t.rejects(made.add(files), { code: 'closed' });
    await t.rejects(made.add(waiting(file('c', ''))), { code: 'closed' });
    t.same([stored, records.kept.size, requests.length], [['upload:id-1', 'upload:id-2'], 0, 0]);
  },
);

const view = (type: ContentType, payload: ItemView['payload']): ItemView => ({
  ...{ id: '01M82XM89B11MMAFFNRQZDK2KD', binId: 'inbox', type, ts: 1, senderDevice: 'x', version: 1 },
  ...{ pending: false, payload, blob: null },
});

t.test('WEB-54: a row of a list holds no secret, and no address but http and https', (t) => {
  const row = rowOf(view('password', { service: 'Bank', user: 'me', secret: 'hunter2' }), null);
  t.notOk(JSON.stringify(row).includes('hunter2'));
  t.match(row, { title: 'Bank', detail: 'me', copy: null });
  for (const url of ['javascript:alert(1)', 'data:text/html,x', 'file:///etc/passwd', 'vbscript:x', ' ', 'blob:x'])
    t.equal(safeHref(url), null, url);
  t.equal(safeHref('https://example.org/a'), 'https://example.org/a');
  t.equal(rowOf(view('link', { url: 'javascript:alert(1)' }), null).href, null);
  const long = rowOf(view('text', { text: `${'x'.repeat(50_000)}\n${'y'.repeat(50_000)}` }), null);
  t.ok(JSON.stringify(long).length < 2_000, 'a row holds no long text');
  t.match(rowOf(view('file', { name: 7, size: -1, mime: {} }), null), { file: { mime: '', size: null } });
  t.equal(typeOfFile('text/html'), 'file');
  t.end();
});

t.test('WEB-54: what tells items apart is at the beginning of a line, and nothing is said twice', (t) => {
  const shown = (...of: Parameters<typeof view>): string[] => {
    const { title, detail } = rowOf(view(...of), null);
    return [title, detail];
  };
  t.same(shown('password', { service: 'https://example.org/login', user: 'me' }), ['example.org/login', 'me']);
  t.same(shown('password', { service: 'https://example.org/', user: 'you' }), ['example.org', 'you']);
  t.same(shown('password', { service: 'http://example.org/', user: 'you' }), ['http://example.org/', 'you']);
  t.same(shown('password', { service: 'https://', user: 'me' }), ['https://', 'me']);
  t.same(shown('password', { user: 'me' }), ['me', '']);
  t.same(shown('location', { lat: 52.52, lng: 13.405 }), ['52.52, 13.405', '']);
  t.same(shown('location', { name: 'Home', lat: 1, lng: 2 }), ['Home', '1, 2']);
  t.end();
});

t.test('WEB-74: a share whose tab ended before it was removed is not put over what was made of it since', async (t) => {
  const ids = ['01M82XM7NJJEYS048S5KHZXEF2', '01M82XM7NJJEYS048S5KHZXEF3', '01M82XM7NJJEYS048S5KHZXEF4'] as const;
  const files = ids.slice(1).map((id) => ({ id, file: new File(['x'], id) }));
  const share = { id: ids[0], title: '', text: 'as shared', url: '', files };
  const records = new Records();
  records.kept.set(share.id, share);
  const items = new Map<string, unknown>();
  const session = {
    device: { get: async (id: string) => items.get(id) },
    put: async ({ id, payload }: PutParams) => items.set(id, payload),
    uploads: { add: async (chosen: typeof files) => chosen.forEach(({ id }) => items.set(id, 'uploaded')) },
  };
  let dies = true;
  const shared = {
    list: async () => [...records.kept.values()],
    remove: async (id: string) => (dies ? Promise.reject(new Error('the tab ended')) : records.remove(id)),
  };
  const inbox = new SharedInbox({ session: new Cell(null), current: session } as never, shared as never);
  await t.rejects(inbox.take([share.id], 'put'), { message: 'the tab ended' });
  t.same([...items.values()], [{ text: 'as shared' }, 'uploaded', 'uploaded']);
  items.set(ids[0], 'edited').set(ids[1], 'renamed').delete(ids[2]);
  dies = false;
  await inbox.take([share.id], 'put');
  t.same(Object.fromEntries(items), { [ids[0]]: 'edited', [ids[1]]: 'renamed', [ids[2]]: 'uploaded' });
  t.equal(records.kept.size, 0);
});
