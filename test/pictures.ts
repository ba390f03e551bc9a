/**
 * `npm run pictures`: pictures of the web app's screens in both themes and two widths. Those that README and the
 * reference show go into `src/docs/pictures`; all go into the folder that is given (`npm run pictures -- FOLDER`).
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../src/root.js';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { startTestServer } from './support/postgres.js';
import { still, visitScreens } from './support/screens.js';
import { runServer } from './support/server.js';

const SHOWN: ReadonlySet<string> = new Set(['list-light-1280', 'list-dark-360', 'compare-light-360']);
const SIZES = [
  { width: 1280, height: 800 },
  { width: 360, height: 740 },
] as const;

if (CHROMIUM === undefined) throw new Error('this machine has no Chromium');
const ends: (() => unknown)[] = [];
const scope = { teardown: (end: () => unknown) => void ends.unshift(end) };
const [, , folder] = process.argv;
const shown = join(PROJECT_ROOT, 'src', 'docs', 'pictures');
for (const path of [shown, folder ?? shown]) await mkdir(path, { recursive: true });
try {
  const postgres = await startTestServer((message) => console.error(message));
  scope.teardown(() => postgres.stop());
  process.env['TEST_DATABASE_ADMIN_URL'] = postgres.adminUrl;
  const server = await runServer(scope);
  const browser = await startBrowser(scope, CHROMIUM);
  const urls = { url: `http://localhost:${server.port}/`, insecure: `http://sync.test:${server.port}/` };
  await visitScreens(browser, urls, async (screen, page) => {
    for (const value of ['light', 'dark']) {
      for (const size of SIZES) {
        await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]);
        await page.setViewport(size);
        await still(page);
        const name = `${screen}-${value}-${size.width}`;
        if (SHOWN.has(name)) await page.screenshot({ path: join(shown, `${name}.png`) });
        if (folder !== undefined) await page.screenshot({ path: join(folder, `${name}.png`) });
      }
    }
  });
} finally {
  for (const end of ends) await end();
}
process.exit();
