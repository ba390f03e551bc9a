/** Validation of request bodies and fields, before anything else reads them. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { ulid } from 'ulid';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { publicKeyField } from '../src/protocol/device-fields.js';
import * as requests from '../src/server/http/validators.js';
import { base64 } from './support/accounts.js';

t.test('a public key of low order is refused exactly where libsodium refuses it', (t) => {
  const scalar = randomBytes(32);
  const candidates = [0, 1, 2, 8, 9].map((low) => Uint8Array.of(low, ...new Uint8Array(31)));
  for (const last of [0xec, 0xed, 0xee, 0xef])
    candidates.push(Uint8Array.of(last, ...new Uint8Array(30).fill(255), 127));
  candidates.push(Buffer.from('e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800', 'hex'));
  candidates.push(Buffer.from('5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157', 'hex'));
  candidates.push(...candidates.map((key) => Uint8Array.from(key, (byte, at) => (at === 31 ? byte | 128 : byte))));
  const refuses = (call: () => unknown): boolean => {
    try {
      call();
      return false;
    } catch {
      return true;
    }
  };
  for (const key of candidates) {
    const bySodium = refuses(() => nodeSodium.scalarmult(scalar, key));
    t.equal(
      refuses(() => publicKeyField('pubkey', base64(key))),
      bySodium,
      Buffer.from(key).toString('hex'),
    );
  }
  t.end();
});

t.test('ERR-05: a validator’s refusal names the path of the field and the rule', (t) => {
  const id = ulid();
  const item = { id, binId: 'inbox', type: 'text', ts: 1_700_000_000_000, payloadEnc: { ct: '', nonce: '', keys: {} } };
  const b = { id, binId: 'inbox', type: 'text', ts: 1_700_000_000_000, nonce: '', ct: '', wrapped: [] };
  const millis = 'must be integer milliseconds, not seconds';
  const version = 'must be an integer from 0 to 2^53-1';
  const cases: [check: (input: unknown) => unknown, input: unknown, path: string, rule: string | RegExp][] = [
    [requests.validateItemBodyA, null, 'body', 'must be an object'],
    [requests.validateItemBodyA, { ...item, id: id.toLowerCase() }, 'id', /^must be a ULID/],
    [requests.validateItemBodyA, { ...item, id: undefined }, 'id', /^required, must be a ULID/],
    [requests.validateItemBodyA, { ...item, binId: 'a b' }, 'binId', /^must be a bin id/],
    [requests.validateItemBodyA, { ...item, ts: 1_700_000_000 }, 'ts', millis],
    [requests.validateItemBodyA, { ...item, ts: '2023-11-14' }, 'ts', millis],
    [requests.validateItemBodyA, { ...item, ts: 1_700_000_000_000.5 }, 'ts', /integer/],
    [requests.validateItemBodyA, { ...item, payloadEnc: 'x' }, 'payloadEnc', 'must be an object or null'],
    [
      requests.validateItemBodyA,
      { ...item, payloadEnc: { ...item.payloadEnc, ct: 1 } },
      'payloadEnc.ct',
      'must be text',
    ],
    [requests.validateItemBodyB, { ...b, binId: '' }, 'bin_id', /^must be a bin id/],
    [requests.validateItemBodyB, { ...b, wrapped: [{ key: '' }] }, 'wrapped[0].device_id', 'required, must be text'],
    [requests.validateItemBodyB, { ...b, wrapped: Array(1_001).fill({ deviceId: '', key: '' }) }, 'wrapped', /1000/],
    [requests.validateBatchBody, { items: [] }, 'items', 'must be a list of 1 to 100'],
    [requests.validateBatchBody, { items: Array(101).fill({}) }, 'items', 'must be a list of 1 to 100'],
    [requests.validateReconcileBody, { binId: 'x', version: -1, sig: '' }, 'version', version],
    [requests.validateBinCreateBody, { id: 'x', slug: 'No' }, 'slug', /^must be a slug/],
    [
      requests.validateBootstrapBody,
      { name: 'n', glyph: 'watch', pubkey: '' },
      'glyph',
      'must be one of globe, laptop, phone, tablet',
    ],
    [requests.validatePasswordSetBody, { password: '' }, 'password', 'must be text that is not empty'],
    [requests.validateHelloFrame, { type: 'hello', since: 2 ** 53 }, 'since', /integer/],
    [requests.validateHelloFrame, { type: 'hello', since: 0, acks: 'yes' }, 'acks', 'must be true or false'],
  ];
  for (const [check, input, path, rule] of cases) {
    try {
      check(input);
      t.fail(`${path}: the invalid value was accepted`);
    } catch (error) {
      t.match(error, { error: 'validation', details: { path, rule } }, path);
    }
  }
  t.same(requests.validateItemBodyA({ ...item, unknown: 1 }), { ...item, unknown: 1 }, 'unknown keys are kept');
  t.same(requests.validateBatchBody({ items: Array(100).fill(0) }).items.length, 100);
  const long = { ...item, payloadEnc: { ...item.payloadEnc, keys: { ['k'.repeat(100_000)]: 1 } } };
  t.throws(() => requests.validateItemBodyA(long), { message: /^.{1,300}$/ }, 'the message does not repeat a long key');
  t.end();
});
