/** Every screen of the web app, in both themes and two widths, checked by axe. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import t from 'tap';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { still, visitScreens } from './support/screens.js';
import { runServer } from './support/server.js';

t.setTimeout(600_000);

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

const skip = CHROMIUM === undefined && 'this machine has no Chromium';

t.test(
  'WEB-60: axe finds no violation on any screen, and none is wider than its window, at 320 and 1280 px',
  { skip },
  async (t) => {
    const server = await runServer(t);
    const browser = await startBrowser(t, CHROMIUM ?? '');
    const urls = { url: `http://localhost:${server.port}/`, insecure: `http://sync.test:${server.port}/` };
    await visitScreens(browser, urls, async (name, page) => {
      await page.evaluate(AXE);
      for (const value of ['light', 'dark']) {
        for (const width of [320, 1280]) {
          await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]);
          await page.setViewport({ width, height: 800 });
          await still(page);
          const violations = await page.evaluate(async () => {
            const { axe } = globalThis as unknown as { axe: { run(): Promise<{ violations: Violation[] }> } };
            return (await axe.run()).violations;
          });
          const found = violations.flatMap(({ id, nodes }) =>
            nodes.map((node) => [id, node.html, node.failureSummary]),
          );
          t.same(found, [], `${name}, ${value}, ${width} px`);
          const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          t.ok(wider <= 0, `${name}, ${width} px: nothing is wider than the page`);
        }
      }
    });
  },
);
