/**
 * Makes the packages: `npm run pack`, or `pack.js FOLDER` for another target than `build/packages`. Each workspace gets
 * a folder of its name with a subset of this built checkout, at the same paths: the modules that its entries need, the
 * other entries of its `files`, its README, licence and changelog. Then packs each as a tarball, and writes their
 * checksums (`sha256sum --check`).
 */
import { execFile } from 'node:child_process';
import { hash } from 'node:crypto';
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { promisify } from 'node:util';
import { PROJECT_ROOT } from '../root.js';
import { reachedFrom } from './modules.js';
import { partsOfTypia, PLACE, withoutTypia } from './typia.js';

const PACKAGES = resolve(process.argv[2] ?? join(PROJECT_ROOT, 'build', 'packages'));
const MODULES = 'build/src';
const MAP_COMMENT = /^\/\/# sourceMappingURL=.*$/m;

interface Project {
  readonly workspaces: readonly string[];
  readonly version: string;
  readonly license: string;
  readonly engines: object;
}

/** The fields of a workspace's package.json that are used here. */
interface Manifest {
  readonly files: readonly string[];
  readonly bin?: Readonly<Record<string, string>>;
  readonly exports?: unknown;
}

const readJson = async <T>(...path: readonly string[]): Promise<T> =>
  JSON.parse(await readFile(join(PROJECT_ROOT, ...path), 'utf8')) as T;

/** The paths in a value of `exports`. */
const textsIn = (value: unknown): string[] =>
  typeof value === 'string' ? [value] : Object.values(value ?? {}).flatMap(textsIn);

/** The modules that others import or start. A program that is no module (a shell script) contains the path of one. */
async function entriesOf({ bin = {}, exports }: Manifest): Promise<string[]> {
  const named = [...Object.values(bin), ...textsIn(exports)].map(async (target) => {
    if (/\.(?:js|d\.ts)$/.test(target)) return [target];
    const text = await readFile(join(PROJECT_ROOT, target), 'utf8');
    return target.endsWith('.json') ? [] : [...text.matchAll(/\bbuild\/src\/[\w/-]+\.js\b/g)].map(([path]) => path);
  });
  return (await Promise.all(named)).flat().map((path) => join(PROJECT_ROOT, path));
}

const put = async (path: string, text: string): Promise<void> => {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text);
};

/** Recreates the folder of one package. */
async function stage(workspace: string, { version, license, engines }: Project): Promise<string> {
  const source = join(PROJECT_ROOT, workspace);
  const target = join(PACKAGES, basename(workspace));
  const own = await readJson<Manifest>(workspace, 'package.json');
  await rm(target, { recursive: true, force: true });
  const modules = await reachedFrom(await entriesOf(own));
  const typia = await partsOfTypia(modules.values(), target);
  for (const [file, text] of modules) {
    const path = relative(PROJECT_ROOT, file);
    await put(join(target, path), withoutTypia(path, text).replace(MAP_COMMENT, ''));
  }
  for (const [path, text] of typia) await put(join(target, path), text.replace(MAP_COMMENT, ''));
  for (const path of own.files)
    if (path !== MODULES) {
      const filter = (file: string): boolean => !file.endsWith('.ts');
      await cp(join(PROJECT_ROOT, path), join(target, path), { recursive: true, filter });
    }
  for (const name of ['LICENSE', 'CHANGELOG.md']) await cp(join(PROJECT_ROOT, name), join(target, name));
  await cp(join(source, 'README.md'), join(target, 'README.md'));
  // Which packages have parts of typia follows from the code: npm would leave out a folder that `files` does not name.
  const files = [...own.files, ...(typia.size > 0 ? [PLACE] : []), 'CHANGELOG.md'];
  await put(join(target, 'package.json'), `${JSON.stringify({ ...own, version, license, engines, files }, null, 2)}\n`);
  return target;
}

/** Packs a folder, and returns the tarball's name. npm is a script on Windows and needs a shell there. */
async function pack(folder: string): Promise<string> {
  const args = ['pack', '--ignore-scripts', '--json', '--pack-destination', PACKAGES];
  const { stdout } = await promisify(execFile)('npm', args, {
    ...{ cwd: folder, shell: process.platform === 'win32', maxBuffer: 16 * 1024 * 1024 },
  });
  const [packed] = JSON.parse(stdout) as readonly { readonly filename: string }[];
  if (packed === undefined) throw new Error(`${folder}: npm packed nothing`);
  return packed.filename;
}

const project = await readJson<Project>('package.json');
await rm(PACKAGES, { recursive: true, force: true });
const sums: string[] = [];
for (const workspace of project.workspaces) {
  const name = await pack(await stage(workspace, project));
  sums.push(`${hash('sha256', await readFile(join(PACKAGES, name)))}  ${name}\n`);
  console.log(relative('.', join(PACKAGES, name)));
}
await writeFile(join(PACKAGES, 'SHA256SUMS'), sums.join(''));
