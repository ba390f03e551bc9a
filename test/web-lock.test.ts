/** The web app's engine without a browser: what it opens, locks and forgets, and how it becomes a device. */
import { setImmediate } from 'node:timers/promises';
import t from 'tap';
import { drawPhrase, keysOfPhrase } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { KEY_BYTES } from '../src/protocol/limits.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import type { Device } from '../src/sdk/device.js';
import { ApiError, ClientError, NetworkError, QueuedError } from '../src/sdk/errors.js';
import { SavableIdentity } from '../src/sdk/identity.js';
import type { JoinApproval, PairingOffer } from '../src/sdk/pairing.js';
import { archiveOf } from '../src/web/engine/archive.js';
import { Engine } from '../src/web/engine/engine.js';
import { Enrolment, Offers } from '../src/web/engine/enrolment.js';
import { Session } from '../src/web/engine/session.js';
import { Vault } from '../src/web/engine/vault.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { identity, Records } from './support/web-records.js';

const SERVER = 'https://sync.example.org';
const MINUTE_MS = 60_000;
const lock = { kind: 'passphrase', passphrase: 'correct horse' } as const;

/** An engine whose device is open. */
async function opened(records: Records) {
  const clock = new TestClock();
  const platform = { clock, sodium: nodeSodium };
  const engine = new Engine(platform as never, records as never, SERVER);
  const { vault } = engine as unknown as { readonly vault: Vault };
  await vault.create(identity);
  engine.session.set({ close: () => Promise.resolve(), relock: () => undefined } as never);
  engine.phase.set({ phase: 'open' });
  return { engine, clock, vault };
}

t.test('WEB-67: a lock that is set again does not lock at once, whatever its timeout was', async (t) => {
  const { engine, clock } = await opened(new Records());
  await engine.setLock(lock);
  await engine.setLockAfter(5);
  await engine.setLock({ kind: 'none' });
  clock.advance(10 * MINUTE_MS);
  await engine.touched();
  await engine.setLock(lock);
  clock.advance(5_000);
  for (let turns = 0; turns < 10; turns++) await setImmediate();
  t.match(engine.phase.value, { phase: 'open' });
  for (let seconds = 0; seconds < 300; seconds += 5) clock.advance(5_000);
  await until('locked', () => engine.phase.value.phase === 'locked');
});

t.test('WEB-67: the time limit locks also where storage fails, and where the store cannot be closed', async (t) => {
  const failing = () => Promise.reject(new DOMException('the connection is closed', 'InvalidStateError'));
  for (const isStore of [false, true]) {
    const records = new Records();
    const { engine, clock } = await opened(records);
    await engine.setLock(lock);
    await engine.setLockAfter(5);
    if (isStore) Object.assign(engine.session.value ?? {}, { close: failing });
    else Object.assign(records, { get: failing });
    clock.advance(5 * MINUTE_MS);
    for (let turns = 0; turns < 10; turns++) await setImmediate();
    t.match(engine.phase.value, { phase: 'locked', kind: 'passphrase' });
    t.equal(engine.session.value, null);
  }
});

t.test('WEB-51: a new device that cannot be stored leaves no key', async (t) => {
  const records = new Records();
  Object.assign(records, { put: () => Promise.reject(new DOMException('full', 'QuotaExceededError')) });
  const vault = new Vault(records, nodeSodium);
  await t.rejects(vault.create(identity), { name: 'QuotaExceededError' });
  await t.rejects(vault.remember([]), { code: 'bad_identity' });
});

t.test('WEB-58: where the browser cannot be forgotten its state is shown as it is', async (t) => {
  const records = new Records();
  const { engine } = await opened(records);
  await engine.setLock(lock);
  const clear = () => Promise.reject(new DOMException('the connection is closing', 'InvalidStateError'));
  Object.assign(records, { clear });
  await t.rejects(engine.forget(), { name: 'InvalidStateError' });
  t.equal(engine.session.value, null);
  t.match(engine.phase.value, { phase: 'locked' });
});

