/** The package as others get it: packed, unpacked and used (package.json). */
import { execFile, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { entriesOf, type Manifest } from './support/manifest.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

t.setTimeout(600_000);

const run = promisify(execFile);

/** Packs the project, unpacks it where its dependencies can be found, and gives an application that has it installed. */
async function installed(t: WithTeardown): Promise<{ readonly app: string; readonly unpacked: string }> {
  const folder = await temporaryFolder(t);
  const packing = ['pack', '--ignore-scripts', '--offline', '--json', '--pack-destination', folder];
  const { stdout } = await run('npm', packing, { cwd: PROJECT_ROOT, maxBuffer: 64 * 1024 * 1024 });
  const [packed] = JSON.parse(stdout) as { readonly filename: string }[];
  await run('tar', ['-xzf', join(folder, packed?.filename ?? ''), '-C', folder]);
  await symlink(join(PROJECT_ROOT, 'node_modules'), join(folder, 'node_modules'));
  const app = join(folder, 'app');
  await mkdir(join(app, 'node_modules/@service'), { recursive: true });
  await symlink(join(folder, 'package'), join(app, 'node_modules/@service/server'));
  await writeFile(join(app, 'package.json'), JSON.stringify({ type: 'module' }));
  return { app, unpacked: join(folder, 'package') };
}

const USE = `
import { Device, MemoryStore, nodePlatform, openNodeStore, StoreError } from '@service/server/client';
const platform = nodePlatform();
const keys = platform.sodium.boxKeyPair();
const identity = {
  serverUrl: 'http://127.0.0.1:1', tenantId: 'tenant', deviceId: 'device', name: 'Test', glyph: 'laptop',
  keys, masterKey: platform.sodium.random(32), token: { text: 'token', expiresAt: null },
};
const { store, repair } = await openNodeStore('./store', identity);
const device = await Device.open({ platform, identity, store, onProblem: console.error });
console.log(JSON.stringify({ repair, items: await device.list() }));
device.close();
await store.close();
`;

const TYPED = `
import { Device, Identity, type ItemView, type Platform, StoreError } from '@service/server/client';
import { browserPlatform, nodePlatform, openBrowserStore, openNodeStore } from '@service/server/client';
import * as node from '@service/server/client/node';
import * as browser from '@service/server/client/browser';
export const platforms: readonly (Platform | Promise<Platform>)[] = [nodePlatform(), browserPlatform()];
export const stores = [openNodeStore, openBrowserStore, node.openNodeStore, browser.openBrowserStore];
export const back = (saved: string): Identity => Identity.parse(saved);
export const saved = (identity: Identity): string => JSON.stringify(identity.toJSON());
export const opened = (identity: Identity, platform: Platform): Promise<Device> =>
  Device.open({ platform, identity, onProblem: () => undefined, onIdentity: (next) => saved(next) });
export const shown = async (device: Device): Promise<readonly ItemView[]> => device.list();
export const code = (error: StoreError): 'locked' | 'full' | string => error.code;
// @ts-expect-error: what is not typed would pass for anything
export const wrong = (device: Device): number => device.id;
`;

t.test('STORE-19 SDK-30: the packed package has its entries, and a program can use it', async (t) => {
  const { app, unpacked } = await installed(t);
  const manifest = JSON.parse(await readFile(join(unpacked, 'package.json'), 'utf8')) as Manifest;
  const targets = entriesOf(manifest);
  t.ok(targets.length >= 5, 'the entries were found');
  for (const target of targets) t.ok(existsSync(join(unpacked, target)), target);
  for (const target of Object.values(manifest.bin)) {
    const source = target.replace(/^build\//, '').replace(/\.js$/, '.ts');
    t.equal(existsSync(join(unpacked, target)), existsSync(join(PROJECT_ROOT, source)), target);
  }
  t.ok(existsSync(join(unpacked, 'sql')), 'the migrations');
  t.notOk(existsSync(join(unpacked, 'test')) || existsSync(join(unpacked, 'build/test')), 'no tests');

  await writeFile(join(app, 'use.js'), USE);
  const { stdout } = await run(process.execPath, ['use.js'], { cwd: app });
  t.same(JSON.parse(stdout), { repair: null, items: [] });

  await writeFile(join(app, 'typed.ts'), TYPED);
  const compiler = join(PROJECT_ROOT, 'node_modules/typescript/bin/tsc');
  const options = ['--ignoreConfig', '--noEmit', '--strict', '--skipLibCheck', '--target', 'es2022', '--types', 'node'];
  const types = ['--typeRoots', join(PROJECT_ROOT, 'node_modules/@types')];
  for (const how of [
    ['--module', 'nodenext'],
    ['--module', 'node16'],
    ['--module', 'esnext', '--moduleResolution', 'bundler'],
    ['--module', 'esnext', '--moduleResolution', 'bundler', '--customConditions', 'node'],
    ['--module', 'esnext', '--moduleResolution', 'bundler', '--customConditions', 'browser'],
  ]) {
    const compiled = spawnSync(process.execPath, [compiler, ...options, ...types, ...how, 'typed.ts'], {
      cwd: app,
      encoding: 'utf8',
    });
    t.equal(compiled.stdout, '', how.join(' '));
    t.equal(compiled.status, 0);
  }
});
