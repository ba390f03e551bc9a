/** Lies to either side of a pairing, and what the server can read of the traffic. */
import t, { type Test } from 'tap';
import { Device } from '../../src/sdk/device.js';
import { prepareClaim } from '../../src/sdk/enrol.js';
import type { Identity } from '../../src/sdk/identity.js';
import { join } from '../../src/sdk/pairing.js';
import { note, wiretap } from '../support/client-world.js';
import type { WithTeardown } from '../support/postgres.js';
import { runServer } from '../support/server.js';
import { nameOf } from './lie.js';
import { LOW_ORDER, OTHER_CLAIM, OTHER_HOST, OTHER_TENANT, PAIR_LIES, type OldPairing } from './lies/pairing.js';
import { Liar, type Hooks, type Json } from './proxy.js';
import { platform as plain } from './victim.js';

t.setTimeout(300_000);

/** A fast hash in place of Argon2id: the vectors prove the stretching. */
const platform = { ...plain, sodium: wiretap().platform.sodium };
const ENV = { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0', RATE_PAIR_PER_MIN: '0' };

const EXISTING =
  'CLIENT-11 CLIENT-12 CLIENT-13 LIAR-66 LIAR-67 LIAR-68 LIAR-69 LIAR-70 LIAR-71 LIAR-72 LIAR-73 LIAR-74 LIAR-118';
const NEW = 'CLIENT-16 CLIENT-18 LIAR-75 LIAR-76 LIAR-77 LIAR-78 LIAR-79 LIAR-80 LIAR-81 LIAR-82 LIAR-83';

const PASSWORD = 'correct horse battery staple';

/** The outcome of a promise, as the catalogue names it. */
const outcome = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'throws nothing',
    (error: unknown) => `throws ${nameOf(error)}`,
  );

/** A device that claimed its server through the liar, the words that it showed, and the devices that joined. */
class Pairings {
  readonly words: string[] = [];
  readonly joined: Identity[] = [];

  private constructor(
    readonly liar: Liar,
    readonly identity: Identity,
    readonly first: Device,
    readonly phrase: string,
  ) {}

  static async set(t: WithTeardown): Promise<Pairings> {
    const server = await runServer(t, { env: ENV });
    const liar = await Liar.before(t, server.port);
    const claim = await prepareClaim({ platform, serverUrl: liar.url, name: 'First', glyph: 'laptop' });
    const identity = await claim.register();
    const first = await Device.open({ platform, identity, onProblem: () => undefined });
    t.teardown(() => first.close());
    await first.connect();
    return new Pairings(liar, identity, first, claim.phrase);
  }

  /** Starts a pairing on both sides with these hooks. */
  async begin(hooks: Partial<Hooks>, dialled = '127.0.0.1') {
    this.liar.honest();
    this.liar.calls.length = 0;
    Object.assign(this.liar, hooks);
    const approved: string[] = [];
    const offer = await this.first.offerPairing(({ digits }) => {
      approved.push(digits);
      return true;
    });
    this.words.push(offer.words);
    const digits: string[] = [];
    const serverUrl = this.liar.url.replace('127.0.0.1', dialled);
    const device = { platform, serverUrl, name: 'Second', glyph: 'phone' as const };
    const password = (): Promise<string> => Promise.resolve(PASSWORD);
    const joining = join({ ...device, words: offer.words, password, onDigits: (shown) => digits.push(shown) });
    joining.then(
      (identity) => this.joined.push(identity),
      () => undefined,
    );
    return { offer, joining, approved, digits };
  }

  /** Runs an honest pairing; returns what the server could replay of it. */
  async honest(): Promise<OldPairing> {
    let release: Json = {};
    const { offer, joining } = await this.begin({
      answer: ({ path }, truth) => {
        if (path === '/devices/pair-fetch-npk' && 'token' in truth) release = truth;
        return undefined;
      },
    });
    await Promise.all([joining, offer.joined]);
    const request = this.liar.frames.findLast((frame) => frame['type'] === 'pair_request') ?? {};
    return { known: this.identity.deviceId, request, release };
  }

  /** The fields of each `pair-wrap` call: what was released to the server for the new device. */
  released(): readonly (readonly string[])[] {
    const wraps = this.liar.calls.filter(({ path }) => path === '/devices/pair-wrap');
    return wraps.map(({ body }) => Object.keys(body).sort());
  }

  /** Names of the secrets that were sent although they must not be. */
  leaks(): readonly string[] {
    const { identity, phrase } = this;
    const kept: readonly (readonly [string, Uint8Array | string])[] = [
      ['master key', identity.masterKey],
      ['secret key', identity.keys.secretKey],
      ...this.joined.map(({ keys }) => ['secret key', keys.secretKey] as const),
      ['phrase', phrase],
      ['password', PASSWORD],
      ...this.words.map((words) => ['words', words] as const),
    ];
    return kept.filter(([, secret]) => this.liar.leaked(secret)).map(([name]) => name);
  }
}