t.test('WEB-58: what was being encrypted when the browser was forgotten does not stay in it', async (t) => {
  const records = new Records();
  const { engine, vault } = await opened(records);
  Object.assign(records, { clear: () => Promise.resolve(records.kept.clear()) });
  Object.assign(globalThis, { indexedDB: { databases: () => Promise.resolve([]) } });
  t.teardown(() => Reflect.deleteProperty(globalThis, 'indexedDB'));
  const remembered = vault.remember('x'.repeat(20_000_000));
  await engine.forget();
  await remembered;
  t.same([...records.kept.keys()], []);
});

t.test('WEB-51: a vault whose identity does not open keeps no key', async (t) => {
  const records = new Records();
  await new Vault(records, nodeSodium).create(identity);
  for (const damaged of [{ iv: new Uint8Array(12), ct: new Uint8Array(40) }, undefined]) {
    await records.put('identity', damaged);
    const vault = new Vault(records, nodeSodium);
    // The screen of this error offers to forget the browser; every other one offers to try again.
    await t.rejects(vault.open(), { name: 'StoreError', code: 'damaged' });
    await t.rejects(vault.remember([]), { code: 'bad_identity' });
  }
  Object.assign(records, {
    get: async (key: string) => {
      if (key === 'identity') throw new DOMException('the disk', 'UnknownError');
      return Records.prototype.get.call(records, key);
    },
  });
  await t.rejects(
    new Vault(records, nodeSodium).open(),
    { name: 'UnknownError' },
    'a failure of the disk is not damage',
  );
});

t.test('WEB-57: of two values that a vault is given at once it keeps the later one', async (t) => {
  const vault = new Vault(new Records(), nodeSodium);
  await vault.create(identity);
  // The encryption of the longer one takes longer.
  await Promise.all([vault.remember('x'.repeat(20_000_000)), vault.remember('the later one')]);
  t.equal(await vault.remembered(), 'the later one');
});

t.test('WEB-84: a recovery that is cancelled before the server has answered registers nothing', async (t) => {
  const asked: string[] = [];
  let answer: (status: Response) => void = () => undefined;
  const fetch = (url: string): Promise<Response> => {
    asked.push(new URL(url).pathname);
    return asked.length > 1 ? new Promise(() => undefined) : new Promise((resolve) => (answer = resolve));
  };
  const platform = { clock: new TestClock(), fetch, sodium: nodeSodium, random: () => 0 };
  const enrolment = new Enrolment(platform as never, SERVER, () => Promise.resolve());
  enrolment.recover('Browser', drawPhrase(nodeSodium));
  await until('asked', () => asked.length === 1);
  enrolment.cancel();
  const status = { version: '1', mode: 'single', claimed: true, tenantId: identity.tenantId, epoch: null };
  answer(Response.json({ ...status, database: 'ok' }));
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.equal(asked.length, 1, asked.join());
  enrolment.retry();
  t.match(enrolment.step.value, { step: 'idle' });
});

t.test('WEB-84: an attempt that goes on after a wrong password can be continued as before', async (t) => {
  const enrolment = new Enrolment({ sodium: nodeSodium } as never, SERVER, () => Promise.resolve());
  const outcomes = [
    new ApiError({ code: 'password_invalid', status: 403, message: 'wrong' }),
    new NetworkError('network', 'no server'),
  ];
  const register = () => Promise.reject(outcomes.shift() ?? new Error('one attempt too many'));
  Object.assign(enrolment, { register });
  enrolment.retry();
  await until('failed', () => enrolment.step.value.step === 'failed');
  t.match(enrolment.step.value, { problem: { code: 'network' }, undecided: true });
});

t.test('WEB-84: the other one of two devices is revoked also where the first is locked by then', async (t) => {
  const records = new Records();
  const vault = new Vault(records, nodeSodium);
  const requests: unknown[] = [];
  const fetch = async (url: string, { headers }: RequestInit): Promise<Response> => {
    requests.push([new URL(url).pathname, new Headers(headers).get('authorization')]);
    return Response.json({});
  };
  const platform = { clock: new TestClock(), fetch, sodium: nodeSodium, random: () => 0 };
  const engine = new Engine(platform as never, records as never, SERVER);
  const { enrolled } = engine as unknown as Record<'enrolled', (by: SavableIdentity, method: string) => Promise<void>>;
  const deviceId = '01M82XM7NJJEYS048S5KHZXEF2';
  const other = SavableIdentity.parse({ ...identity.toJSON(), deviceId, token: { text: 'other', expiresAt: null } });
  await vault.create(identity);
  await vault.setLock({ kind: 'passphrase', passphrase: 'correct horse' });
  await engine.start();
  t.match(engine.phase.value, { phase: 'locked' });
  await enrolled.call(engine, other, 'join');
  await until('revoked', () => requests.length > 0);
  t.same(requests, [[`/api/devices/${deviceId}/revoke`, 'Bearer other']]);
});

