/**
 * The crypto core without items: words, phrase, pairing, certificates, re-authentication, recovery, password, bin meta;
 * and both of its bindings against test/vectors/*.json.
 */
import { mnemonicToSeedSync, validateMnemonic } from '@scure/bip39';
import { wordlist } from '@scure/bip39/wordlists/english.js';
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { openBinMeta, sealBinMeta } from '../src/crypto/bin-meta.js';
import { certifyDevice, isCertified } from '../src/crypto/device.js';
import { drawPhrase, itemMacKey, keysOfPhrase, phraseSeed, wrapMasterKey } from '../src/crypto/master-key.js';
import {
  acceptRelease,
  attestationOf,
  drawPairCode,
  hostOf,
  judgeJoin,
  pairLink,
  readPairCode,
  releaseMasterKey,
  requestJoin,
  type JoinRequest,
  type PairCode,
} from '../src/crypto/pairing.js';
import { stretchPassword } from '../src/crypto/password.js';
import { answerReauthChallenge, makeReauthChallenge } from '../src/crypto/reauth.js';
import { CryptoRefusal } from '../src/crypto/refusal.js';
import { loadBrowserSodium } from '../src/crypto/sodium-browser.js';
import { nodePasswordHasher, nodeSodium } from '../src/crypto/sodium-node.js';
import type { Sodium } from '../src/crypto/sodium.js';
import { decodeWords, encodeWords } from '../src/crypto/words.js';
import { concat, equalBytes, lengthPrefixed, text } from '../src/protocol/bytes.js';
import { fixed, LOW_ORDER_POINTS, miscounted } from './vectors/cases.js';
import { b32, hmacSha256, lp, unhex, words } from './vectors/reference.js';
import { checks, vectorFiles, vectors } from './vectors/check.js';

const node = nodeSodium;
const browser = await loadBrowserSodium();
/** Each pair of bindings, so that whatever one makes the other reads. */
const PAIRS: readonly (readonly [name: string, first: Sodium, second: Sodium])[] = [
  ['Node to browser', node, browser],
  ['browser to Node', browser, node],
];
const bytesOf = (length: number) => fc.uint8Array({ minLength: length, maxLength: length });
const refusal = (reason: string) => ({ name: 'CryptoRefusal', reason });

void t.test('CRYPTO-04: two lists have the same LP only if they are the same list', (t) => {
  const part = fc.uint8Array({ maxLength: 6 });
  const list = fc.array(part, { maxLength: 4 });
  const same = (one: Uint8Array[], other: Uint8Array[]): boolean =>
    one.length === other.length && one.every((part, at) => equalBytes(part, other[at] ?? text('missing')));
  fc.assert(
    fc.property(list, list, (one, other) => {
      return same(one, other) === equalBytes(lengthPrefixed(...one), lengthPrefixed(...other));
    }),
  );
  fc.assert(
    fc.property(part, fc.nat(6), (whole, cut) => {
      const parts = [whole.subarray(0, cut), whole.subarray(cut)] as const;
      return !equalBytes(lengthPrefixed(whole), lengthPrefixed(...parts));
    }),
  );
  t.pass('for generated lists');
  t.end();
});

void t.test(
  'CRYPTO-05 CRYPTO-24: a drawn phrase is twelve BIP39 words; its two keys are not derived from one another',
  async (t) => {
    const phrase = drawPhrase(node);
    t.ok(validateMnemonic(phrase, wordlist), 'another BIP39 implementation accepts it');
    t.equal(phrase.split(' ').length, 12);
    t.not(drawPhrase(node), phrase);
    t.ok(equalBytes(await phraseSeed(browser, phrase.toUpperCase()), mnemonicToSeedSync(phrase)), 'the BIP39 seed');
    const { masterKey, recovery } = await keysOfPhrase(node, phrase);
    t.equal(masterKey.length, 32);
    t.notOk(equalBytes(recovery.publicKey, node.signKeyPair(masterKey).publicKey), 'the master key is not its seed');
    await t.rejects(phraseSeed(node, phrase.split(' ').slice(0, 6).join(' ')), refusal('bad_words'));
  },
);

void t.test('CRYPTO-06: the MAC key has the master key as message and the context as key', (t) => {
  const master = fixed('mac test');
  t.ok(equalBytes(itemMacKey(node, master), b32(master, text('service-item-mac-v1'))));
  t.notOk(equalBytes(itemMacKey(node, master), b32(text('service-item-mac-v1'), master)), 'not the other way round');
  t.end();
});

