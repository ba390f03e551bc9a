/**
 * Where the project's own files lie, in a checkout and in an installed package, which is a part of a built checkout.
 * Compiled code runs from build/, so paths are found from package.json upwards.
 */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

function findRoot(): string {
  const start = dirname(fileURLToPath(import.meta.url));
  let folder = start;
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) throw new Error(`no package.json in ${start} or any folder above it`);
    folder = parent;
  }
  return folder;
}

/** Absolute path of the folder that holds package.json. */
export const PROJECT_ROOT = findRoot();

/** Whether this is the checkout of the project, with `npm run`, or an installed package. */
export const IN_CHECKOUT = existsSync(join(PROJECT_ROOT, 'tsconfig.json'));

/** Absolute path of the migrations. */
export const SQL_FOLDER = join(PROJECT_ROOT, 'sql');

/** Absolute path of the reference's Markdown and style sheet. */
export const DOCS_FOLDER = join(PROJECT_ROOT, 'src', 'docs');

/** Absolute path of the reference as it was built (src/docs/write-site.ts): the folders `served` and `saved`. */
export const REFERENCE_FOLDER = join(PROJECT_ROOT, 'build', 'docs');

/** Absolute path of the web app as it is served (src/web/build.ts); absent where nothing was built. */
export const WEB_FOLDER = join(PROJECT_ROOT, 'build', 'web');

/** A text in a JSON file of ours; `otherwise` where there is none. */
function textIn(file: string, field: string, otherwise: string): string {
  const text = (JSON.parse(readFileSync(file, 'utf8')) as Readonly<Record<string, unknown>>)[field];
  return typeof text === 'string' && text !== '' ? text : otherwise;
}

/** The version of everything here, as programs print it and `/health` and `/me` report it. */
export const SERVER_VERSION = textIn(join(PROJECT_ROOT, 'package.json'), 'version', '0.0.0');

/** Where the build notes the commit that it was made of (src/packages/commit.ts). */
export const COMMIT_FILE = join(PROJECT_ROOT, 'build', 'commit.json');

const COMMIT = existsSync(COMMIT_FILE) ? textIn(COMMIT_FILE, 'commit', 'unknown') : 'unknown';

/** What runs here: `--version` prints it, `/health` reports it. */
export const RELEASE = { version: SERVER_VERSION, commit: COMMIT } as const;
