/** The small client with one check left out or done wrong, and whether vectors and liar see it. */
import { copyFile, readFile, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { Test } from 'tap';
import type * as vectors from '../reference-client/vectors.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { isFault, playAll, type Outcome } from '../liar/network/play.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { runServer } from './server.js';

const CLIENT = join(dirname(fileURLToPath(import.meta.url)), '..', 'reference-client');
const FILES = ['client.js', 'cryptography.js', 'liar.js', 'replica.js', 'vectors.js'] as const;
const VECTORS = join(PROJECT_ROOT, 'test', 'vectors');

/** A fault of a client. */
interface Fault {
  readonly what: string;
  readonly file: 'client' | 'cryptography' | 'replica';
  /** In the compiled file, once. */
  readonly find: string;
  readonly put: string;
  /** What it falls against: the files of vectors, or the lie that is believed then. */
  readonly falls: string;
}

/** Faults of one of the client's files. */
const faultIn =
  (file: Fault['file']) =>
  (what: string, falls: string, [find, put]: readonly [string, string]): Fault => ({ what, falls, find, put, file });
const crypto = faultIn('cryptography');
const replica = faultIn('replica');
const client = faultIn('client');
const never = (condition: string): readonly [string, string] => [`if (${condition})`, 'if (false)'];

export const FAULTS: readonly Fault[] = [
  crypto('takes every tag of an item', 'item', never('!equal(item.sig, tag(item, master))')),
  crypto('takes items without a tag', 'item', [
    "if (item.sig === null)\n        throw new Error('no_sig');",
    'if (item.sig === null) return;',
  ]),
  crypto('leaves the bin out of the tag', 'item', [
    "lp('service-item-sig-v1', id, binId, type,",
    "lp('service-item-sig-v1', id, type,",
  ]),
  crypto('does not sort the keys of a blob', 'item', ['.sort(([one], [other]) => (one < other ? -1 : 1))', '']),
  crypto('leaves the time out of the AAD', 'item', ['`${type}|${ts}`', '`${type}`']),
  crypto('tries the first usable key only', 'item', [
    'for (const key of keys) {',
    'for (const key of keys.slice(0, 1)) {',
  ]),
  crypto('tries the master wrap before `blobKeys`', 'item', [
    '[own(blob?.keys, device), openWrap(wrap, master), own(keys, device)]',
    '[openWrap(wrap, master), own(blob?.keys, device), own(keys, device)]',
  ]),
  crypto('takes a payload that is no object', 'item', [' || Array.isArray(value)', '']),
  crypto('takes words with a wrong checksum', 'words', [' || words(bytesOfWords(text)) !== text', '']),
  crypto('takes the minus sign for a dash', 'words', ['[\\s\\p{Pd}]', '[\\s\\p{Pd}\u2212]']),
  crypto('takes the hyphen alone for a dash', 'words', ['[\\s\\p{Pd}]', '[\\s-]']),
  crypto('E: leaves out the host', 'pairing', never('request.host !== own.host')),
  crypto('E: leaves out the ids that it knows', 'pairing', never('own.isKnown(request.deviceId)')),
  crypto('E: leaves out the attestation', 'pairing', never('!equal(link.attestation, request.attestation)')),
  crypto('N: leaves out the confirmation', 'pairing', never('!equal(link.confirmation(wrapped, cert), confirmation)')),
  crypto('N: takes a master key of any length', 'pairing', ['if (!is32(master))', 'if (master === undefined)']),
  crypto('N: leaves out the certificate', 'pairing', never('!equal(cert, certificate(master, id, pair.open))')),
  crypto('N: is registered as another', 'pairing', never('given.id !== own.id || !equal(given.pubkey, own.pair.open)')),
  crypto('pairs with a key of low order', 'pairing', ["throw new Error('low_order');", 'return Buffer.alloc(32);']),
  crypto('seals for devices without a certificate', 'rewrap', never('!equal(cert, certificate(master, id, open))')),
  crypto('re-wraps what it did not verify', 'rewrap', [
    'export function rewrap(item, by, devices) {\n    verify(item, by.master);',
    'export function rewrap(item, by, devices) {',
  ]),
  crypto('passes on a key that nothing proves', 'rewrap', [
    'const bound = own(item.blob?.keys, by.device);',
    'const bound = own(item.blob?.keys, by.device) ?? offered(item, by)[0];',
  ]),
  crypto('leaves the key of a revoked device in `blobKeys`', 'rewrap', [
    'keys: completed(item.blob.keys, bound ?? key)',
    'keys: new Map([...item.blob.keys, ...completed(item.blob.keys, bound ?? key)])',
  ]),
  crypto('leaves the tag of a re-wrap as it was', 'rewrap', [
    'return { ...next, sig: tag(next, by.master) };',
    'return next;',
  ]),
  crypto('answers every sealed text', 'reauth', [' || !equal(opened, lp(', ' || equal(Buffer.of(1), lp(']),
  crypto('takes a blob that ends after any chunk', 'blob', [
    'place[4] = i === count - 1 ? 1 : 0;',
    'place[4] = i === 2 ? 1 : 0;',
  ]),
  crypto('hands on a blob with chunks that did not open', 'blob', ['opened.length < parts.length || ', '']),
  replica('takes every delete', 'LIAR-22', ['const holds = crypto.equal(', 'const holds = true || crypto.equal(']),
  replica('forgets the content with any delete', 'LIAR-21', [
    "return { state: 'deleted', good: before.good };",
    "return { state: 'deleted', good: null };",
  ]),
  replica('does not say that a delete has no tag', 'LIAR-21', ["this.report('untagged_delete')", 'void 0']),
  replica('takes an older state', 'LIAR-24', never('item.ts < good.item.ts')),
  replica('takes a deleted item back', 'LIAR-25', never('this.gone.has(item.id)')),
  replica('takes a deleted item back at the second time', 'LIAR-119', [
    'if (this.gone.has(item.id))',
    'if (this.gone.delete(item.id))',
  ]),
  replica('takes a deleted item back behind another delete', 'LIAR-120', [
    "this.report('untagged_delete');",
    "this.report('untagged_delete');\n        this.gone.delete(String(row['id']));",
  ]),
  replica('forgets what it held when an item does not verify', 'LIAR-24', [
    'good: before?.good ?? null }',
    'good: null }',
  ]),
  replica('does not say that an item does not verify', 'LIAR-08', [
    'this.report(reasonOf(error));\n            return',
    'return',
  ]),
  replica('does not compare count and sum', 'LIAR-34', [
    'return counted.length === itemCount && sum === versionSum && this.since === version;',
    'return true;',
  ]),
  replica('compares the count only', 'LIAR-34', ['&& sum === versionSum && this.since === version', '']),
  replica('does not say what is not listed any more', 'LIAR-35', ["this.report('missing');\n            this", 'this']),
  replica('moves its cursor to what the end names', 'LIAR-36', [
    'this.epoch = epoch;\n        const counted',
    'this.epoch = epoch;\n        this.since = version;\n        const counted',
  ]),
  replica('does not say that the history is another one', 'LIAR-29', ["this.report('reset');", '']),
  replica('forgets everything at a reset', 'LIAR-29', [
    'this.entries.set(id, { ...entry, version: 0 });\n    }\n    settle',
    'this.entries.delete(id);\n    }\n    settle',
  ]),
  replica('takes another epoch at the end', 'LIAR-38', never('this.epoch !== undefined && epoch !== this.epoch')),
  replica(
    'reads a listing without end',
    'LIAR-42',
    never('page.hasMore && (page.items.length === 0 || !(page.nextSince > since))'),
  ),
  client('takes its own key from the list', 'LIAR-61', [
    'if (revokedAt !== null || id === this.id)',
    'if (id === this.id) this.pair.open = bytes(pubkey);\n            if (revokedAt !== null || id === this.id)',
  ]),
  client('forgets which devices were revoked', 'LIAR-62', never('gone')),
  client('releases the key for another host', 'LIAR-118', ['host: this.host, isKnown', 'host, isKnown']),
  client('uses a server that registered another key', 'LIAR-84', [
    "crypto.expectOwn({ id: device['id'], pubkey: bytes(device['pubkey']) }, this);",
    '',
  ]),
];

/** A change of one of the client's files. */
type Edit = Pick<Fault, 'what' | 'file' | 'find' | 'put'>;

/** The command of a copy of the small client with this change. */
export const changed = async (t: WithTeardown, edit: Edit): Promise<readonly string[]> => [
  process.execPath,
  join(await copyWith(t, edit), 'liar.js'),
];

/** A copy of the small client with this change; its folder. */
async function copyWith(t: WithTeardown, { file, find, put, what }: Edit): Promise<string> {
  const folder = await temporaryFolder(t);
  await symlink(join(PROJECT_ROOT, 'node_modules'), join(folder, 'node_modules'));
  await writeFile(join(folder, 'package.json'), '{"type":"module"}');
  for (const name of FILES) await copyFile(join(CLIENT, name), join(folder, name));
  const path = join(folder, `${file}.js`);
  const parts = (await readFile(path, 'utf8')).split(find);
  if (parts.length !== 2) throw new Error(`'${what}' changes ${parts.length - 1} places`);
  await writeFile(path, parts.join(put));
  return folder;
}

/** Holds that each fault is seen where the table says. */
export async function seenAll(t: Test, faults: readonly Fault[]): Promise<void> {
  const sound = (await import(pathToFileURL(join(CLIENT, 'vectors.js')).href)) as typeof vectors;
  t.same(sound.tried(VECTORS).failed, [], 'the client itself passes the vectors');
  for (const fault of faults) {
    const folder = await copyWith(t, fault);
    if (fault.falls.startsWith('LIAR')) {
      const [outcome] = await told(t, [process.execPath, join(folder, 'liar.js')], [fault.falls]);
      t.ok(outcome !== undefined && isFault(outcome), `a client that ${fault.what}: ${fault.falls}`);
    } else {
      const copy = (await import(pathToFileURL(join(folder, 'vectors.js')).href)) as typeof vectors;
      t.not(copy.tried(VECTORS, fault.falls).failed.length, 0, `a client that ${fault.what}: ${fault.falls}.json`);
    }
  }
}

export const SMALL_CLIENT: readonly string[] = [process.execPath, join(CLIENT, 'liar.js')];

/** What comes of these lies, told to a client. */
export async function told(t: Test, command: readonly string[], only?: readonly string[]): Promise<readonly Outcome[]> {
  const { port } = await runServer(t, { env: { MAX_DEVICES: '1000' } });
  return playAll(t, { command, port, ...(only === undefined ? {} : { only }) });
}
