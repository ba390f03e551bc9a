/**
 * An example of each endpoint, for a shell and with the client library. A test runs each one unchanged, with the
 * variables of VARIABLES set (test/examples.test.ts).
 */

/** The variables that the examples use, with descriptions. */
export const VARIABLES: Readonly<Record<string, string>> = {
  HOST: 'the server, such as `http://localhost:8080`',
  TOKEN: "a device's token, as claiming, pairing or re-authenticating gives it",
  DEVICE: 'the id of that device',
  OTHER_DEVICE: 'the id of another device',
  ITEM: 'the id of an item in `inbox`',
  VERSION: 'its version',
  BIN: 'the id of a bin',
  BLOB: 'the name of a blob, `blobRef` of the reply that reserved space for it',
  UPLOAD_URL: '`url` of that reply',
  UPLOAD: 'the name of a blob whose upload in parts is not finished',
  DOWNLOAD_URL: '`url` of the reply to `GET /api/blobs/{ref}/url`',
  EMPTY_HOST: 'an unclaimed server',
  ADMIN_TOKEN: "the operator's token, `ADMIN_TOKEN` of the server",
  CHALLENGE: '`challengeId` of a challenge',
  ANSWER: 'the answer to it, made as [Cryptography](cryptography.md) says',
  RECOVERY: 'the body of a recovery as JSON, made as [Pairing](pairing.md) says',
  CODE: 'the six words of a pairing',
  PHRASE: 'the twelve words',
  WEB_FILE: 'the name of a file of the web app, as its page names it',
  APEX: 'the domain of a hosted service, such as `https://sync.example.com`',
  DOMAIN: 'a host name under it, such as `anna.sync.example.com`',
  TENANT_HOST: "a tenant's address under it",
  RETURN: 'the code of a checkout, as the signup page has it',
  EVENT: 'an event of the payment provider, as received',
  SIGNATURE: 'its signature',
};

/** Code to be pasted before an example of the library: opens a device. */
export const SDK_BEGIN = `import { readFile } from 'node:fs/promises';
import { Device, Identity, nodePlatform } from '@service/client';

const platform = await nodePlatform();
const identity = Identity.parse(await readFile('identity.json', 'utf8'));
const device = await Device.open({ platform, identity, onProblem: console.error });
`;

/** Code to be pasted after it: an open device keeps its program running. */
export const SDK_END = 'device.close();';

/** An example of an endpoint. */
interface Example {
  /** For bash or zsh; the exit code is not 0 if the server refuses. */
  readonly shell: string;
  /** TypeScript that follows SDK_BEGIN. */
  readonly sdk?: string;
  /** The output of `sdk`. */
  readonly prints?: RegExp;
  /** Why the library has no call for it. */
  readonly without?: string;
}

/** An example as it is written down here. Without `shell` that is a call of curl with the method of the endpoint. */
interface Given extends Partial<Example> {
  /** Path and query; absent: the endpoint's path. */
  readonly path?: string;
  readonly host?: string;
  /** The variable with the token; absent: TOKEN; null: none is sent. */
  readonly token?: string | null;
  /** JSON, in which the shell expands `$`. */
  readonly body?: string;
  /** Further arguments of curl, after a separator. With POST they give the body. */
  readonly more?: string;
}

function curl(endpoint: string, { path, host = 'HOST', token = 'TOKEN', body, more = '' }: Given): string {
  const [method = '', ownPath = ''] = endpoint.split(' ');
  // With a body, curl sends a POST anyway.
  const implied = method === 'GET' || (method === 'POST' && (body !== undefined || more !== ''));
  const parts = [
    `curl -sS --fail-with-body ${implied ? '' : `-X ${method} `}"$${host}${path ?? ownPath}"`,
    // Passed by process substitution, so that the list of processes does not show it.
    ...(token === null ? [] : [`-H @<(echo "Authorization: Bearer $${token}")`]),
    ...(body === undefined ? [] : [`-H 'Content-Type: application/json' -d @- <<END`]),
  ];
  return parts.join(' \\\n  ') + (body === undefined ? more : `\n${body}\nEND`);
}

const random = (bytes: number): string => `$(head -c ${bytes} /dev/urandom | base64 | tr -d '\\n')`;
const ULID = '0$(LC_ALL=C tr -dc 0-9A-HJKMNP-TV-Z < /dev/urandom | head -c 25)';

const envelope = `"payloadEnc": {
    "ct": "${random(48)}",
    "nonce": "${random(24)}",
    "sig": "${random(32)}",
    "keys": { "$DEVICE": "${random(80)}" } } }`;

