/** The lock file that `npm ci` installs, compared with what package.json says about Node and scripts. */
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';

/** The package has no type declarations. */
const semver = createRequire(import.meta.url)('semver') as {
  minVersion(range: string): { readonly version: string };
  satisfies(version: string, range: string): boolean;
};

interface Locked {
  readonly engines?: { readonly node?: string };
  readonly hasInstallScript?: boolean;
}

/** The image's Node; see deploy/Dockerfile. */
const IMAGE_NODE = '24.0.0';

const fileOf = async <T>(name: string): Promise<T> => JSON.parse(await readFile(join(PROJECT_ROOT, name), 'utf8')) as T;

t.test('PLAT-02 PLAT-03: every locked package accepts the promised Nodes, and every script is decided', async (t) => {
  const { engines, allowScripts } = await fileOf<{
    engines: { node: string };
    allowScripts: Record<string, boolean>;
  }>('package.json');
  const { packages } = await fileOf<{ packages: Record<string, Locked> }>('package-lock.json');
  const lowest = semver.minVersion(engines.node).version;
  const locked = Object.entries(packages).filter(([path]) => path !== '');
  t.ok(locked.length > 500);
  for (const version of [lowest, IMAGE_NODE]) {
    const refusing = locked.filter(([, one]) => !semver.satisfies(version, one.engines?.node ?? '*'));
    t.same(
      refusing.map(([path, { engines }]) => `${path} wants ${engines?.node ?? ''}`),
      [],
      `Node ${version}`,
    );
  }
  const scripts = locked
    .filter(([, one]) => one.hasInstallScript === true)
    .map(([path]) => path.split('node_modules/').at(-1));
  t.same(
    scripts.filter((name) => !(String(name) in allowScripts)),
    [],
  );
  for (const page of ['README.md', 'src/docs/sdk.md', 'src/mcp/README.md'])
    t.match(await readFile(join(PROJECT_ROOT, page), 'utf8'), `${lowest.replace(/\.0$/, '')} or newer`, page);
});
