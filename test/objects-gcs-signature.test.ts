/** The verifier in front of the stand-in for Google's store, checked with Google's own vectors. */
import { createPublicKey, generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { refusalOf, type SignedCall, type Signer } from './support/gcs-signature.js';

interface Vector {
  readonly description: string;
  readonly method: string;
  readonly timestamp: string;
  readonly expiration: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly expectedUrl: string;
}

const folder = join(PROJECT_ROOT, 'test/vectors/gcs');
const text = (name: string): string => readFileSync(join(folder, name), 'utf8');
const { signingV4Tests: vectors } = JSON.parse(text('v4_signatures.json')) as { signingV4Tests: readonly Vector[] };
const signer: Signer = {
  email: (JSON.parse(text('signer.json')) as { client_email: string }).client_email,
  publicKey: createPublicKey(text('public_key.pem')),
};

/** The request that the URL of a vector is for. */
function callOf({ method, headers = {}, expectedUrl }: Vector): SignedCall {
  const target = expectedUrl.replace(/^https?:\/\/[^/]+/, ''); // unparsed: a parser would normalize the path
  const sent = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]);
  const byName = Object.fromEntries(sent) as Record<string, string>;
  return { method, host: new URL(expectedUrl).hostname, target, headers: byName };
}

const start = ({ timestamp }: Vector): number => Date.parse(timestamp);

/** Another character of the same kind. */
const other = (character: string): string =>
  /\d/.test(character) ? (character === '1' ? '2' : '1') : character === 'a' ? 'b' : 'a';
const altered = (value: string): string => value.slice(0, -1) + other(value.slice(-1));

/** The same request, altered in one part. */
function alterations(call: SignedCall): Map<string, SignedCall> {
  const found = new Map<string, SignedCall>();
  const [path = '', query = ''] = call.target.split('?');
  found.set('method', { ...call, method: call.method === 'PUT' ? 'GET' : 'PUT' });
  found.set('host', { ...call, host: `x${call.host}` });
  found.set('path', { ...call, target: `${altered(path)}?${query}` });
  found.set('deeper path', { ...call, target: `${path}/x?${query}` });
  const pairs = query.split('&');
  pairs.forEach((pair, at) => {
    const [name = '', value = ''] = pair.split('=');
    const without = pairs.filter((_, other) => other !== at);
    found.set(`without ${name}`, { ...call, target: `${path}?${without.join('&')}` });
    found.set(`another ${name}`, { ...call, target: `${path}?${[...without, `${name}=${altered(value)}`].join('&')}` });
    found.set(`${name} twice`, { ...call, target: `${path}?${[...pairs, pair].join('&')}` });
  });
  found.set('one more parameter', { ...call, target: `${call.target}&generation=1` });
  for (const [name, value] of Object.entries(call.headers)) {
    const { [name]: _, ...rest } = call.headers;
    found.set(`without header ${name}`, { ...call, headers: rest });
    found.set(`another header ${name}`, { ...call, headers: { ...rest, [name]: `x${value}` } });
  }
  found.set('a header of the store', { ...call, headers: { ...call.headers, 'x-goog-acl': 'public-read' } });
  return found;
}

t.test("OBJ-05: the verifier accepts each of Google's signed URLs, from its first second to its last", (t) => {
  t.ok(vectors.length >= 25, `${vectors.length} vectors`);
  for (const vector of vectors) {
    const call = callOf(vector);
    const last = start(vector) + vector.expiration * 1000;
    t.equal(refusalOf(call, signer, start(vector)), undefined, vector.description);
    t.equal(refusalOf(call, signer, last), undefined, `${vector.description}, at its expiry`);
    t.equal(refusalOf(call, signer, last + 1), 'ExpiredToken', `${vector.description}, late`);
    t.equal(refusalOf(call, signer, start(vector) - 3_600_000), 'RequestTimeTooSkewed', 'an hour before its time');
  }
  t.end();
});

t.test('OBJ-05: the verifier refuses each URL altered in any part, and signed by another key', (t) => {
  const stranger = { ...signer, publicKey: generateKeyPairSync('rsa', { modulusLength: 2048 }).publicKey };
  let tried = 0;
  for (const vector of vectors) {
    const call = callOf(vector);
    for (const [what, changed] of alterations(call)) {
      tried++;
      if (refusalOf(changed, signer, start(vector)) === undefined)
        t.fail(`${vector.description}: ${what} was accepted`);
    }
    t.equal(refusalOf(call, stranger, start(vector)), 'SignatureDoesNotMatch', `${vector.description}: another key`);
    const renamed = { ...signer, email: `x${signer.email}` };
    t.equal(refusalOf(call, renamed, start(vector)), 'SignatureDoesNotMatch', `${vector.description}: another signer`);
  }
  t.ok(tried > 500, `${tried} alterations`);
  t.end();
});
