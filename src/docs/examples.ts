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

interface Call {
  readonly method?: 'POST' | 'PATCH' | 'DELETE';
  /** The variable with the token; absent: none is sent. */
  readonly token?: string;
  /** JSON, in which the shell expands `$`. */
  readonly body?: string;
  readonly host?: string;
}

/** Passes the token by process substitution, so that the list of processes does not show it. */
const authorization = (name: string): string => `-H @<(echo "Authorization: Bearer $${name}")`;

function curl(path: string, { method, token, body, host = 'HOST' }: Call = {}): string {
  // With a body, curl sends a POST anyway.
  const verb = method === undefined || (method === 'POST' && body !== undefined) ? '' : `-X ${method} `;
  const parts = [
    `curl -sS --fail-with-body ${verb}"$${host}${path}"`,
    ...(token === undefined ? [] : [authorization(token)]),
    ...(body === undefined ? [] : [`-H 'Content-Type: application/json' -d @- <<END`]),
  ];
  return parts.join(' \\\n  ') + (body === undefined ? '' : `\n${body}\nEND`);
}

const random = (bytes: number): string => `$(head -c ${bytes} /dev/urandom | base64 | tr -d '\\n')`;
const ULID = '0$(LC_ALL=C tr -dc 0-9A-HJKMNP-TV-Z < /dev/urandom | head -c 25)';
const mine = (path: string, more: Call = {}): string => curl(path, { token: 'TOKEN', ...more });

const envelope = `"payloadEnc": {
    "ct": "${random(48)}",
    "nonce": "${random(24)}",
    "sig": "${random(32)}",
    "keys": { "$DEVICE": "${random(80)}" } } }`;

const ITEMS: Readonly<Record<string, Example>> = {
  'POST /api/items': {
    shell: mine('/api/items', {
      method: 'POST',
      body: `{ "id": "${ULID}",\n  "binId": "inbox", "type": "text", "ts": $(date +%s)000,\n  ${envelope}`,
    }),
    sdk: `const { id, version } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'milk' } });
console.log(id, version);`,
    prints: /^[0-9A-Z]{26} \d+$/,
  },
  'GET /api/items': {
    shell: mine('/api/items?since=0&limit=100'),
    sdk: `await device.pull();
for (const { type, payload } of await device.list({ binId: 'inbox' })) console.log(type, payload);`,
    prints: /^text /,
  },
  'POST /api/items/batch': {
    shell: mine('/api/items/batch', {
      method: 'POST',
      body: `{ "items": [ { "id": "${ULID}",\n  "binId": "inbox", "type": "text", "ts": $(date +%s)000,\n  ${envelope} ] }`,
    }),
    sdk: `const items = await device.rewrap(); // adds keys that devices lack, in batches
console.log(\`\${items} items were fixed\`);`,
    prints: /^\d+ items were fixed$/,
  },
  'DELETE /api/items/:id': {
    shell: mine('/api/items/$ITEM', { method: 'DELETE' }),
    sdk: `const { id } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'gone soon' } });
await device.delete(id);
console.log(await device.get(id));`,
    prints: /^undefined$/,
  },
  'POST /api/items/:id/reconcile': {
    shell: mine('/api/items/$ITEM/reconcile', {
      method: 'POST',
      body: `{ "binId": "$BIN", "version": $VERSION, "sig": "${random(32)}" }`,
    }),
    sdk: `const { id } = await device.put({ binId: 'inbox', type: 'text', payload: { text: 'bread' } });
await device.bins.create('moved', { name: 'Moved' });
await device.move(id, 'moved');
console.log((await device.get(id))?.binId);`,
    prints: /^moved$/,
  },
};

