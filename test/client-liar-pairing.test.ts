/** Pairing through a server that lies to either side, and what it can read of what passes (contract 9). */
import t from 'tap';
import { prepareClaim } from '../src/client/enrol.js';
import { Device } from '../src/client/device.js';
import type { Identity } from '../src/client/identity.js';
import { endedBy, join } from '../src/client/pairing.js';
import { certifyDevice } from '../src/crypto/device.js';
import { wrapMasterKey } from '../src/crypto/master-key.js';
import type { RefusalReason } from '../src/crypto/refusal.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newId } from './support/client.js';
import { next, note, refusal } from './support/client-world.js';
import { Liar, type LiedCall } from './support/liar.js';
import { runServer } from './support/server.js';
import { platform } from './support/victim.js';

t.setTimeout(300_000);

type Json = Record<string, unknown>;

const url = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64url');
const spy = nodeSodium.boxKeyPair();
const spyMaster = nodeSodium.random(32);

/** What the server does at one step; both sides dial it. */
interface Lie {
  readonly answer?: (call: LiedCall, truth: Json) => Json | undefined;
  readonly tell?: (call: LiedCall) => Json | undefined;
  readonly frame?: (frame: Json) => Json;
}

const at = (path: string, change: (body: Json) => Json) => ({
  answer: (call: LiedCall, truth: Json) => (call.path === path ? change(truth) : undefined),
  tell: (call: LiedCall) => (call.path === path ? change(call.body) : undefined),
});
/** To the new device: another answer. */
const answered = (path: string, change: (truth: Json) => Json): Lie => ({ answer: at(path, change).answer });
/** To the existing device, by way of the server's own store: another request. */
const told = (path: string, change: (body: Json) => Json): Lie => ({ tell: at(path, change).tell });

const NPK = '/devices/pair-fetch-npk';

/** The existing device must end the pairing with this, and release nothing. */
const TO_EXISTING: readonly [title: string, reason: RefusalReason, lie: (known: string) => Lie][] = [
  [
    'CLIENT-11: the new device got another epk',
    'bad_attestation',
    () => answered('/devices/pair-fetch-epk', (truth) => ({ ...truth, epk: url(spy.publicKey) })),
  ],
  ['CLIENT-11: another npk', 'bad_attestation', () => told(NPK, (body) => ({ ...body, pubkey: url(spy.publicKey) }))],
  [
    'CLIENT-11: another attestation',
    'bad_attestation',
    () => told(NPK, (body) => ({ ...body, attestation: url(Buffer.alloc(32, 1)) })),
  ],
  ['CLIENT-11: another name', 'bad_attestation', () => told(NPK, (body) => ({ ...body, name: 'Trust me' }))],
  ['CLIENT-11: another glyph', 'bad_attestation', () => told(NPK, (body) => ({ ...body, glyph: 'globe' }))],
  ['CLIENT-11: another id', 'bad_attestation', () => told(NPK, (body) => ({ ...body, deviceId: newId() }))],
  ['CLIENT-12: another host', 'wrong_host', () => told(NPK, (body) => ({ ...body, host: 'evil.example' }))],
  [
    'CLIENT-13: an id that is known',
    'known_device',
    (known) => onRequest((request) => ({ ...request, deviceId: known })),
  ],
];

/** Changes the request on its way to the existing device, as a frame and in a listing. */
function onRequest(change: (request: Json) => Json): Lie {
  return {
    frame: (frame) => (frame['type'] === 'pair_request' ? change(frame) : frame),
    answer: ({ path }, truth) =>
      path === '/devices/pair-requests' ? { ...truth, requests: (truth['requests'] as Json[]).map(change) } : undefined,
  };
}

const onRelease = (change: (truth: Json) => Json): Lie =>
  answered(NPK, (truth) => ('token' in truth ? change(truth) : truth));
const deviceOf = (truth: Json): Json => truth['device'] as Json;
const ownKeyOf = (truth: Json): Uint8Array => Buffer.from(String(deviceOf(truth)['pubkey']), 'base64url');

/** The new device must refuse the release with this. */
const TO_NEW: readonly [title: string, reason: RefusalReason, lie: Lie][] = [
  [
    'CLIENT-16: another master key',
    'bad_confirmation',
    onRelease((truth) => ({ ...truth, wrappedMasterKey: url(wrapMasterKey(nodeSodium, spyMaster, ownKeyOf(truth))) })),
  ],
  [
    'CLIENT-16: another confirmation',
    'bad_confirmation',
    onRelease((truth) => ({ ...truth, confirmation: url(Buffer.alloc(32, 1)) })),
  ],
  [
    'CLIENT-16 CLIENT-17: another cert',
    'bad_confirmation',
    onRelease((truth) => ({ ...truth, deviceCert: url(Buffer.alloc(32, 1)) })),
  ],
  [
    'CLIENT-16 CLIENT-17: a whole release of its own',
    'bad_confirmation',
    onRelease((truth) => ({
      ...truth,
      wrappedMasterKey: url(wrapMasterKey(nodeSodium, spyMaster, ownKeyOf(truth))),
      deviceCert: url(
        certifyDevice(nodeSodium, spyMaster, { id: String(deviceOf(truth)['id']), publicKey: ownKeyOf(truth) }),
      ),
    })),
  ],
  [
    'CLIENT-18: another id',
    'wrong_device',
    onRelease((truth) => ({ ...truth, device: { ...deviceOf(truth), id: newId() } })),
  ],
  [
    'CLIENT-18: another key',
    'wrong_device',
    onRelease((truth) => ({ ...truth, device: { ...deviceOf(truth), pubkey: url(spy.publicKey) } })),
  ],
];