void t.test('CRYPTO-12: a code is six words of 8 bytes and 2 checksum bits, as written out by hand', (t) => {
  fc.assert(
    fc.property(bytesOf(8), (bytes) => {
      const code = encodeWords(node, bytes);
      return code === words(bytes) && code === encodeWords(browser, bytes) && code.split(' ').length === 6;
    }),
  );
  t.throws(() => encodeWords(node, new Uint8Array(7)), refusal('bad_length'));
  t.end();
});

void t.test('CRYPTO-13: a code reads the same however it is typed', (t) => {
  const gap = fc.stringMatching(/^[-\s\u2010-\u2014]{1,4}$/u);
  const form = fc.constantFrom<(word: string) => string>(
    (word) => word,
    (word) => word.toUpperCase(),
    (word) => word.replace(/[a-z]/g, (letter) => String.fromCharCode(letter.charCodeAt(0) + 0xfee0)),
  );
  fc.assert(
    fc.property(bytesOf(8), fc.array(fc.tuple(gap, form), { minLength: 6, maxLength: 6 }), (bytes, ways) => {
      const list = encodeWords(node, bytes).split(' ');
      const typed = ways.map(([space, spell], at) => `${space}${spell(list[at] ?? '')}`).join('');
      const read = decodeWords(node, typed, 6);
      return equalBytes(read.bytes, bytes) && read.text === list.join(' ');
    }),
  );
  t.pass('for generated codes and ways of typing');
  t.end();
});

void t.test(
  'CRYPTO-14: a code with a wrong checksum, an unknown word or another count is refused, without repeating it',
  (t) => {
    fc.assert(
      fc.property(bytesOf(8), (bytes) => {
        try {
          decodeWords(node, miscounted(encodeWords(node, bytes)), 6);
          return false;
        } catch (error) {
          return error instanceof CryptoRefusal && error.reason === 'bad_words';
        }
      }),
    );
    const code = encodeWords(node, fixed('code', 8));
    const secretWord = 'hunter2';
    for (const typed of [
      `${code.split(' ').slice(1).join(' ')} ${secretWord}`,
      '',
      code.replace(' ', ''),
      `${code} zoo`,
    ]) {
      try {
        decodeWords(node, typed, 6);
        t.fail(`accepted ${typed}`);
      } catch (error) {
        t.match(error, refusal('bad_words'));
        t.notMatch(String(error), new RegExp(secretWord), 'no word of the code in the message');
      }
    }
    t.end();
  },
);

void t.test('CRYPTO-15: the wire code is another valid code, derived from the visible code', async (t) => {
  const drawn = await drawPairCode(node);
  t.not(drawn.wireCode, drawn.visibleCode);
  t.equal(decodeWords(node, drawn.wireCode, 6).text, drawn.wireCode, 'a code that any client accepts');
  t.same(await readPairCode(browser, drawn.visibleCode.toUpperCase()), {
    ...drawn,
    codeKey: Uint8Array.from(drawn.codeKey),
  });
  await t.rejects(readPairCode(node, miscounted(drawn.visibleCode)), refusal('bad_words'));
});

const HOST = 'sync.example.org';
const MASTER = fixed('pairing master');
const CODE: PairCode = {
  visibleCode: encodeWords(node, fixed('code', 8)),
  wireCode: encodeWords(node, fixed('wire', 8)),
  codeKey: fixed('code key'),
};

/** A session up to the request of the new device N, which uses `n`; the existing device E uses `e`. */
function session(e: Sodium, n: Sodium) {
  const offer = e.boxKeyPair();
  const device = { id: '01JAB0DEV1CE00000000000009', keys: n.boxKeyPair(), name: 'Phone', glyph: 'phone' };
  const { link, attestation } = requestJoin(n, { code: CODE, host: HOST, epk: offer.publicKey, device });
  const request: JoinRequest = {
    deviceId: device.id,
    host: HOST,
    npk: device.keys.publicKey,
    name: device.name,
    glyph: device.glyph,
    attestation,
  };
  const judge = (change: Partial<JoinRequest> = {}) =>
    judgeJoin(e, { ...request, ...change }, { code: CODE, keys: offer, host: HOST, knownDevices: new Set() });
  return { offer, device, link, request, judge };
}

