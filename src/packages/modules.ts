/** Finds the modules that an entry needs: the compiled code that belongs into a package. */
import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';

/** Imports as the compiler writes them: statements begin a line; `import(...)` and `new URL(...)` have a literal. */
const IMPORTED =
  /^(?:import|export)\s[^;]*?from ['"]([^'"]+)['"];|^import ['"]([^'"]+)['"];|\bimport\(['"]([^'"]+)['"]\)|\bnew URL\('(\.[^']+\.js)', import\.meta\.url\)/gms;

/** The entries and every file that they import, directly or not, with their text. A `.d.ts` imports `.d.ts` files. */
export async function reachedFrom(entries: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>();
  const waiting = [...entries];
  for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
    if (found.has(file)) continue;
    const code = await readFile(file, 'utf8');
    found.set(file, code);
    for (const [, from, bare, dynamic, url] of code.matchAll(IMPORTED)) {
      const target = from ?? bare ?? dynamic ?? url ?? '';
      if (!target.startsWith('.')) continue;
      const path = resolve(dirname(file), target);
      waiting.push(file.endsWith('.d.ts') ? path.replace(/\.js$/, '.d.ts') : path);
    }
  }
  return found;
}