const BINS: Readonly<Record<string, Example>> = {
  'GET /api/bins': {
    shell: mine('/api/bins'),
    sdk: `for (const { id, slug, label } of await device.bins.list()) console.log(id, slug, label?.name);`,
    prints: /^inbox /,
  },
  'POST /api/bins': {
    shell: mine('/api/bins', { method: 'POST', body: '{ "id": "groceries", "slug": "groceries" }' }),
    sdk: `const bin = await device.bins.create('groceries', { name: 'Groceries', emoji: '🛒' });
console.log(bin.id);`,
    prints: /^groceries$/,
  },
  'PATCH /api/bins/:id': {
    shell: mine('/api/bins/$BIN', { method: 'PATCH', body: '{ "slug": "errands" }' }),
    sdk: `await device.bins.create('errands', { name: 'Errands' });
const { label } = await device.bins.rename('errands', { name: 'To do' });
console.log(label?.name);`,
    prints: /^To do$/,
  },
  'DELETE /api/bins/:id': {
    shell: mine('/api/bins/$BIN', { method: 'DELETE', body: '{ "force": true }' }),
    sdk: `await device.bins.create('old', { name: 'Old' });
await device.bins.remove('old'); // its items first, each with a tag
console.log((await device.bins.list()).some(({ id }) => id === 'old'));`,
    prints: /^false$/,
  },
};

const PUT_FILE = `import { bytesSource } from '@service/client';

const content = bytesSource(new TextEncoder().encode('hello'));
const { id } = await device.put({ binId: 'inbox', type: 'file', payload: { name: 'hello.txt' }, content });`;