void t.test(
  'CRYPTO-16 CRYPTO-22: both sides reach one secret and the same six digits, whichever binding each has',
  (t) => {
    for (const [name, e, n] of PAIRS) {
      for (let run = 0; run < 20; run++) {
        const { link, judge, device } = session(e, n);
        const ofE = judge();
        if (!equalBytes(ofE.secret, link.secret)) t.fail(`${name}: secrets differ`);
        if (ofE.digits !== link.digits || !/^\d{6}$/.test(link.digits))
          t.fail(`${name}: digits ${ofE.digits} ${link.digits}`);
        const release = releaseMasterKey(e, ofE, MASTER);
        const registered = { id: device.id, publicKey: device.keys.publicKey };
        const opened = acceptRelease(n, link, { device: registered, release, keys: device.keys });
        if (!equalBytes(opened, MASTER)) t.fail(`${name}: another master key`);
      }
      t.pass(name);
    }
    t.end();
  },
);

void t.test('CRYPTO-17: a change of any part of T, of the code or of a key gives another secret', (t) => {
  const { offer, link, request, judge } = session(node, node);
  const base = link.transcript;
  const own = { codeKey: CODE.codeKey, secretKey: offer.secretKey, otherPublic: base.npk };
  const secret = pairLink(node, base, own).secret;
  t.ok(equalBytes(secret, link.secret));
  const changes = {
    wireCode: `${base.wireCode} `,
    host: 'other.example.org',
    epk: fixed('epk'),
    npk: fixed('npk'),
    deviceId: '01JAB0DEV1CE00000000000008',
    name: 'phone',
    glyph: 'globe',
  };
  for (const [part, value] of Object.entries(changes)) {
    t.notOk(equalBytes(pairLink(node, { ...base, [part]: value }, own).secret, secret), part);
  }
  t.notOk(equalBytes(pairLink(node, base, { ...own, codeKey: fixed('guess') }).secret, secret), 'code key');
  t.notOk(equalBytes(pairLink(node, base, { ...own, otherPublic: fixed('npk') }).secret, secret), 'shared point');
  t.throws(() => judge({ name: 'Phone2' }), refusal('bad_attestation'));
  t.throws(() => judge({ attestation: request.attestation.slice(1) }), refusal('bad_attestation'));
  t.end();
});

void t.test('CRYPTO-18: a low-order public key aborts either side, in both bindings', (t) => {
  for (const sodium of [node, browser]) {
    const { judge, device } = session(sodium, sodium);
    for (const [name, point] of LOW_ORDER_POINTS) {
      t.throws(() => judge({ npk: unhex(point) }), refusal('low_order'), `npk ${name}`);
      const join = { code: CODE, host: HOST, epk: unhex(point), device };
      t.throws(() => requestJoin(sodium, join), refusal('low_order'), `epk ${name}`);
      t.throws(() => wrapMasterKey(sodium, MASTER, unhex(point)), refusal('low_order'), `wrapping for ${name}`);
    }
    t.throws(() => judge({ npk: new Uint8Array(31) }), refusal('bad_length'));
  }
  t.end();
});

void t.test('CRYPTO-19: the attestation is HMAC-SHA256(secret, npk || epk)', (t) => {
  const { link } = session(node, browser);
  const { npk, epk } = link.transcript;
  t.ok(equalBytes(attestationOf(node, link), hmacSha256(concat([npk, epk]), link.secret)));
  t.notOk(equalBytes(attestationOf(node, link), hmacSha256(concat([epk, npk]), link.secret)));
  t.end();
});

void t.test('CRYPTO-20: a certificate is valid for its device id, its key and its master key only', (t) => {
  for (const [name, maker, checker] of PAIRS) {
    const device = { id: '01JAB0DEV1CE00000000000007', publicKey: maker.boxKeyPair().publicKey };
    const cert = certifyDevice(maker, MASTER, device);
    t.ok(isCertified(checker, MASTER, { ...device, cert }), name);
    t.notOk(isCertified(checker, MASTER, { ...device, id: '01JAB0DEV1CE00000000000006', cert }), 'other id');
    t.notOk(isCertified(checker, MASTER, { ...device, publicKey: fixed('other'), cert }), 'other key');
    t.notOk(isCertified(checker, fixed('other master'), { ...device, cert }), 'other master key');
    t.notOk(isCertified(checker, MASTER, { ...device, cert: null }), 'none');
    t.notOk(isCertified(checker, MASTER, { ...device, cert: cert.subarray(1) }), 'short');
    t.notOk(isCertified(checker, MASTER, { id: device.id, publicKey: new Uint8Array(0), cert }), 'no key');
  }
  t.end();
});

