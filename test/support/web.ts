/** The web app in a real browser: a page of it, and beside its own a client of its link, for what no screen shows. */
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import type { Browser, BrowserContext, Page } from 'puppeteer-core';
import type { CallName, Calls, TopicName, Topics } from '../../src/web/link/messages.js';
import { SOON_MS, until } from './events.js';

let linkCode: Promise<string> | undefined;

/** The link's client as a script that leaves one in `globalThis.probe`. */
const linkScript = (): Promise<string> =>
  (linkCode ??= build({
    stdin: {
      contents: `import { Link } from './client.js';
        const link = new Link();
        const last = {};
        globalThis.probe = { link, last };
        for (const topic of ['phase', 'info', 'bins', 'devices', 'uploads', 'importing', 'notices', 'enrolment', 'offer', 'shared'])
          link.watch(topic, null, (value) => { last[topic] = value; });
        link.watch('list', { offset: 0, limit: 200 }, (value) => { last.list = value; });`,
      resolveDir: fileURLToPath(new URL('../../src/web/link', import.meta.url)),
    },
    bundle: true,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    write: false,
    logLevel: 'silent',
  }).then(({ outputFiles }) => outputFiles[0]?.text ?? ''));

/** A tab with the app. */
export class App {
  /** What was thrown in the page, or refused by its policy. */
  readonly faults: string[] = [];

  private constructor(readonly page: Page) {
    // The browser's own bound is half of that of every other wait.
    page.setDefaultTimeout(SOON_MS);
    page.on('pageerror', (error) => this.faults.push(String(error)));
    page.on('console', (message) => {
      if (/Content Security Policy|Trusted/i.test(message.text())) this.faults.push(message.text());
    });
  }

  /** Opens the app in a new tab. */
  static async open(browser: Browser | BrowserContext, url: string): Promise<App> {
    const app = new App(await browser.newPage());
    await app.goto(url);
    return app;
  }

  /** Opens an address in this tab. */
  async goto(url: string): Promise<void> {
    await this.page.goto(url);
    await this.probe();
  }

  async reload(): Promise<void> {
    await this.page.reload();
    await this.probe();
  }

  private async probe(): Promise<void> {
    await this.page.evaluate(await linkScript());
  }

  /** Calls the engine, as the app itself does. A failure comes as data. */
  call<N extends CallName>(
    name: N,
    params: Parameters<Calls[N]>[0] | null = null,
  ): Promise<ReturnType<Calls[N]> | { readonly failed: string }> {
    return this.page.evaluate(
      async (called, given) => {
        const { link } = (
          globalThis as unknown as { probe: { link: { call: (...all: unknown[]) => Promise<unknown> } } }
        ).probe;
        try {
          return await link.call(called, given);
        } catch (error) {
          return { failed: (error as { problem: { code: string } }).problem.code };
        }
      },
      name,
      params,
    ) as Promise<ReturnType<Calls[N]>>;
  }

  /** The last value of a topic; undefined before the first. */
  value<N extends TopicName>(topic: N): Promise<Topics[N]['value'] | undefined> {
    return this.page.evaluate(
      (name) => (globalThis as unknown as { probe: { last: Record<string, never> } }).probe.last[name],
      topic,
    );
  }

  /** Waits until a topic has a value that fits, and gives it. */
  async shows<N extends TopicName>(
    topic: N,
    fits: (value: Topics[N]['value']) => boolean,
    maxMs = SOON_MS,
  ): Promise<Topics[N]['value']> {
    let value: Topics[N]['value'] | undefined;
    const what = (): string => `${topic}, now ${JSON.stringify(value)?.slice(0, 2_000) ?? 'unknown'}`;
    await until(what, async () => (value = await this.value(topic)) !== undefined && fits(value), maxMs);
    return value as Topics[N]['value'];
  }

  /** Claims a fresh server, past the screens. */
  async claim(name = 'Browser'): Promise<readonly string[]> {
    await this.shows('phase', ({ phase }) => phase === 'empty');
    await this.call('claim', { name, claimToken: null });
    const step = await this.shows('enrolment', ({ step }) => step === 'phrase');
    await this.call('enrolRetry');
    await this.ready();
    return step.step === 'phrase' ? step.words : [];
  }

  /** Says that the digits of a device that wants to join match. */
  async admit(): Promise<void> {
    const offer = await this.shows('offer', ({ step }) => step === 'compare');
    await this.call('offerAnswer', { same: true, digits: offer.step === 'compare' ? offer.digits : '' });
  }

  /** Waits until the device is open, connected and has everything. */
  async ready(): Promise<void> {
    await this.shows('info', (info) => info?.connection.state === 'connected' && info.complete === true);
  }
}