const BLOBS: Readonly<Record<string, Example>> = {
  'POST /api/blobs/upload-url': {
    shell: mine('/api/blobs/upload-url', {
      method: 'POST',
      body: '{ "contentLength": 5, "contentType": "application/octet-stream" }',
    }),
    sdk: `${PUT_FILE}
console.log(id); // space, upload and item in one call`,
    prints: /^[0-9A-Z]{26}$/,
  },
  'POST /api/uploads': {
    shell: mine('/api/uploads', { method: 'POST', body: '{ "contentLength": 12000000 }' }),
    sdk: `${PUT_FILE}
console.log(id); // started, sent in parts, and named by an item, in one call`,
    prints: /^[0-9A-Z]{26}$/,
  },
  'POST /api/uploads/:ref': {
    shell: mine('/api/uploads/$UPLOAD', { method: 'POST' }),
    sdk: `${PUT_FILE}
console.log(await device.blobSize(id)); // after an interruption the library asks, and continues`,
    prints: /^5$/,
  },
  'DELETE /api/uploads/:ref': {
    shell: mine('/api/uploads/$UPLOAD', { method: 'DELETE' }),
    sdk: `for (const { id } of await device.uploads()) await device.giveUpUpload(id); // what earlier runs left
console.log((await device.uploads()).length);`,
    prints: /^0$/,
  },
  'GET /api/blobs/:ref/url': {
    shell: mine('/api/blobs/$BLOB/url'),
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
};

const ITSELF = 'The library does it automatically, before a token ends and when one is refused.';
const OPERATOR = 'The library has no call for it: it is for the operator.';

const DEVICES: Readonly<Record<string, Example>> = {
  'GET /api/devices': {
    shell: mine('/api/devices'),
    sdk: `for (const { id, name } of await device.devices.list()) console.log(id, name);`,
    prints: /^[0-9A-Z]{26} /,
  },
  'PATCH /api/devices/:id': {
    shell: mine('/api/devices/$DEVICE', { method: 'PATCH', body: '{ "name": "Kitchen" }' }),
    sdk: `await device.devices.rename(device.id, 'Kitchen');
console.log((await device.me()).device.name);`,
    prints: /^Kitchen$/,
  },
  'POST /api/devices/:id/revoke': {
    shell: mine('/api/devices/$OTHER_DEVICE/revoke', { method: 'POST' }),
    sdk: `const other = (await device.devices.list()).find(({ id }) => id !== device.id);
if (other !== undefined) await device.revoke(other.id);
console.log(other?.name);`,
    prints: /^Second$/,
  },
  'POST /api/devices/bootstrap': {
    shell: curl('/api/devices/bootstrap', {
      host: 'EMPTY_HOST',
      method: 'POST',
      body: `{ "name": "Laptop", "glyph": "laptop", "pubkey": "${random(32)}" }`,
    }),
    sdk: `import { prepareClaim } from '@service/client';

const serverUrl = process.env['EMPTY_HOST'] ?? '';
const claim = await prepareClaim({ platform, serverUrl, name: 'Laptop', glyph: 'laptop' });
console.log(claim.phrase.split(' ').length, 'words to write down');
const first = await claim.register(); // keep JSON.stringify(first) where secrets are kept
console.log(first.name);`,
    prints: /^12 words to write down\nLaptop$/,
  },
  'POST /api/devices/bootstrap/restart': {
    shell: curl('/api/devices/bootstrap/restart', { host: 'EMPTY_HOST', method: 'POST', token: 'ADMIN_TOKEN' }),
    without: OPERATOR,
  },
  'POST /api/devices/reauth/challenge': {
    shell: curl('/api/devices/reauth/challenge', { method: 'POST', body: '{ "deviceId": "$DEVICE" }' }),
    without: ITSELF,
  },
  'POST /api/devices/reauth': {
    shell: curl('/api/devices/reauth', {
      method: 'POST',
      body: '{ "deviceId": "$DEVICE", "challengeId": "$CHALLENGE", "answer": "$ANSWER" }',
    }),
    without: ITSELF,
  },
  'POST /api/devices/recover/challenge': {
    shell: curl('/api/devices/recover/challenge', { method: 'POST' }),
    without: 'It is the first half of `recover`, below.',
  },
  'POST /api/devices/recover': {
    shell: curl('/api/devices/recover', { method: 'POST', body: '$RECOVERY' }),
    sdk: `import { recover } from '@service/client';

const { serverUrl } = identity;
const phrase = process.env['PHRASE'] ?? '';
const recovered = await recover({ platform, serverUrl, name: 'New laptop', glyph: 'laptop', phrase });
console.log(recovered.name);`,
    prints: /^New laptop$/,
  },
  'POST /api/ws-ticket': {
    shell: mine('/api/ws-ticket', { method: 'POST' }),
    sdk: `await device.connect(); // asks for a ticket, opens the socket, catches up
console.log((await device.status()).connection.state);`,
    prints: /^connected$/,
  },
};

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

const PAIRING: Readonly<Record<string, Example>> = {
  'POST /api/devices/pair-init': {
    shell: mine('/api/devices/pair-init', { method: 'POST', body: `{ "code": "$CODE", "epk": "${random(32)}" }` }),
    sdk: PAIR,
    prints: PAIRED,
  },
  'POST /api/devices/pair-fetch-epk': {
    shell: curl('/api/devices/pair-fetch-epk', { method: 'POST', body: '{ "code": "$CODE" }' }),
    without: '`join` does it, above.',
  },
  'POST /api/devices/pair-fetch-npk': {
    shell: curl('/api/devices/pair-fetch-npk', {
      method: 'POST',
      body: `{ "code": "$CODE", "name": "Phone", "glyph": "phone",\n  "pubkey": "${random(32)}", "attestation": "${random(32)}" }`,
    }),
    without: '`join` does it, above.',
  },
  'GET /api/devices/pair-requests': {
    shell: mine('/api/devices/pair-requests'),
    without: '`offerPairing` does it, above.',
  },
  'POST /api/devices/pair-wrap': {
    shell: mine('/api/devices/pair-wrap', {
      method: 'POST',
      body: `{ "code": "$CODE", "wrappedMasterKey": "${random(80)}",\n  "deviceCert": "${random(32)}", "confirmation": "${random(32)}" }`,
    }),
    without: '`offerPairing` does it, above.',
  },
};

const PASSWORD: Readonly<Record<string, Example>> = {
  'POST /api/password/set': {
    shell: mine('/api/password/set', { method: 'POST', body: '{ "password": "as stretched by the client" }' }),
    sdk: `await device.setPassword('correct horse'); // stretched here: the server never sees it
console.log(await device.passwordExists());`,
    prints: /^true$/,
  },
  'DELETE /api/password': {
    shell: mine('/api/password', {
      method: 'DELETE',
      body: '{ "currentPassword": "as stretched by the client" }',
    }),
    sdk: `await device.removePassword('correct horse');
console.log(await device.passwordExists());`,
    prints: /^false$/,
  },
  'POST /api/password/verify': {
    shell: curl('/api/password/verify', { method: 'POST', body: '{ "password": "as stretched by the client" }' }),
    without: '`join` and `recover` do it, with what their `password` answers.',
  },
  'GET /api/password/exists': {
    shell: curl('/api/password/exists'),
    sdk: `console.log(await device.passwordExists());`,
    prints: /^(true|false)$/,
  },
};

const BROWSER = 'The library has no call for it: a browser asks.';

const STATUS: Readonly<Record<string, Example>> = {
  'GET /api/me': {
    shell: mine('/api/me'),
    sdk: `const { device: own, server } = await device.me();
console.log(own.name, server.headVersion);`,
    prints: / \d+$/,
  },
  'GET /api/service/status': { shell: curl('/api/service/status'), without: OPERATOR },
  'GET /api/health': { shell: curl('/api/health'), without: OPERATOR },
  'GET /api/ready': { shell: curl('/api/ready'), without: OPERATOR },
  'GET /': { shell: `${curl('/')} -H 'Accept: text/html'`, without: BROWSER },
  'GET /web/:id': { shell: curl('/web/$WEB_FILE'), without: BROWSER },
  'GET /sw.js': { shell: curl('/sw.js'), without: BROWSER },
  'GET /manifest.webmanifest': { shell: curl('/manifest.webmanifest'), without: BROWSER },
};

const FORM = 'The library has no call for it: it is a form of the signup page.';
const PAYMENT = 'The library has no call for it: the payment provider calls it.';

const HOSTING: Readonly<Record<string, Example>> = {
  'POST /api/signup': {
    shell: curl('/api/signup', {
      host: 'APEX',
      method: 'POST',
      body: '{ "email": "anna@example.com", "subdomain": "anna" }',
    }),
    without: 'The library has no call for it: signing up comes before there is a device.',
  },
  'POST /signup': {
    shell: `${curl('/signup', { host: 'APEX' })} \\\n  --data-urlencode email=berta@example.com -d subdomain=berta`,
    without: FORM,
  },
  'GET /api/tls-check': {
    shell: curl('/api/tls-check?domain=$DOMAIN', { host: 'APEX' }),
    without: 'The library has no call for it: the proxy asks.',
  },
  'POST /api/admin/test-tenants': {
    shell: curl('/api/admin/test-tenants', {
      host: 'APEX',
      method: 'POST',
      token: 'ADMIN_TOKEN',
      body: `{ "subdomain": "load-1", "devices": [{ "id": "$DEVICE", "pubkey": "${random(32)}", "cert": "${random(32)}" }] }`,
    }),
    without: OPERATOR,
  },
  'GET /api/admin/test-tenants': {
    shell: curl('/api/admin/test-tenants', { host: 'APEX', token: 'ADMIN_TOKEN' }),
    without: OPERATOR,
  },
  'DELETE /api/admin/test-tenants/:id': {
    shell: curl('/api/admin/test-tenants/load-1', { host: 'APEX', method: 'DELETE', token: 'ADMIN_TOKEN' }),
    without: OPERATOR,
  },
  'POST /api/billing/webhook': {
    shell: `${curl('/api/billing/webhook', { host: 'APEX' })} \\\n  -H "Stripe-Signature: $SIGNATURE" --data-binary "$EVENT"`,
    without: PAYMENT,
  },
  'GET /api/billing/portal': {
    shell: mine('/api/billing/portal', { host: 'TENANT_HOST' }),
    without: 'The library has no call for it: an application shows the address to its user.',
  },
  'GET /signup/done': {
    shell: curl('/signup/done?return=$RETURN', { host: 'APEX' }),
    without: BROWSER,
  },
  'POST /signup/pay': {
    shell: `${curl('/signup/pay', { host: 'APEX' })} -d return=$RETURN`,
    without: FORM,
  },
};

/** By method and path as in the route table. */
export const EXAMPLES: Readonly<Record<string, Example>> = {
  ...ITEMS,
  ...BINS,
  ...BLOBS,
  ...DEVICES,
  ...PAIRING,
  ...PASSWORD,
  ...STATUS,
  ...HOSTING,
  'GET /docs': { shell: curl('/docs'), without: BROWSER },
  'GET /docs/:id': { shell: curl('/docs/errors'), without: BROWSER },
};