t.test('pairing through a lying server', async (t) => {
  const pairings = await Pairings.set(t);
  const old = await pairings.honest();

  t.test(`${EXISTING}: the device that shows the words rejects each lie and releases nothing`, async (t) => {
    for (const lie of PAIR_LIES.filter(({ side }) => side === 'existing')) {
      const { offer, joining, approved } = await pairings.begin(lie.hooks(old));
      const title = `${lie.id}: the server ${lie.does}`;
      t.same([await outcome(offer.joined), await outcome(joining)], lie.named, title);
      t.same(approved, [], `${lie.id}: the user was not prompted`);
      t.same(pairings.released(), [['code', 'reject']], `${lie.id}: nothing was released`);
      t.same(pairings.leaks(), [], `${lie.id}: no secret was sent`);
    }
    const { offer, joining, approved } = await pairings.begin({}, 'localhost');
    t.same([await outcome(offer.joined), await outcome(joining)], OTHER_HOST.named, OTHER_HOST.id);
    t.same(approved, [], `${OTHER_HOST.id}: the user was not prompted`);
    t.same(pairings.released(), [['code', 'reject']], `${OTHER_HOST.id}: nothing was released`);
  });

  t.test(`${NEW}: the new device refuses each lie`, async (t) => {
    for (const lie of PAIR_LIES.filter(({ side }) => side === 'new')) {
      const { offer, joining } = await pairings.begin(lie.hooks(old));
      t.same([await outcome(joining)], lie.named, `${lie.id}: the server ${lie.does}`);
      t.same(pairings.leaks(), [], `${lie.id}: no secret was sent`);
      // The existing device noticed nothing; the user revokes the device that was registered.
      const joined = await offer.joined;
      pairings.liar.honest();
      await pairings.first.revoke(joined);
    }
    const { offer, joining } = await pairings.begin(LOW_ORDER.hooks());
    t.same([await outcome(joining)], LOW_ORDER.named, `${LOW_ORDER.id}: the server ${LOW_ORDER.does}`);
    t.same(pairings.released(), [], 'nothing was released');
    offer.cancel();
    await offer.joined.catch(() => undefined);
    await otherTenant(t, pairings);
  });

  t.test('CLIENT-08 CLIENT-22: an honest pairing sends no secret, and the new device keeps no phrase', async (t) => {
    const { offer, joining, approved, digits } = await pairings.begin({});
    const [second] = await Promise.all([joining, offer.joined]);
    t.same(approved, digits, 'both devices show the same digits');
    t.equal(digits.length, 1);
    await pairings.first.rewrap();
    const text = 'a sentence that nobody else may read';
    const { id } = await pairings.first.put(note(text));
    const reader = await Device.open({ platform, identity: second, onProblem: () => undefined });
    await reader.pull();
    t.match(await reader.get(id), { payload: { text } });
    reader.close();
    t.same(pairings.leaks(), []);
    t.notOk(pairings.liar.leaked(text));
    await pairings.first.setPassword(PASSWORD);
    const again = await pairings.begin({});
    await Promise.all([again.joining, again.offer.joined]);
    t.ok(
      pairings.liar.calls.some(({ path }) => path === '/password/verify'),
      'the password was verified by the server',
    );
    t.same(pairings.leaks(), [], 'no secret was sent, the password included');
    t.notOk(
      JSON.stringify({ ...second.toJSON(), secretKey: null, masterKey: null }).includes(pairings.phrase),
      'the identity does not contain the phrase',
    );
  });

  t.test('CLIENT-20: sockets are opened with a ticket, and no URL contains a token', (t) => {
    const { upgrades, heard } = pairings.liar;
    t.ok(upgrades.length > 0);
    t.ok(upgrades.every((path) => /[?&]ticket=/.test(path) && !/token=/.test(path)));
    const urls = heard.filter((text) => /^(GET|POST|PATCH|DELETE) |^\/ws/.test(text));
    t.notOk(urls.some((text) => text.includes(pairings.identity.token.text)));
    t.end();
  });
});

/** The lie goes unnoticed while the device is paired, and is detected when its token is renewed. */
async function otherTenant(t: Test, pairings: Pairings): Promise<void> {
  const { offer, joining } = await pairings.begin(OTHER_TENANT.hooks());
  const [identity] = await Promise.all([joining, offer.joined]);
  pairings.liar.honest();
  const token = { text: 'worthless', expiresAt: null };
  const device = await Device.open({ platform, identity: identity.withToken(token), onProblem: () => undefined });
  t.same([await outcome(device.me())], OTHER_TENANT.named, `${OTHER_TENANT.id}: the server ${OTHER_TENANT.does}`);
  device.close();
}

t.test('LIAR-84: a claim fails where the server registered another key', async (t) => {
  const server = await runServer(t, { env: ENV });
  const liar = await Liar.before(t, server.port);
  Object.assign(liar, OTHER_CLAIM.hooks());
  const claim = await prepareClaim({ platform, serverUrl: liar.url, name: 'First', glyph: 'laptop' });
  t.same([await outcome(claim.register())], OTHER_CLAIM.named);
  t.notOk(liar.leaked(claim.phrase), 'the phrase was not sent');
});