void t.test('CRYPTO-21: the confirmation covers the wrapped master key and the certificate', (t) => {
  const { link, judge, device } = session(node, browser);
  const release = releaseMasterKey(node, judge(), MASTER);
  const accept = (change: Partial<typeof release>) =>
    acceptRelease(browser, link, {
      device: { id: device.id, publicKey: device.keys.publicKey },
      release: { ...release, ...change },
      keys: device.keys,
    });
  t.ok(equalBytes(accept({}), MASTER));
  const lying = node.seal(fixed('master key of the server'), device.keys.publicKey);
  t.throws(() => accept({ wrappedMasterKey: lying }), refusal('bad_confirmation'));
  t.throws(() => accept({ deviceCert: fixed('cert') }), refusal('bad_confirmation'));
  t.throws(() => accept({ confirmation: fixed('confirmation') }), refusal('bad_confirmation'));
  t.throws(() => accept({ confirmation: new Uint8Array(0) }), refusal('bad_confirmation'));
  t.end();
});

void t.test(
  'CRYPTO-23 PASS-05: the password is stretched per tenant; its stored hash verifies for itself only',
  async (t) => {
    const tenantId = '01JAB0TENANT00000000000000';
    const sent = await stretchPassword(node, { password: 'Zürich', tenantId });
    t.match(sent, /^[A-Za-z0-9_-]{43}$/, 'base64url of 32 bytes');
    t.equal(await stretchPassword(browser, { password: 'Zu\u0308rich', tenantId }), sent, 'any Unicode form');
    t.not(await stretchPassword(node, { password: 'Zürich', tenantId: '01JAB0TENANT00000000000001' }), sent);
    await t.rejects(stretchPassword(node, { password: '', tenantId }), refusal('empty_password'));
    const stored = await nodePasswordHasher.hash(sent);
    t.match(stored, /^\$argon2id\$v=19\$m=65536,t=2,p=1\$/, 'INTERACTIVE limits');
    t.ok(await nodePasswordHasher.verify(stored, sent));
    t.notOk(await nodePasswordHasher.verify(stored, `${sent}A`));
    t.notOk(await nodePasswordHasher.verify(stored, ''));
    for (const broken of ['', 'no hash', '\0'.repeat(128), `${stored}${'x'.repeat(100)}`, stored.slice(0, 40)]) {
      t.notOk(await nodePasswordHasher.verify(broken, sent), JSON.stringify(broken.slice(0, 12)));
    }
    await t.rejects(nodePasswordHasher.hash(''), refusal('empty_password'));
  },
);

const IDS = {
  tenantId: '01JAB0TENANT00000000000000',
  deviceId: '01JAB0DEV1CE00000000000001',
  challengeId: '01JAB0CHA11ENGE00000000000',
};

void t.test('REAUTH-02: the challenge opens to exactly one form, and the device answers as expected', (t) => {
  for (const [name, server, client] of PAIRS) {
    const keys = client.boxKeyPair();
    const { challenge, answer } = makeReauthChallenge(server, IDS, keys.publicKey);
    const opened = client.sealOpen(challenge, keys) ?? new Uint8Array(0);
    const secret = opened.slice(-32);
    t.ok(equalBytes(opened, lp('service-reauth-v1', IDS.tenantId, IDS.deviceId, IDS.challengeId, secret)), name);
    t.ok(equalBytes(answerReauthChallenge(client, IDS, { challenge, keys }), answer), 'same answer');
    t.notOk(equalBytes(makeReauthChallenge(server, IDS, keys.publicKey).answer, answer), 'fresh each time');
  }
  t.end();
});

void t.test('CLIENT-19: anything else that is sealed to the device is not answered', (t) => {
  const keys = node.boxKeyPair();
  const answer = (opened: Uint8Array) =>
    answerReauthChallenge(node, IDS, { challenge: node.seal(opened, keys.publicKey), keys });
  t.throws(() => answer(MASTER), refusal('bad_challenge'), 'a master key');
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (opened) => {
      try {
        answer(opened);
        return false;
      } catch (error) {
        return error instanceof CryptoRefusal && error.reason === 'bad_challenge';
      }
    }),
  );
  const good = makeReauthChallenge(node, IDS, keys.publicKey).challenge;
  for (const [key, value] of Object.entries({ tenantId: 't', deviceId: 'd', challengeId: 'c' })) {
    t.throws(
      () => answerReauthChallenge(node, { ...IDS, [key]: value }, { challenge: good, keys }),
      refusal('bad_challenge'),
    );
  }
  t.throws(() => answerReauthChallenge(node, IDS, { challenge: new Uint8Array(3), keys }), refusal('bad_challenge'));
  t.end();
});