t.test('WEB-84: a device whose keys are stored twice is not revoked', async (t) => {
  const requests: unknown[] = [];
  const fetch = async (url: string): Promise<Response> => {
    requests.push(url);
    return Response.json({});
  };
  const platform = { clock: new TestClock(), fetch, sodium: nodeSodium, random: () => 0 };
  const engine = new Engine(platform as never, new Records() as never, SERVER);
  const { enrolled } = engine as unknown as Record<'enrolled', (by: SavableIdentity, method: string) => Promise<void>>;
  // Its store cannot be opened here: there is no session that would tell.
  await enrolled.call(engine, identity, 'join');
  t.match(engine.phase.value, { phase: 'failed' });
  await enrolled.call(engine, identity, 'join');
  await setImmediate();
  t.same(requests, []);
});

t.test('WEB-71: an answer about other digits than those shown now admits nobody', async (t) => {
  const offers = new Offers();
  const decisions: Promise<boolean>[] = [];
  const offerPairing: Device['offerPairing'] = async (approve) => {
    decisions.push(Promise.resolve(approve({ name: 'Phone', digits: `00000${decisions.length}` } as JoinApproval)));
    await decisions.at(-1);
    return { joined: new Promise(() => undefined), cancel: () => undefined } as unknown as PairingOffer;
  };
  const shown = (): unknown => offers.step.value;
  for (const digits of ['000000', '000001']) {
    offers.begin({ offerPairing } as Device, 'https://sync.example', new AbortController().signal);
    t.match(shown(), { step: 'compare', digits });
  }
  t.equal(await decisions[0], false, 'a new offer ends the one before');
  offers.answer({ same: true, digits: '000000' });
  t.match(shown(), { step: 'compare', digits: '000001' }, 'from a tab that still shows the former digits');
  offers.answer({ same: true, digits: '000001' });
  t.equal(await decisions[1], true);
});

t.test('WEB-100: words that a tab shows are withdrawn when it is closed, those of another tab are not', async (t) => {
  const offers = new Offers();
  const [first, second] = [new AbortController(), new AbortController()];
  const cancelled: string[] = [];
  for (const [words, tab] of [
    ['one', first],
    ['two', second],
  ] as const) {
    const offer = { words, expiresAt: 1, joined: new Promise(() => undefined), cancel: () => cancelled.push(words) };
    const device = { offerPairing: () => Promise.resolve(offer) } as unknown as Device;
    offers.begin(device, 'https://sync.example', tab.signal);
    await setImmediate();
  }
  first.abort();
  t.same(cancelled, ['one'], 'by the second offer');
  t.match(offers.step.value, { step: 'words', words: 'two' });
  second.abort();
  t.same(cancelled, ['one', 'two']);
  t.match(offers.step.value, { step: 'idle' });
});

t.test('WEB-82: an edit that is repeated does not replace what another device has written since', async (t) => {
  const put: unknown[] = [];
  const refused: unknown[] = [];
  const session = Object.create(Session.prototype) as Session;
  let now = { ts: 1, senderDevice: 'other' };
  Object.assign(session, {
    device: {
      id: 'own',
      get: () => Promise.resolve(now),
      put: ({ payload }: { readonly payload: unknown }) => Promise.resolve(put.push(payload)),
    },
    notices: { refused: (item: unknown, { error }: { readonly error: Error }) => refused.push([item, error]) },
    publishSoon: () => undefined,
  });
  const item = { id: 'note', binId: 'inbox', type: 'text', payload: { text: 'edited' } } as const;
  await session.put({ ...item, seen: 1 });
  now = { ts: 2, senderDevice: 'own' };
  await session.put({ ...item, seen: 1 });
  t.equal(put.length, 2, 'over what was seen, and over what the first call has written');
  now = { ts: 2, senderDevice: 'other' };
  t.same(await session.put({ ...item, seen: 1 }), { id: 'note' });
  t.equal(put.length, 2);
  t.match(refused, [[item, { code: 'conflict' }]], 'it is kept in a notice');
  await session.put(item);
  t.equal(put.length, 3, 'a new item');
});

