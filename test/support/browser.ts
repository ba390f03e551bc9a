/** A real browser for tests, where this machine has one, and pages for it. */
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { build, type BuildResult, type Metafile } from 'esbuild';
import { launch, type Browser, type BrowserContext } from 'puppeteer-core';
import { openFor } from './loopback-server.js';
import { inLongRun } from './long.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { ofProcess } from './together.js';

const first = (...paths: readonly string[]): string | undefined =>
  paths.find((path) => path !== '' && existsSync(path));
const given = process.env['CHROMIUM'] ?? '';

/** Where a browser with windows of its own and a viewer of PDFs is; undefined: this machine has none. */
export const WHOLE_CHROMIUM = first(given, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome');

/**
 * Where the browser is; undefined: this machine has none. In the usual run it is the one without windows, which takes a
 * third less of the processor, in the long run the whole one.
 */
export const CHROMIUM = first(given, inLongRun('/usr/bin/chromium-headless-shell', ''), WHOLE_CHROMIUM ?? '');

/** A busy machine takes its time with a browser. */
const START_MAX_MS = 120_000;

/** What the README asks of a page that uses the client library. */
const POLICY = "script-src 'self' 'wasm-unsafe-eval'";

/** For the browser `sync.test` is this machine: a host that it does not trust without https, as it does `localhost`. */
const SWITCHES = ['--no-sandbox', '--disable-dev-shm-usage', '--host-resolver-rules=MAP sync.test 127.0.0.1'];

export async function startBrowser(t: WithTeardown, executablePath: string): Promise<Browser> {
  const userDataDir = await temporaryFolder(t);
  const browser = await launch({ executablePath, userDataDir, args: SWITCHES, timeout: START_MAX_MS });
  t.teardown(() => browser.close());
  return browser;
}

let shared: Promise<Browser> | undefined;

/**
 * What is as good as a browser of its own to a test: storage, service workers, locks and channels are of this context
 * alone. A process has one browser, the first one named, whose start takes up to three seconds of a processor.
 */
export async function freshContext(t: WithTeardown, executablePath = CHROMIUM): Promise<BrowserContext> {
  shared ??= startBrowser(ofProcess, executablePath ?? '');
  const context = await (await shared).createBrowserContext();
  t.teardown(() => context.close());
  return context;
}

/** A compiled file and all it imports, as one script for browsers. */
export async function bundled(file: URL): Promise<{ readonly code: string; readonly metafile: Metafile }> {
  const result: BuildResult<{ metafile: true; write: false }> = await build({
    entryPoints: [fileURLToPath(file)],
    bundle: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    metafile: true,
    write: false,
    logLevel: 'silent',
  });
  return { code: result.outputFiles[0]?.text ?? '', metafile: result.metafile };
}

/** Serves one page with one script, under the policy; resolves with its origin. */
export async function servePage(t: WithTeardown, code: string): Promise<string> {
  const server = createServer((request, response) => {
    const script = request.url === '/page.js';
    response.setHeader('content-type', script ? 'text/javascript' : 'text/html; charset=utf-8');
    response.setHeader('content-security-policy', POLICY);
    response.end(script ? code : '<!doctype html><title>test</title><script type="module" src="/page.js"></script>');
  });
  return `http://127.0.0.1:${await openFor(t, server)}`;
}

/** Runs in the page: opens every database as a newer version of the page would. */
export async function upgradeDatabases(): Promise<string[]> {
  const all = (await indexedDB.databases()).map(
    ({ name = '' }) =>
      new Promise<string>((resolve) => {
        const request = indexedDB.open(name, 2);
        request.onblocked = () => resolve('blocked');
        request.onerror = () => resolve(String(request.error));
        request.onsuccess = () => {
          request.result.close();
          resolve('upgraded');
        };
      }),
  );
  return Promise.all(all);
}
