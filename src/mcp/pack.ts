/**
 * Builds the package of the companion: `npm run mcp:pack`. Copies every module that its command imports, with its own
 * package.json, README and licence, to `build/mcp-package` and packs it there. Fails for a module outside the folders
 * that the companion may import, so that nothing of the server gets in.
 */
import { execFile } from 'node:child_process';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { promisify } from 'node:util';
import { PROJECT_ROOT } from '../root.js';

const COMPILED = join(PROJECT_ROOT, 'build', 'src');
const SOURCE = join(PROJECT_ROOT, 'src', 'mcp');
const TARGET = join(PROJECT_ROOT, 'build', 'mcp-package');
const ENTRY = join(COMPILED, 'mcp', 'main.js');
const FOLDERS: readonly string[] = ['mcp', 'device', 'sdk', 'terminal', 'files', 'crypto', 'protocol'];
/** Imports as the compiler writes them: statements begin a line, `import(...)` has a literal. */
const IMPORTED = /^(?:import|export)\s[^;]*?from '([^']+)';|^import '([^']+)';|\bimport\('([^']+)'\)/gms;
const MAP_COMMENT = /^\/\/# sourceMappingURL=.*$/m;

/** The entry and every file that it imports, by relative paths, directly or not. Throws for one outside `FOLDERS`. */
async function reached(): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>();
  const waiting = [ENTRY];
  for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
    if (found.has(file)) continue;
    const folder = relative(COMPILED, file).split(sep)[0] ?? '';
    if (!FOLDERS.includes(folder)) throw new Error(`the companion reaches ${relative(PROJECT_ROOT, file)}`);
    const code = await readFile(file, 'utf8');
    found.set(file, code);
    for (const [, from, bare, dynamic] of code.matchAll(IMPORTED)) {
      const target = from ?? bare ?? dynamic ?? '';
      if (target.startsWith('.')) waiting.push(resolve(dirname(file), target));
    }
  }
  return found;
}

await rm(TARGET, { recursive: true, force: true });
for (const [file, code] of await reached()) {
  const path = join(TARGET, 'dist', relative(COMPILED, file));
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, code.replace(MAP_COMMENT, ''));
}
await copyFile(join(SOURCE, 'package.json'), join(TARGET, 'package.json'));
await copyFile(join(SOURCE, 'README.md'), join(TARGET, 'README.md'));
await copyFile(join(PROJECT_ROOT, 'LICENSE'), join(TARGET, 'LICENSE'));
// npm is a script on Windows and needs a shell there; every argument is a constant.
const npm = promisify(execFile)('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', dirname(TARGET)], {
  cwd: TARGET,
  shell: process.platform === 'win32',
});
const [packed] = JSON.parse((await npm).stdout) as readonly { readonly filename: string }[];
console.log(relative(PROJECT_ROOT, join(dirname(TARGET), packed?.filename ?? '')));