t.test('pairing through a liar', async (t) => {
  const server = await runServer(t);
  const liar = await Liar.before(t, server.port);
  const claim = await prepareClaim({ platform, serverUrl: liar.url, name: 'First', glyph: 'laptop' });
  const identity = await claim.register();
  const { phrase } = claim;
  const first = { device: await Device.open({ platform, identity, onProblem: () => undefined }) };
  t.teardown(() => first.device.close());
  await first.device.connect();
  const shown: string[] = [];

  const begin = async (lie: Lie) => {
    liar.calls.length = 0;
    liar.answer = lie.answer ?? (() => undefined);
    liar.tell = lie.tell ?? (() => undefined);
    liar.frame = (frame) => [lie.frame?.(frame) ?? frame];
    const approved: string[] = [];
    const offer = await first.device.offerPairing(({ digits }) => {
      approved.push(digits);
      return true;
    });
    shown.push(offer.words);
    const digits: string[] = [];
    const device = { platform, serverUrl: liar.url, name: 'Second', glyph: 'phone' as const, words: offer.words };
    const joining = join({ ...device, onDigits: (text) => digits.push(text) });
    joining.catch(() => undefined);
    return { offer, joining, approved, digits };
  };
  const wraps = (): LiedCall[] => liar.calls.filter(({ path }) => path === '/devices/pair-wrap');

  for (const [title, reason, lieFor] of TO_EXISTING) {
    t.test(title, async (t) => {
      const { offer, joining, approved } = await begin(lieFor(identity.deviceId));
      t.ok(endedBy(await refusal(offer.joined), reason), reason);
      t.same(approved, [], 'the user was not even asked');
      t.same(
        wraps().map(({ body }) => Object.keys(body).sort()),
        [['code', 'reject']],
        'nothing was released',
      );
      t.match(await refusal(joining), { code: 'rejected' });
    });
  }

  for (const [title, reason, lie] of TO_NEW) {
    t.test(title, async (t) => {
      const { offer, joining } = await begin(lie);
      t.match(await refusal(joining), { reason });
      // The existing device did its part in good faith; the user revokes what came of it.
      const joined = await offer.joined;
      liar.answer = () => undefined;
      await first.device.revoke(joined);
    });
  }

  t.test('CLIENT-08 CLIENT-22: an honest pairing; nothing that was ever sent holds a secret', async (t) => {
    const { offer, joining, approved, digits } = await begin({});
    const rewrapped = next(first, 'rewrapped');
    const [second] = await Promise.all([joining, offer.joined, rewrapped]);
    t.same(approved, digits, 'both show the same digits');
    t.equal(digits.length, 1);
    const text = 'a sentence that nobody else may read';
    const { id } = await first.device.put(note(text));
    const reader = await Device.open({ platform, identity: second, onProblem: () => undefined });
    await reader.pull();
    t.match(await reader.get(id), { payload: { text } });
    reader.close();
    const kept: readonly (Uint8Array | string)[] = [
      second.masterKey,
      second.keys.secretKey,
      identity.keys.secretKey,
      text,
      phrase,
    ];
    t.same(
      kept.filter((secret) => liar.leaked(secret)),
      [],
    );
    const words = shown.flatMap((code) => [
      code,
      code.replaceAll(' ', '-'),
      code.replaceAll(' ', '+'),
      code.replaceAll(' ', '%20'),
    ]);
    t.same(
      words.filter((code) => liar.heard.some((sent) => sent.includes(code))),
      [],
      'no visible code was sent',
    );
    const held = JSON.stringify([identityText(identity), identityText(second)]);
    t.notOk(held.includes(phrase), 'nor is the phrase kept');
  });

  t.test('CLIENT-20: sockets are opened with a ticket, no URL holds a token', async (t) => {
    t.ok(liar.upgrades.length > 0);
    t.ok(liar.upgrades.every((path) => /[?&]ticket=/.test(path) && !/token=/.test(path)));
    const urls = liar.heard.filter((text) => /^(GET|POST|PATCH|DELETE) |^\/ws/.test(text));
    t.notOk(urls.some((text) => text.includes(identity.token.text)));
  });
});

const identityText = (identity: Identity): unknown => ({ ...identity, keys: null, masterKey: null });
