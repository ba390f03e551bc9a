/** Pages of the reference in a browser, and what is measured there. */
import { pathToFileURL } from 'node:url';
import { join } from 'node:path';
import type { Browser, Page } from 'puppeteer-core';
import { REFERENCE_FOLDER } from '../../src/root.js';

/** Opens a page of the copy on the disk. */
export async function openSaved(browser: Pick<Browser, 'newPage'>, name: string): Promise<Page> {
  const page = await browser.newPage();
  await page.setViewport({ width: 360, height: 740 });
  await page.goto(pathToFileURL(join(REFERENCE_FOLDER, 'saved', `${name}.html`)).href);
  return page;
}

/** Faults of a page on a phone, as sentences. */
export const faultsOnPhone = (page: Page): Promise<string[]> =>
  page.evaluate(() => {
    const faults: string[] = [];
    const root = document.documentElement;
    if (root.scrollWidth > innerWidth) faults.push(`${root.scrollWidth} px wide`);
    for (const element of document.querySelectorAll<HTMLElement>(
      'button, header a, summary, input, .neighbours a, #pages a',
    )) {
      const { height, width } = element.getBoundingClientRect();
      if (width > 0 && height > 0 && height < 44 && !element.matches('.skip'))
        faults.push(`${height} px high: ${element.textContent}`);
    }
    for (const element of document.querySelectorAll<HTMLElement>('article p, article li, article td')) {
      if (element.matches('.az li')) continue;
      if (parseFloat(getComputedStyle(element).fontSize) < 16)
        faults.push(`small: ${element.textContent.slice(0, 40)}`);
    }
    // A word of letters and digits on more than one line is broken.
    const texts = document.createTreeWalker(document.querySelector('main') ?? root, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
      if (node.parentElement?.closest('pre, details:not([open])')) continue;
      for (const { 0: word, index } of (node.textContent ?? '').matchAll(/[\p{L}\p{N}]+/gu)) {
        if (word.length < 8) continue;
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        const tops = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        if (tops.size > 1) faults.push(`broken: ${word}`);
      }
    }
    return faults;
  });