t.test('WEB-59 WEB-83: an export that nobody reads on leaves no key when the browser is locked', async (t) => {
  const keys: Uint8Array[] = [];
  const sodium: typeof nodeSodium = {
    ...nodeSodium,
    blake2b: (length, ...of) => {
      const hash = nodeSodium.blake2b(length, ...of);
      if (of[1] !== undefined) keys.push(hash);
      return hash;
    },
  };
  const phrase = drawPhrase(nodeSodium);
  const { masterKey } = await keysOfPhrase(nodeSodium, phrase);
  const item = { id: 'note', binId: 'inbox', type: 'text', ts: 1, payload: { text: 'a note' }, blob: null };
  const ending = new AbortController();
  const { signal } = new AbortController();
  const device = { list: () => Promise.resolve([item, item]) };
  const session = {
    device,
    identity: { tenantId: identity.tenantId, masterKey },
    labelledBins: [],
    over: ending.signal,
  };
  const archive = archiveOf(sodium, session as never, { phrase, signal });
  t.match(await archive.next(), { done: false });
  t.notOk(
    keys.every((key) => key.every((byte) => byte === 0)),
    'it goes on',
  );
  ending.abort(new ClientError('closed', 'locked'));
  for (const key of keys) t.ok(key.every((byte) => byte === 0));
  await t.rejects(archive.next(), { code: 'closed' });
});

t.test('WEB-83: an export that is stopped between an item and its file leaves no key of that file', async (t) => {
  const drawn: Uint8Array[] = [];
  const random = (length: number): Uint8Array => {
    const bytes = nodeSodium.random(length);
    drawn.push(bytes);
    return bytes;
  };
  const phrase = drawPhrase(nodeSodium);
  const { masterKey } = await keysOfPhrase(nodeSodium, phrase);
  const item = { id: 'photo', binId: 'inbox', type: 'file', ts: 1, payload: { name: 'photo' }, blob: {} };
  const device = { list: () => Promise.resolve([item]), blob: () => bytesSource(new Uint8Array(10)).open() };
  const { signal } = new AbortController();
  const session = { device, identity: { tenantId: identity.tenantId, masterKey }, labelledBins: [], over: signal };
  const archive = archiveOf({ ...nodeSodium, random }, session as never, { phrase, signal });
  t.match(await archive.next(), { done: false });
  await archive.return();
  const erased = drawn.filter((bytes) => bytes.length === KEY_BYTES && bytes.every((byte) => byte === 0));
  t.equal(erased.length, 1);
});

t.test(
  'WEB-73: one item that a restored server refuses does not keep the others from being written again',
  async (t) => {
    const written: string[] = [];
    const notices: unknown[] = [];
    const outcomes: Readonly<Record<string, (() => Error) | undefined>> = {
      refused: () => new ApiError({ code: 'bin_not_found', status: 404, message: 'no such bin' }),
      queued: () => new QueuedError('queued', new Error('no server')),
    };
    const session = Object.create(Session.prototype) as Session;
    const ending = new AbortController();
    ending.abort();
    Object.assign(session, {
      ...{ ending, state: { orphaned: 0 }, count: () => Promise.resolve() },
      notices: { add: (_: string, error: unknown) => notices.push(error) },
      device: {
        orphaned: () => Promise.resolve(['refused', 'written', 'elsewhere', 'queued', 'last']),
        republish: async (id: string, onKept: () => void) => {
          await setImmediate();
          if (id === 'elsewhere') throw new ClientError('unknown_item', 'another device has written it again');
          onKept();
          await setImmediate();
          const outcome = outcomes[id]?.();
          if (outcome !== undefined) throw outcome;
          written.push(id);
        },
      },
    });
    await session.orphans('republish');
    await until('written', () => written.includes('last'));
    t.same(written, ['written', 'last']);
    t.match(notices, [{ code: 'bin_not_found' }]);
  },
);
