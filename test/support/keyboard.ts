/** A person at the keyboard of the web app: everything by keys, and the focus is looked at after each step. */
import type { KeyInput, Page } from 'puppeteer-core';
import { SOON_MS } from './events.js';

/** Tabs until something is reached; a page has fewer places than that. */
const TABS_MAX = 120;

/** What has the focus, as it is called. */
const focused = (page: Page): Promise<string> =>
  page.evaluate(() => {
    const element = document.activeElement as
      | (HTMLElement & { readonly labels?: NodeListOf<HTMLElement> | null })
      | null;
    if (element === null || element === document.body) return '';
    return (element.ariaLabel ?? element.labels?.[0]?.innerText ?? element.innerText).trim();
  });

export class Keyboard {
  constructor(private readonly page: Page) {}

  /** Waits until the page says it. */
  async says(words: string): Promise<void> {
    await this.waits((wanted) => document.body.innerText.includes(wanted), words, `“${words}” on the page`);
    await this.stays(words);
  }

  /** The focus is on something that is seen. */
  async stays(after: string): Promise<void> {
    const seen = (): boolean => {
      const element = document.activeElement;
      if (element === null || element === document.body) return false;
      const { width, height } = element.getBoundingClientRect();
      return width > 0 && height > 0;
    };
    await this.waits(seen, '', `a focus after ${after}`);
  }

  /** Waits until what has the focus fits. */
  async on(selector: string): Promise<void> {
    await this.waits(
      (wanted) => document.activeElement?.matches(wanted) === true,
      selector,
      `the focus on ${selector}`,
    );
  }

  private async waits(fits: (given: string) => boolean, given: string, what: string): Promise<void> {
    try {
      await this.page.waitForFunction(fits, { timeout: SOON_MS }, given);
    } catch (error) {
      const has = await this.page.evaluate(() => document.activeElement?.outerHTML.slice(0, 300));
      const text = await this.page.evaluate(() => document.body.innerText.slice(0, 1_000));
      throw new Error(`no ${what}; focused: ${has}\n${text}`, { cause: error });
    }
  }

  /** Presses keys, one after the other. */
  async press(...keys: readonly KeyInput[]): Promise<void> {
    for (const key of keys) {
      await this.page.keyboard.press(key);
      await this.stays(key);
    }
  }

  /** Presses a key while another is held. */
  async chord(held: KeyInput, key: KeyInput): Promise<void> {
    await this.page.keyboard.down(held);
    await this.page.keyboard.press(key);
    await this.page.keyboard.up(held);
    await this.stays(`${held} ${key}`);
  }

  async type(text: string): Promise<void> {
    await this.page.keyboard.type(text);
  }

  /** Goes to what is called so, by Tab alone. */
  async to(name: string): Promise<void> {
    const met: string[] = [];
    for (let tabs = 0; tabs < TABS_MAX; tabs++) {
      const found = await focused(this.page);
      if (found === name) return;
      met.push(found);
      await this.page.keyboard.press('Tab');
    }
    throw new Error(`Tab does not reach “${name}”: ${[...new Set(met)].join(' | ')}`);
  }

  /** Goes to what is called so, and presses Enter. */
  async choose(name: string): Promise<void> {
    await this.to(name);
    await this.press('Enter');
  }
}
