/**
 * What typia leaves in compiled code: imports of a few small functions. Their package brings a compiler, which a server
 * does not need: the functions become part of the package that uses them.
 */
import { cp } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { PROJECT_ROOT } from '../root.js';
import { reachedFrom } from './modules.js';

const LIBRARY = join(PROJECT_ROOT, 'node_modules', 'typia');
/** Where they lie in a package. */
const PLACE = join('build', 'typia');
const IMPORTED = /(?<=from ")typia\/(lib\/internal\/\w+)(?=")/g;
/** Types by which the validators are made: they say nothing to others, whose compiler has not got them. */
const TAGS = / & tags\.\w+<(?:'[^']*'|"[^"]*"|[^<>'"])*>|^import (?:type )?\{ (?:type )?tags \} from 'typia';\n/gm;

/** The text of a module or declaration without typia's package. `path`: where it lies in the package. */
export function withoutTypia(path: string, text: string): string {
  const place = relative(dirname(path), PLACE).replaceAll('\\', '/');
  return text.replace(IMPORTED, (_, name: string) => `${place}/${name}.mjs`).replace(TAGS, '');
}

/** The files of typia that these modules import, from the package's folder, with their texts; its licence is put there. */
export async function partsOfTypia(texts: Iterable<string>, target: string): Promise<ReadonlyMap<string, string>> {
  const names = [...texts].flatMap((text) => [...text.matchAll(IMPORTED)].map(([, name]) => `${name ?? ''}.mjs`));
  const parts = await reachedFrom([...new Set(names)].map((name) => join(LIBRARY, name)));
  if (parts.size > 0) await cp(join(LIBRARY, 'LICENSE'), join(target, PLACE, 'LICENSE'));
  return new Map([...parts].map(([file, text]) => [join(PLACE, relative(LIBRARY, file)), text]));
}
