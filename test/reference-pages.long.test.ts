/** Every page of the reference on a phone and on a wide screen, in both themes, checked by axe. */
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import t from 'tap';
import { REFERENCE_FOLDER } from '../src/root.js';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { faultsOnPhone, openSaved } from './support/pages.js';

t.setTimeout(900_000);

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const [, , only = ''] = process.argv;

t.test('REF-22: axe finds nothing on any page, and no page is wider than its screen', { skip }, async (t) => {
  const browser = await startBrowser(t, CHROMIUM ?? '');
  const names = readdirSync(join(REFERENCE_FOLDER, 'saved'))
    .filter((file) => file.endsWith('.html') && file.startsWith(only))
    .map((file) => file.slice(0, -'.html'.length));
  t.ok(names.length > 0);
  for (const name of names) {
    const page = await openSaved(browser, name);
    t.same(await faultsOnPhone(page), [], `${name} on a phone`);
    await page.evaluate(AXE);
    for (const [value, width] of [
      ['light', 360],
      ['dark', 1280],
    ] as const) {
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]);
      await page.setViewport({ width, height: 800 });
      const found = await page.evaluate(async () => {
        const { axe } = globalThis as unknown as { axe: { run(): Promise<{ violations: Violation[] }> } };
        const { violations } = await axe.run();
        return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
      });
      t.same(found, [], `${name}, ${value}, ${width} px`);
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      t.ok(wider <= 0, `${name}, ${width} px: nothing is wider than the page`);
    }
    await page.close();
  }
});
