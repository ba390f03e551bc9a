/**
 * Typia leaves imports of a few small functions in compiled code. Its package depends on a compiler, which a server
 * does not need, so the functions are copied into the package that uses them.
 */
import { cp } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { PROJECT_ROOT } from '../root.js';
import { reachedFrom } from './modules.js';

const LIBRARY = join(PROJECT_ROOT, 'node_modules', 'typia');
/** Folder of the functions in a package. */
export const PLACE = 'build/typia';
const IMPORTED = /(?<=from ")typia\/(lib\/internal\/\w+)(?=")/g;
/** Types for generating validators, which users of a package do not have and do not need. */
const TAGS = / & tags\.\w+<(?:'[^']*'|"[^"]*"|[^<>'"])*>|^import (?:type )?\{ (?:type )?tags \} from 'typia';\n/gm;

/** The text of a module or declaration without imports of typia's package. `path`: its path in the package. */
export function withoutTypia(path: string, text: string): string {
  const place = relative(dirname(path), PLACE).replaceAll('\\', '/');
  return text.replace(IMPORTED, (_, name: string) => `${place}/${name}.mjs`).replace(TAGS, '');
}

/** The files of typia that these modules import, by path in the package, with their texts. Adds typia's licence. */
export async function partsOfTypia(texts: Iterable<string>, target: string): Promise<ReadonlyMap<string, string>> {
  const names = [...texts].flatMap((text) => [...text.matchAll(IMPORTED)].map(([, name]) => `${name ?? ''}.mjs`));
  const parts = await reachedFrom([...new Set(names)].map((name) => join(LIBRARY, name)));
  if (parts.size > 0) await cp(join(LIBRARY, 'LICENSE'), join(target, PLACE, 'LICENSE'));
  return new Map([...parts].map(([file, text]) => [join(PLACE, relative(LIBRARY, file)), text]));
}