const PUT_FILE = `import { bytesSource } from '@service/client';

const content = bytesSource(new TextEncoder().encode('hello'));
const { id } = await device.put({ binId: 'inbox', type: 'file', payload: { name: 'hello.txt' }, content });`;

const ITSELF = 'The library does it automatically, before a token ends and when one is refused.';
const OPERATOR = 'The library has no call for it: it is for the operator.';
const BROWSER = 'The library has no call for it: a browser asks.';
const FORM = 'The library has no call for it: it is a form of the signup page.';
const PAYMENT = 'The library has no call for it: the payment provider calls it.';

const PAIR = `import { join } from '@service/client';

await device.connect();
const offer = await device.offerPairing(({ digits }) => digits.length > 0); // ask a person: are they the same?
const { serverUrl } = identity;
const { words } = offer;
const onDigits = () => undefined; // show them
// On the other device:
const joined = await join({ platform, serverUrl, name: 'Phone', glyph: 'phone', words, onDigits });
console.log(joined.name, joined.deviceId === (await offer.joined));`;
const PAIRED = /^Phone true$/;

const GIVEN: Readonly<Record<string, Given>> = {
  'POST /api/items': {
    body: `{ "id": "${ULID}",\n  "binId": "inbox", "type": "text", "ts": $(date +%s)000,\n  ${envelope}`,
    sdk: `const { id, version } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'milk' } });
console.log(id, version);`,
    prints: /^[0-9A-Z]{26} \d+$/,
  },
  'GET /api/items': {
    path: '/api/items?since=0&limit=100',
    sdk: `await device.pull();
for (const { type, payload } of await device.list({ binId: 'inbox' })) console.log(type, payload);`,
    prints: /^text /,
  },
  'POST /api/items/batch': {
    body: `{ "items": [ { "id": "${ULID}",\n  "binId": "inbox", "type": "text", "ts": $(date +%s)000,\n  ${envelope} ] }`,
    sdk: `const items = await device.rewrap(); // adds keys that devices lack, in batches
console.log(\`\${items} items were fixed\`);`,
    prints: /^\d+ items were fixed$/,
  },
  'DELETE /api/items/:id': {
    path: '/api/items/$ITEM',
    sdk: `const { id } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'gone soon' } });
await device.delete(id);
console.log(await device.get(id));`,
    prints: /^undefined$/,
  },
  'POST /api/items/:id/reconcile': {
    path: '/api/items/$ITEM/reconcile',
    body: `{ "binId": "$BIN", "version": $VERSION, "sig": "${random(32)}" }`,
    sdk: `const { id } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'bread' } });
await device.bins.create('moved', { name: 'Moved' });
await device.move(id, 'moved');
console.log((await device.get(id))?.binId);`,
    prints: /^moved$/,
  },
  'GET /api/bins': {
    sdk: `for (const { id, slug, label } of await device.bins.list()) console.log(id, slug, label?.name);`,
    prints: /^inbox /,
  },
  'POST /api/bins': {
    body: '{ "id": "groceries", "slug": "groceries" }',
    sdk: `const bin = await device.bins.create('groceries', { name: 'Groceries', emoji: '🛒' });
console.log(bin.id);`,
    prints: /^groceries$/,
  },
  'PATCH /api/bins/:id': {
    path: '/api/bins/$BIN',
    body: '{ "slug": "errands" }',
    sdk: `await device.bins.create('errands', { name: 'Errands' });
const { label } = await device.bins.rename('errands', { name: 'To do' });
console.log(label?.name);`,
    prints: /^To do$/,
  },
  'DELETE /api/bins/:id': {
    path: '/api/bins/$BIN',
    body: '{ "force": true }',
    sdk: `await device.bins.create('old', { name: 'Old' });
await device.bins.remove('old'); // its items first, each with a tag
console.log((await device.bins.list()).some(({ id }) => id === 'old'));`,
    prints: /^false$/,
  },
  'POST /api/blobs/upload-url': {
    body: '{ "contentLength": 5, "contentType": "application/octet-stream" }',
    sdk: `${PUT_FILE}
console.log(id); // space, upload and item in one call`,
    prints: /^[0-9A-Z]{26}$/,
  },
  'POST /api/uploads': {
    body: '{ "contentLength": 12000000 }',
    sdk: `${PUT_FILE}
console.log(id); // started, sent in parts, and named by an item, in one call`,
    prints: /^[0-9A-Z]{26}$/,
  },
  'POST /api/uploads/:ref': {
    path: '/api/uploads/$UPLOAD',
    sdk: `${PUT_FILE}
console.log(await device.blobSize(id)); // after an interruption the library asks, and continues`,
    prints: /^5$/,
  },
  'DELETE /api/uploads/:ref': {
    path: '/api/uploads/$UPLOAD',
    sdk: `for (const { id } of await device.uploads()) await device.giveUpUpload(id); // what earlier runs left
console.log((await device.uploads()).length);`,
    prints: /^0$/,
  },
  'GET /api/blobs/:ref/url': {
    path: '/api/blobs/$BLOB/url',
    sdk: `${PUT_FILE}
const { size, expiresAt } = await device.blobUrl(id);
console.log(size, expiresAt);`,
    prints: /^\d+ \d+$/,
  },
  'PUT /blobs/:tenant/:ref': {
    shell: `curl -sS --fail-with-body -X PUT -K <(printf 'url = "%s"\\n' "$UPLOAD_URL") \\
  -H 'Content-Type: application/octet-stream' --data-binary hello`,
    sdk: `${PUT_FILE}
console.log(await device.blobSize(id));`,
    prints: /^5$/,
  },
  'GET /blobs/:tenant/:ref': {
    shell: `curl -sS --fail-with-body -K <(printf 'url = "%s"\\n' "$DOWNLOAD_URL")`,
    sdk: `${PUT_FILE}
for await (const bytes of device.blob(id)) console.log(new TextDecoder().decode(bytes));`,
    prints: /^hello$/,
  },
  'GET /api/devices': {
    sdk: `for (const { id, name } of await device.devices.list()) console.log(id, name);`,
    prints: /^[0-9A-Z]{26} /,
  },
  'PATCH /api/devices/:id': {
    path: '/api/devices/$DEVICE',
    body: '{ "name": "Kitchen" }',
    sdk: `await device.devices.rename(device.id, 'Kitchen');
console.log((await device.me()).device.name);`,
    prints: /^Kitchen$/,
  },
  'POST /api/devices/:id/revoke': {
    path: '/api/devices/$OTHER_DEVICE/revoke',
    sdk: `const other = (await device.devices.list()).find(({ id }) => id !== device.id);
if (other !== undefined) await device.revoke(other.id);
console.log(other?.name);`,
    prints: /^Second$/,
  },
  'POST /api/devices/bootstrap': {
    host: 'EMPTY_HOST',
    token: null,
    body: `{ "name": "Laptop", "glyph": "laptop", "pubkey": "${random(32)}" }`,
    sdk: `import { prepareClaim } from '@service/client';

const serverUrl = process.env['EMPTY_HOST'] ?? '';
const claim = await prepareClaim({ platform, serverUrl, name: 'Laptop', glyph: 'laptop' });
console.log(claim.phrase.split(' ').length, 'words to write down');
const first = await claim.register(); // keep JSON.stringify(first) where secrets are kept
console.log(first.name);`,
    prints: /^12 words to write down\nLaptop$/,
  },
  'POST /api/devices/bootstrap/restart': { host: 'EMPTY_HOST', token: 'ADMIN_TOKEN', without: OPERATOR },
  'POST /api/devices/reauth/challenge': { token: null, body: '{ "deviceId": "$DEVICE" }', without: ITSELF },
  'POST /api/devices/reauth': {
    token: null,
    body: '{ "deviceId": "$DEVICE", "challengeId": "$CHALLENGE", "answer": "$ANSWER" }',
    without: ITSELF,
  },
  'POST /api/devices/recover/challenge': { token: null, without: 'It is the first half of `recover`, below.' },
  'POST /api/devices/recover': {
    token: null,
    body: '$RECOVERY',
    sdk: `import { recover } from '@service/client';

const { serverUrl } = identity;
const phrase = process.env['PHRASE'] ?? '';
const recovered = await recover({ platform, serverUrl, name: 'New laptop', glyph: 'laptop', phrase });
console.log(recovered.name);`,
    prints: /^New laptop$/,
  },
  'POST /api/ws-ticket': {
    sdk: `await device.connect(); // asks for a ticket, opens the socket, catches up
console.log((await device.status()).connection.state);`,
    prints: /^connected$/,
  },
  'POST /api/devices/pair-init': {
    body: `{ "code": "$CODE", "epk": "${random(32)}" }`,
    sdk: PAIR,
    prints: PAIRED,
  },
  'POST /api/devices/pair-fetch-epk': { token: null, body: '{ "code": "$CODE" }', without: '`join` does it, above.' },
  'POST /api/devices/pair-fetch-npk': {
    token: null,
    body: `{ "code": "$CODE", "name": "Phone", "glyph": "phone",\n  "pubkey": "${random(32)}", "attestation": "${random(32)}" }`,
    without: '`join` does it, above.',
  },
  'GET /api/devices/pair-requests': { without: '`offerPairing` does it, above.' },
  'POST /api/devices/pair-wrap': {
    body: `{ "code": "$CODE", "wrappedMasterKey": "${random(80)}",\n  "deviceCert": "${random(32)}", "confirmation": "${random(32)}" }`,
    without: '`offerPairing` does it, above.',
  },
  'POST /api/password/set': {
    body: '{ "password": "as stretched by the client" }',
    sdk: `await device.setPassword('correct horse'); // stretched here: the server never sees it
console.log(await device.passwordExists());`,
    prints: /^true$/,
  },
  'DELETE /api/password': {
    body: '{ "currentPassword": "as stretched by the client" }',
    sdk: `await device.removePassword('correct horse');
console.log(await device.passwordExists());`,
    prints: /^false$/,
  },
  'POST /api/password/verify': {
    token: null,
    body: '{ "password": "as stretched by the client" }',
    without: '`join` and `recover` do it, with what their `password` answers.',
  },
  'GET /api/password/exists': {
    token: null,
    sdk: `console.log(await device.passwordExists());`,
    prints: /^(true|false)$/,
  },
  'GET /api/me': {
    sdk: `const { device: own, server } = await device.me();
console.log(own.name, server.headVersion);`,
    prints: / \d+$/,
  },
  'GET /api/service/status': { token: null, without: OPERATOR },
  'GET /api/health': { token: null, without: OPERATOR },
  'GET /api/ready': { token: null, without: OPERATOR },
  'GET /': { token: null, more: " -H 'Accept: text/html'", without: BROWSER },
  'GET /web/:id': { path: '/web/$WEB_FILE', token: null, without: BROWSER },
  'GET /sw.js': { token: null, without: BROWSER },
  'GET /manifest.webmanifest': { token: null, without: BROWSER },
  'POST /api/signup': {
    host: 'APEX',
    token: null,
    body: '{ "email": "anna@example.com", "subdomain": "anna" }',
    without: 'The library has no call for it: signing up comes before there is a device.',
  },
  'POST /signup': {
    host: 'APEX',
    token: null,
    more: ' \\\n  --data-urlencode email=berta@example.com -d subdomain=berta',
    without: FORM,
  },
  'GET /api/tls-check': {
    path: '/api/tls-check?domain=$DOMAIN',
    host: 'APEX',
    token: null,
    without: 'The library has no call for it: the proxy asks.',
  },
  'POST /api/admin/test-tenants': {
    host: 'APEX',
    token: 'ADMIN_TOKEN',
    body: `{ "subdomain": "load-1", "devices": [{ "id": "$DEVICE", "pubkey": "${random(32)}", "cert": "${random(32)}" }] }`,
    without: OPERATOR,
  },
  'GET /api/admin/test-tenants': { host: 'APEX', token: 'ADMIN_TOKEN', without: OPERATOR },
  'DELETE /api/admin/test-tenants/:id': {
    path: '/api/admin/test-tenants/load-1',
    host: 'APEX',
    token: 'ADMIN_TOKEN',
    without: OPERATOR,
  },
  'POST /api/billing/webhook': {
    host: 'APEX',
    token: null,
    more: ' \\\n  -H "Stripe-Signature: $SIGNATURE" --data-binary "$EVENT"',
    without: PAYMENT,
  },
  'GET /api/billing/portal': {
    host: 'TENANT_HOST',
    without: 'The library has no call for it: an application shows the address to its user.',
  },
  'GET /signup/done': { path: '/signup/done?return=$RETURN', host: 'APEX', token: null, without: BROWSER },
  'POST /signup/pay': { host: 'APEX', token: null, more: ' -d return=$RETURN', without: FORM },
  'GET /docs': { token: null, without: BROWSER },
  'GET /docs/:id': { path: '/docs/errors', token: null, without: BROWSER },
};

/** By method and path as in the route table. */
export const EXAMPLES: Readonly<Record<string, Example>> = Object.fromEntries(
  Object.entries(GIVEN).map(([endpoint, { shell, sdk, prints, without, ...call }]) => [
    endpoint,
    { shell: shell ?? curl(endpoint, call), sdk, prints, without },
  ]),
);
