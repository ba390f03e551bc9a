/** The compiler of `npm run build`, for files of a test. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { PROJECT_ROOT } from '../../src/root.js';

const COMPILER = join(PROJECT_ROOT, 'node_modules/@typescript/native/bin/tsc');
const run = promisify(execFile);

/** Options for a module that uses declarations of the build. */
export const FOR_MODULES = {
  target: 'es2023',
  lib: ['es2023', 'dom', 'dom.iterable'],
  module: 'nodenext',
  strict: true,
  skipLibCheck: true,
  verbatimModuleSyntax: true,
} as const;

/**
 * Compiles these files, all in one folder, and answers what the compiler reports: nothing, or a line for each fault.
 * `options`: `compilerOptions` of a tsconfig.json, which is written into the folder.
 */
export async function compile(files: readonly string[], options: Readonly<Record<string, unknown>>): Promise<string[]> {
  const config = join(dirname(files[0] ?? ''), 'tsconfig.json');
  await writeFile(config, JSON.stringify({ compilerOptions: options, files }));
  try {
    await run(process.execPath, [COMPILER, '--project', config, '--pretty', 'false']);
    return [];
  } catch (error) {
    const { stdout } = error as { readonly stdout?: string };
    if (stdout === undefined || stdout === '') throw error;
    return stdout.trim().split('\n');
  }
}
