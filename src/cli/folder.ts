/** The files in folders and their subfolders, for `put --folder`. */
import type { Dirent } from 'node:fs';
import { opendir } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { counted } from '../terminal/output.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** Folders with more names are refused as a whole: a mistyped path must not write everything into the vault. */
const NAMES_MAX = 10_000;

/** A file, and the name of its item; default: the file's name. */
export interface Source {
  readonly path: string;
  readonly name?: string;
}

/** `failed`: folders that cannot be read. `leftOut`: in words, '' for nothing. */
interface Found {
  readonly files: readonly Source[];
  readonly failed: readonly { readonly path: string; readonly error: unknown }[];
  readonly leftOut: string;
}

/** Why a name is left out. */
const LEFT_OUT = ['hidden', 'link', 'special file'] as const;
const reasonOf = (entry: Dirent): (typeof LEFT_OUT)[number] | undefined => {
  if (entry.name.startsWith('.')) return 'hidden';
  if (entry.isSymbolicLink()) return 'link';
  return entry.isFile() || entry.isDirectory() ? undefined : 'special file';
};

/**
 * The files in `folders`, sorted by name; a name is the path from the folder on, with slashes. Hidden names, symbolic
 * links and special files are left out. Throws `CommandError` `usage` for more than `most` names, and where there is no
 * file.
 */
export async function filesIn(folders: readonly string[], most = NAMES_MAX): Promise<Found> {
  const files: Source[] = [];
  const failed: { readonly path: string; readonly error: unknown }[] = [];
  const left = { hidden: 0, link: 0, 'special file': 0 };
  let seen = 0;
  const waiting = folders.map((path) => ({ path, name: basename(resolve(path)) })).reverse();
  for (let folder = waiting.pop(); folder !== undefined; folder = waiting.pop()) {
    const below: { readonly path: string; readonly name: string }[] = [];
    try {
      for await (const entry of await opendir(folder.path)) {
        if (++seen > most) throw tooMany(most);
        const reason = reasonOf(entry);
        const inside = { path: join(folder.path, entry.name), name: `${folder.name}/${entry.name}` };
        if (reason !== undefined) left[reason]++;
        else if (entry.isDirectory()) below.push(inside);
        else files.push(inside);
      }
    } catch (error) {
      if (error instanceof CommandError) throw error;
      failed.push({ path: folder.path, error });
    }
    waiting.push(...below);
  }
  if (folders.length > 0 && files.length === 0 && failed.length === 0)
    throw new CommandError(EXIT.usage, 'there are no files to put', 'Hidden files and links are left out.');
  files.sort((one, other) => ((one.name ?? '') < (other.name ?? '') ? -1 : 1));
  const leftOut = LEFT_OUT.filter((reason) => left[reason] > 0).map((reason) =>
    reason === 'hidden' ? `${left.hidden} hidden` : counted(left[reason], reason),
  );
  return { files, failed, leftOut: leftOut.join(', ') };
}

const tooMany = (most: number): CommandError =>
  new CommandError(EXIT.usage, `there are more than ${most} names: nothing was written`, 'Put a part of it.');
