/** The item, the claim and the pairing that the pages show byte for byte are what the code produces with fixed keys. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { acceptRelease, requestJoin, readPairCode } from '../src/crypto/pairing.js';
import { openItem } from '../src/crypto/item.js';
import { keysOfPhrase } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { PROJECT_ROOT } from '../src/root.js';
import { readItem } from '../src/sdk/wire.js';
import { runServer } from './support/server.js';
import { BODY_A, FIRST, ITEM_SECTION } from './vectors/example.js';
import { transcripts, withSection } from './vectors/transcripts.js';

const page = (name: string): string => readFileSync(join(PROJECT_ROOT, 'src/docs', name), 'utf8');
const HOW = 'else: node build/test/vectors/write-pages.js';

/** The value that a table of the section has under a name. */
const valueOf = (section: string, name: string): string =>
  new RegExp(`^\\| ${name} \\| \`(.+)\` \\|$`, 'm').exec(section)?.[1] ?? '';
const fromHex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, 'hex'));

t.test('REF-24: the item on the page on Cryptography is built from its values and opens with them', async (t) => {
  t.equal(page('cryptography.md'), withSection(page('cryptography.md'), ITEM_SECTION), HOW);
  const { masterKey } = await keysOfPhrase(nodeSodium, valueOf(ITEM_SECTION, 'phrase'));
  t.equal(Buffer.from(masterKey).toString('hex'), valueOf(ITEM_SECTION, 'master key'));
  const secretKey = fromHex(valueOf(ITEM_SECTION, "device's secret key"));
  const publicKey = fromHex(valueOf(ITEM_SECTION, "device's public key"));
  const item = readItem({ ...BODY_A, version: 1, senderDevice: FIRST.id, deletedAt: null }, 'type');
  if (item.deletedAt !== null) throw new Error('the item is deleted');
  const device = { id: FIRST.id, keys: { publicKey, secretKey } };
  const payload: unknown = JSON.parse(valueOf(ITEM_SECTION, 'payload'));
  t.same(
    openItem(nodeSodium, { ...item, master: null }, { masterKey, device }),
    payload,
    'the device opens the item by its own key',
  );
  t.same(openItem(nodeSodium, item, { masterKey, device: null }), payload, 'the item opens by the master wrap');
});

t.test('REF-25: the transcripts on the page on Pairing are what a server and two devices send', async (t) => {
  const { port } = await runServer(t);
  const { claim, pairing } = await transcripts(`http://127.0.0.1:${port}`);
  const text = page('pairing.md');
  t.equal(text, withSection(withSection(text, claim), pairing), HOW);

  const code = await readPairCode(nodeSodium, valueOf(pairing, 'visible words'));
  t.equal(code.wireCode, valueOf(pairing, 'wire code'));
  const field = (name: string): string => new RegExp(`"${name}": "([^"]+)"`).exec(pairing)?.[1] ?? '';
  const wire = (name: string): Uint8Array => new Uint8Array(Buffer.from(field(name), 'base64url'));
  const keys = { publicKey: wire('pubkey'), secretKey: fromHex(valueOf(pairing, "N's device secret key")) };
  const device = { id: field('deviceId'), keys, name: field('name'), glyph: field('glyph') };
  const { link, attestation } = requestJoin(nodeSodium, { code, host: field('host'), epk: wire('epk'), device });
  t.equal(Buffer.from(attestation).toString('base64url'), field('attestation'));
  t.equal(link.digits, valueOf(pairing, 'digits'));
  const release = {
    wrappedMasterKey: wire('wrappedMasterKey'),
    deviceCert: wire('deviceCert'),
    confirmation: wire('confirmation'),
  };
  const master = acceptRelease(nodeSodium, link, {
    device: { id: device.id, publicKey: keys.publicKey },
    release,
    keys,
  });
  t.equal(
    Buffer.from(master).toString('hex'),
    valueOf(ITEM_SECTION, 'master key'),
    'N receives the master key of the phrase',
  );
});