void t.test('CLIENT-19: what a lying server has sealed in place of a challenge is not answered, and is erased', (t) => {
  const keys = node.boxKeyPair();
  const seen: Uint8Array[] = [];
  const watched: Sodium = {
    ...node,
    equal(a, b) {
      seen.push(a, b);
      return node.equal(a, b);
    },
  };
  const challenge = wrapMasterKey(node, MASTER, keys.publicKey);
  t.throws(() => answerReauthChallenge(watched, IDS, { challenge, keys }), refusal('bad_challenge'));
  t.equal(seen.length, 2, 'what was opened, and what it was compared with');
  for (const bytes of seen) t.ok(bytes.every((byte) => byte === 0));
  t.end();
});

void t.test('CRYPTO-11: bin meta opens under its own master key and its bin only', (t) => {
  const meta = fc.record({
    name: fc.string({ unit: 'grapheme', maxLength: 40 }),
    emoji: fc.constantFrom('🍳', '', '👩‍🚀'),
  });
  for (const [name, sealer, opener] of PAIRS) {
    fc.assert(
      fc.property(meta, (value) => {
        const sealed = sealBinMeta(sealer, { masterKey: MASTER, binId: 'kitchen' }, value);
        return (
          JSON.stringify(openBinMeta(opener, { masterKey: MASTER, binId: 'kitchen' }, sealed)) === JSON.stringify(value)
        );
      }),
      { numRuns: 20 },
    );
    const sealed = sealBinMeta(sealer, { masterKey: MASTER, binId: 'kitchen' }, { name: 'Küche' });
    t.throws(() => openBinMeta(opener, { masterKey: MASTER, binId: 'garage' }, sealed), refusal('bad_ct'), name);
    t.throws(() => openBinMeta(opener, { masterKey: fixed('x'), binId: 'kitchen' }, sealed), refusal('bad_ct'));
  }
  const long = { name: 'x'.repeat(4096) };
  t.throws(() => sealBinMeta(node, { masterKey: MASTER, binId: 'kitchen' }, long), refusal('too_large'));
  t.end();
});

void t.test('CRYPTO-17: the host in T is the dialled name in lower case, without port', (t) => {
  t.equal(hostOf('https://Sync.Example.ORG:8443/api'), 'sync.example.org');
  t.equal(hostOf('http://LOCALHOST:8080'), 'localhost');
  t.equal(hostOf('ws://[::1]:8080/ws'), '[::1]');
  t.end();
});

type Result = { readonly refused: boolean; readonly value: unknown };

/** The result of a check; a refusal is a result, any other error is not. */
async function resultOf(run: () => unknown): Promise<Result> {
  try {
    const value = (await run()) as Record<string, unknown>;
    return { refused: 'reason' in value, value };
  } catch (error) {
    if (error instanceof CryptoRefusal) return { refused: true, value: { reason: error.reason } };
    throw error;
  }
}

/** Runs the vectors of every file whose `valid` is as given; fails where there are hardly any. */
async function runAll(t: Test, sodium: Sodium, valid: boolean): Promise<void> {
  let ran = 0;
  for (const [file, check] of Object.entries(checks)) {
    for (const vector of vectors(file)) {
      if (vector.valid !== valid) continue;
      const result = await resultOf(() => check(sodium, vector.input));
      t.same(result, { refused: !valid, value: vector.expected }, `${file}: ${vector.comment}`);
      ran++;
    }
  }
  t.ok(ran > 60, `${ran} vectors ran`);
}

void t.test(
  'CRYPTO-01 CRYPTO-05: every vector file is checked, and the Node binding gives what its valid vectors expect',
  async (t) => {
    t.same(Object.keys(checks).sort(), vectorFiles(), 'one check for each file');
    const odd = vectorFiles()
      .flatMap(vectors)
      .filter(
        (vector) => Object.keys(vector).sort().join() !== 'comment,expected,input,valid' || vector.comment === '',
      );
    t.same(odd, [], 'each is {comment, input, expected, valid}');
    await runAll(t, nodeSodium, true);
  },
);

void t.test('CRYPTO-02: the browser binding gives what the same valid vectors expect', async (t) => {
  await runAll(t, await loadBrowserSodium(), true);
});

void t.test('CRYPTO-03: both bindings refuse every vector that is not valid, for the reason it gives', async (t) => {
  await runAll(t, nodeSodium, false);
  await runAll(t, await loadBrowserSodium(), false);
});
