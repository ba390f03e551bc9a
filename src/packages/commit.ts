/**
 * Writes the commit of the build to `build/commit.json`; part of `npm run build`. From the checkout's git, else from
 * the variable SERVICE_COMMIT (the image is built without git), else `unknown`.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { COMMIT_FILE, PROJECT_ROOT } from '../root.js';

const DIGITS = 12;

/** HEAD, and whether files differ from it. A `.git` in a parent folder belongs to another project. */
function commitOfGit(): string | undefined {
  if (!existsSync(join(PROJECT_ROOT, '.git'))) return undefined;
  const git = ['describe', '--always', '--dirty', `--abbrev=${DIGITS}`, '--exclude=*'];
  try {
    return execFileSync('git', git, { cwd: PROJECT_ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
  } catch (error) {
    // No git, another user's checkout, or no commit yet: not a failure of the build.
    process.stderr.write(`commit: ${error instanceof Error ? error.message.trim() : String(error)}\n`);
    return undefined;
  }
}

function commitOfVariable(): string | undefined {
  const given = process.env['SERVICE_COMMIT'];
  if (given === undefined || given === '') return undefined;
  const [, digits, dirty] = /^([0-9a-f]{12})[0-9a-f]{0,52}(-dirty)?$/.exec(given) ?? [];
  if (digits === undefined) throw new Error('SERVICE_COMMIT: must be a commit, 12 hex digits or more');
  return `${digits}${dirty ?? ''}`;
}

const commit = commitOfGit() ?? commitOfVariable() ?? 'unknown';
mkdirSync(dirname(COMMIT_FILE), { recursive: true });
writeFileSync(COMMIT_FILE, `${JSON.stringify({ commit })}\n`);
