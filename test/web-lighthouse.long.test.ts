/** The web app's scores by Lighthouse, which npx installs when this runs: it has hundreds of packages of its own. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { CHROMIUM } from './support/browser.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

t.setTimeout(600_000);

const VERSION = '13.5.0';
/** Of 100. */
const LEAST = 95;
const CATEGORIES = ['performance', 'accessibility', 'best-practices'];

const skip = CHROMIUM === undefined && 'this machine has no Chromium';

t.test(
  'WEB-80: Lighthouse gives the app at least 95 for performance, accessibility and best practices',
  { skip },
  async (t) => {
    const server = await runServer(t);
    const folder = await temporaryFolder(t);
    const report = join(folder, 'report.json');
    const args = [
      ...['--yes', `lighthouse@${VERSION}`, `http://localhost:${server.port}/`, '--quiet', '--output=json'],
      ...[`--output-path=${report}`, `--only-categories=${CATEGORIES.join(',')}`, '--preset=desktop'],
      '--chrome-flags=--headless=new --no-sandbox --disable-dev-shm-usage',
    ];
    await promisify(execFile)('npx', args, { cwd: folder, env: { ...process.env, CHROME_PATH: CHROMIUM ?? '' } });
    const { categories } = JSON.parse(await readFile(report, 'utf8')) as {
      categories: Record<string, { score: number }>;
    };
    for (const name of CATEGORIES) {
      const score = Math.round((categories[name]?.score ?? 0) * 100);
      t.ok(score >= LEAST, `${name}: ${score}`);
    }
  },
);
