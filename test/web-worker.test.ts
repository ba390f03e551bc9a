/** The service worker in a real browser: the app without a network, files as streams, and what other apps share. */
import { readdir, readFile } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { TargetType, type BrowserContext, type Page } from 'puppeteer-core';
import t from 'tap';
import type { ItemRow } from '../src/web/link/messages.js';
import { contentHeaders, disposition, shownAs, spanOf } from '../src/web/worker/content.js';
import { bundled, freshContext, WHOLE_CHROMIUM } from './support/browser.js';
import { until } from './support/events.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';
import type { WorkerPage } from './support/web-worker-page.js';

t.setTimeout(600_000);

const skip = WHOLE_CHROMIUM === undefined && 'this machine has no Chromium';

/** The service worker of a version, as the build makes it. */
async function workerOf(version: string): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('../src/web/worker/main.js', import.meta.url))],
    bundle: true,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    write: false,
    define: {
      __SHELL__: JSON.stringify(['/', `/web/page.${version}.js`, '/manifest.webmanifest']),
      __VERSION__: JSON.stringify(version),
    },
  });
  return outputFiles[0]?.text ?? '';
}

const script = bundled(new URL('./support/web-worker-page.js', import.meta.url));

/** A server of the app, a browser, and a page in it that the service worker controls. */
async function scene(t: WithTeardown) {
  const { code } = await script;
  const at = { version: 'one', index: 'one', away: false };
  const asked: string[] = [];
  const files: Record<string, (response: ServerResponse, accept: string) => Promise<void> | void> = {
    '/': (response, accept) => {
      response.setHeader('vary', 'accept');
      response.setHeader('content-type', accept.includes('text/html') ? 'text/html' : 'text/plain');
      response.end(
        accept.includes('text/html')
          ? `<!doctype html><title>${at.index}</title><script type="module" src="/web/page.${at.index}.js"></script><body>`
          : 'a few lines of text',
      );
    },
    '/sw.js': async (response) => {
      response.setHeader('content-type', 'text/javascript');
      response.end(await workerOf(at.version));
    },
    '/manifest.webmanifest': (response) => void response.end('{}'),
  };
  const server = createServer((request, response) => {
    const path = (request.url ?? '').replace(/\?.*/, '');
    asked.push(`${request.method} ${path}`);
    // Silent: no browser can distinguish this from a slow network.
    if (at.away) return;
    response.setHeader('cache-control', path.startsWith('/web/') ? 'max-age=31536000, immutable' : 'no-cache');
    if (/^\/web\/page\.\w+\.js$/.test(path)) response.setHeader('content-type', 'text/javascript').end(code);
    else if (files[path] === undefined) response.writeHead(404).end('the server');
    else void files[path](response, request.headers.accept ?? '');
  });
  const origin = `http://127.0.0.1:${await openFor(t, server)}`;
  const browser = await freshContext(t, WHOLE_CHROMIUM);
  const open = async (path = '/'): Promise<Page> => {
    const page = await browser.newPage();
    await page.goto(`${origin}${path}`);
    await page.waitForFunction('globalThis.page !== undefined');
    return page;
  };
  const page = await open();
  await call(page)('register');
  return { at, asked, origin, browser, open, page, server };
}

/** Calls one of the page's functions. */
const call =
  (page: Page) =>
  async <K extends Exclude<keyof WorkerPage, 'state'>>(
    name: K,
    ...args: Parameters<WorkerPage[K]>
  ): Promise<Awaited<ReturnType<WorkerPage[K]>>> =>
    (await page.evaluate(
      (called, given) =>
        (globalThis as unknown as { page: Record<string, (...all: unknown[]) => unknown> }).page[called]?.(...given),
      name,
      args,
    )) as Awaited<ReturnType<WorkerPage[K]>>;

const stateOf = (page: Page): Promise<WorkerPage['state']> =>
  page.evaluate(() => (globalThis as unknown as { page: WorkerPage }).page.state);

t.test('WEB-42: a range is read as RFC 9110 says, and an invalid one means the whole file', (t) => {
  const cases: readonly [string | null, ReturnType<typeof spanOf>][] = [
    [null, undefined],
    ['bytes=0-', { from: 0, to: 100 }],
    ['bytes=0-0', { from: 0, to: 1 }],
    ['bytes=10-19', { from: 10, to: 20 }],
    ['bytes=90-200', { from: 90, to: 100 }],
    ['bytes=-5', { from: 95, to: 100 }],
    ['bytes=-500', { from: 0, to: 100 }],
    ['bytes=-0', null],
    ['bytes=100-', null],
    ['bytes=99-', { from: 99, to: 100 }],
    ['bytes=5-4', undefined],
    ['bytes=-', undefined],
    ['bytes=0-1,5-6', undefined],
    ['items=0-1', undefined],
    ['bytes=99999999999999999999-', undefined],
  ];
  for (const [range, span] of cases) t.same(spanOf(range, 100), span, String(range));
  t.equal(spanOf('bytes=0-0', null), undefined, 'a file of unknown size has no parts');
  t.equal(spanOf('bytes=0-', 0), null);
  t.end();
});

t.test('WEB-43: a name is sent in both forms, without characters that disguise it', (t) => {
  t.equal(
    disposition('attachment', 'Kätzchen "1"\r\n.png'),
    `attachment; filename="K_tzchen _1_.png"; filename*=UTF-8''K%C3%A4tzchen%20%221%22.png`,
  );
  t.equal(
    disposition('inline', "it's (1)*!.txt"),
    `inline; filename="it's (1)*!.txt"; filename*=UTF-8''it%27s%20%281%29%2a%21.txt`,
  );
  t.equal(disposition('inline', '../a\\b/c'), `inline; filename=".._a_b_c"; filename*=UTF-8''.._a_b_c`);
  t.equal(
    disposition('inline', 'photo\u202e\u061c\u200bgnp.exe'),
    `inline; filename="photognp.exe"; filename*=UTF-8''photognp.exe`,
  );
  for (const none of ['', '  ', '\n', '\ud800']) t.match(disposition('inline', none), /filename="file"/);
  t.ok(disposition('inline', '😀'.repeat(5_000)).length < 5_000);
  t.end();
});

t.test('WEB-44: only types that run nothing are shown in the page', (t) => {
  for (const mime of [
    'image/png',
    'IMAGE/JPEG',
    'image/avif',
    'audio/ogg; codecs=opus',
    'video/x-matroska',
    'application/pdf',
    'text/plain',
  ]) {
    t.ok(shownAs(mime), mime);
    t.match(contentHeaders({ mime, name: 'a', download: false }), {
      'content-disposition': /^inline/,
      'content-security-policy': mime === 'application/pdf' ? /^default-src 'none'; frame-anc/ : /sandbox/,
    });
  }
  const never = [
    'text/html',
    'image/svg+xml',
    'application/xhtml+xml',
    'text/xml',
    'application/javascript',
    'text/css',
  ];
  for (const mime of [
    ...never,
    '',
    'video/',
    'video/mp4\r\nx: y',
    'multipart/mixed',
    'image/pngx',
    'text/html, image/png',
  ]) {
    t.equal(shownAs(mime), null, mime);
    const headers = contentHeaders({ mime, name: 'a', download: false });
    t.match(headers, { 'content-type': 'application/octet-stream', 'content-disposition': /^attachment/ });
    t.match(headers['content-security-policy'], /sandbox/);
  }
  t.end();
});

t.test('the service worker', { skip }, async (t) => {
  const world = await scene(t);
  const { page, at, asked } = world;
  await page.evaluate(() => (globalThis as unknown as { page: WorkerPage }).page.serve());

  await t.test('WEB-42: content is served whole or in parts', async (t) => {
    const whole = await call(page)('read', 'PICTVRE');
    t.match(whole, { status: 200, length: 300_000, first: 0, sound: true });
    t.match(whole.headers, {
      'content-length': '300000',
      'accept-ranges': 'bytes',
      'content-type': 'image/png',
      'x-content-type-options': 'nosniff',
      'cache-control': 'no-store',
      'cross-origin-resource-policy': 'same-origin',
      'content-security-policy': /^default-src 'none'; sandbox/,
    });
    const part = await call(page)('read', 'PICTVRE', '', { range: 'bytes=100000-199999' });
    t.match(part, { status: 206, length: 100_000, first: 100_000 % 251, sound: true });
    t.equal(part.headers['content-range'], 'bytes 100000-199999/300000');
    t.match(await call(page)('read', 'PICTVRE', '', { range: 'bytes=-10' }), {
      status: 206,
      length: 10,
      first: 299_990 % 251,
    });
    t.match(await call(page)('read', 'PICTVRE', '', { range: 'bytes=300000-' }), { status: 416 });
    const tag = whole.headers['etag'] ?? '';
    t.match(await call(page)('read', 'PICTVRE', '', { range: 'bytes=5-', 'if-range': tag }), {
      status: 206,
      length: 299_995,
    });
    t.match(await call(page)('read', 'PICTVRE', '', { range: 'bytes=5-', 'if-range': '"other"' }), {
      status: 200,
      length: 300_000,
    });
    t.match(await call(page)('read', 'EMPTY'), { status: 200, length: 0 });
    t.match(await call(page)('read', 'NOBODY'), { status: 404 });
    const { asked, open } = await stateOf(page);
    t.same(asked.slice(0, 3), [0, 100_000, 299_990], 'the engine reads from the requested offsets');
    t.equal(open, 0, 'every stream was ended');
  });

  await t.test('WEB-46: a failure before the first byte is a refusal, a later one breaks the stream', async (t) => {
    t.match(await call(page)('read', 'ABSENT'), { status: 502, text: /it was changed \(bad_ct\)/ });
    for (const name of ['BROKEN', 'SHORT', 'LONG'])
      t.match(await call(page)('read', name), { status: 200, length: null }, `${name}: never taken for complete`);
    t.match(await call(page)('read', 'SHORT', '', { range: 'bytes=0-99' }), { status: 206, length: 100 });
    t.equal((await stateOf(page)).open, 0);
  });

  await t.test('WEB-45: a stream that is no longer read is ended, and nothing is read ahead', async (t) => {
    const taken = await call(page)('begin', 'FILM', 500);
    t.ok(taken < 200, `${taken} chunks of 64 KB`);
    await until('the stream is ended', async () => (await stateOf(page)).open === 0);
    const before = (await stateOf(page)).asked.length;
    await call(page)('begin', 'HANGS', 200);
    t.equal((await stateOf(page)).asked.length, before + 1, 'another stream was begun, which hangs');
    await until('and is ended all the same', async () => (await stateOf(page)).open === 0);
  });

  await t.test('WEB-44: a hostile type is never shown', async (t) => {
    for (const name of ['PAGE', 'SVG']) {
      for (const query of ['', '?type=text/html', '?type=image/svg%2Bxml']) {
        const { headers } = await call(page)('read', name, query);
        t.match(headers, { 'content-disposition': /^attachment/, 'content-type': 'application/octet-stream' });
      }
      // As a picture it is text that no decoder accepts; in a frame its script does not run.
      for (const type of ['image/png', 'text/plain']) {
        const tab = await world.open();
        await tab.evaluate(
          (src) => {
            const frame = Object.assign(document.createElement('iframe'), { src });
            document.body.append(frame);
            return new Promise((resolve) => (frame.onload = resolve));
          },
          `/web/content/${await call(page)('idOf', name)}?type=${type}`,
        );
        t.equal(await tab.evaluate(() => 'hostile' in globalThis), false);
        await tab.close();
      }
    }
  });

  await t.test('WEB-43: a download has its name and is complete, or it fails', async (t) => {
    const got = await downloaded(t, world, `${await call(page)('idOf', 'PICTVRE')}?download=`);
    t.match(got, { state: 'completed', name: /^Kätzchen .1.\.png$/, size: 300_000 });
    const named = await downloaded(
      t,
      world,
      `${await call(page)('idOf', 'PAGE')}?download=${encodeURIComponent('näm€.html')}`,
    );
    t.match(named, { state: 'completed', name: 'näm€.html' });
    t.match(await downloaded(t, world, `${await call(page)('idOf', 'BROKEN')}?download=a.zip`), {
      state: 'canceled',
      files: [],
    });
  });

  await t.test('WEB-49: a PDF and a text are shown in a frame of the page', async (t) => {
    const tab = await world.open();
    const frameOf = async (name: string): Promise<string> => {
      const src = `/web/content/${await call(page)('idOf', name)}`;
      await tab.evaluate((src) => {
        const frame = Object.assign(document.createElement('iframe'), { src });
        document.body.append(frame);
        return new Promise((resolve) => (frame.onload = resolve));
      }, src);
      return src;
    };
    await frameOf('PDF');
    await until('the viewer', () => tab.frames().some((frame) => frame.url().startsWith('chrome-extension:')));
    const src = await frameOf('TEXT');
    // The frame has loaded before the browser's protocol reports its address.
    const frame = () => tab.frames().find((one) => one.url().endsWith(src));
    await until('the text', () => frame() !== undefined);
    t.equal(await frame()?.evaluate(() => document.body.textContent), 'hello');
    await tab.close();
  });

  await t.test('WEB-48: what is shared is kept in the browser, and never reaches the server', async (t) => {
    const tab = await world.open();
    await call(page)('listenForShare');
    await Promise.all([
      tab.waitForNavigation(),
      call(tab)('share', { title: 'A title', text: 'some words', url: 'https://example.org/' }, ['a.txt', 'b.txt']),
    ]);
    t.equal(tab.url(), `${world.origin}/#/shared`);
    t.equal(await call(page)('nextShare'), 1, 'the engine is notified');
    const [share] = await call(page)('shared');
    t.match(share, {
      ...{ title: 'A title', text: 'some words', url: 'https://example.org/' },
      files: [
        ['a.txt', 'text/plain', 'content of a.txt'],
        ['b.txt', 'text/plain', 'content of b.txt'],
      ],
    });
    t.ok(
      share?.ids.every((id) => /^[0-9A-HJKMNP-TV-Z]{26}$/.test(id)) && new Set(share.ids).size === 3,
      'title, text and files have ids of their own',
    );
    const again = async (fields: Record<string, string>, files: readonly string[]): Promise<string> => {
      await tab.waitForFunction('globalThis.page !== undefined');
      await Promise.all([tab.waitForNavigation(), call(tab)('share', fields, files)]);
      return tab.url().slice(world.origin.length);
    };
    t.equal(await again({}, []), '/#/shared?refused=empty');
    t.equal(await again({ text: 'x'.repeat(1_000_001) }, []), '/#/shared?refused=too_large');
    t.equal(
      await again(
        {},
        Array.from({ length: 101 }, (_, at) => `${at}.txt`),
      ),
      '/#/shared?refused=too_large',
    );
    for (let more = 2; more <= 50; more++) await again({ text: String(more) }, []);
    t.equal(await again({ text: 'one too many' }, []), '/#/shared?refused=full');
    t.equal((await call(page)('shared')).length, 50);
    t.equal(await call(page)('takeShares'), 0);
    t.equal(await again({ text: 'there is room again' }, []), '/#/shared');
    t.equal(await call(page)('takeShares'), 0);
    await tab.goto(`${world.origin.replace('127.0.0.1', 'localhost')}/`);
    await tab.waitForFunction('globalThis.page !== undefined');
    await Promise.all([
      tab.waitForNavigation(),
      call(tab)('share', { text: 'from a site' }, [], `${world.origin}/web/share`),
    ]);
    t.equal(tab.url(), `${world.origin}/#/shared?refused=foreign`);
    t.same(await call(page)('shared'), []);
    t.same(
      asked.filter((line) => line.startsWith('POST')),
      [],
      'no share has reached the server',
    );
    await tab.close();
  });

  await t.test('WEB-40: the app opens without a network, and nothing else comes from the cache', async (t) => {
    t.equal(await call(page)('fetched', '/api/me'), 'the server');
    t.equal(await call(page)('fetched', '/docs/'), 'the server');
    asked.length = 0;
    at.away = true;
    for (const path of ['/', '/?from=home', '/#/settings']) {
      const begun = Date.now();
      const tab = await world.open(path);
      t.ok(Date.now() - begun < 5_000, 'the app does not wait for the server');
      t.equal(await tab.title(), 'one');
      await tab.close();
    }
    at.away = false;
    // Ends the pending requests: until then the browser does not look for a newer service worker again.
    world.server.closeAllConnections();
    t.same(
      asked.filter((line) => line !== 'GET /sw.js'),
      [],
      'no file of the app was requested',
    );
    for (const path of ['/api/me', '/blobs/x', '/ws', '/docs/', '/web/share', '/web/old.js'])
      t.equal(await call(page)('fetched', path), 'the server', path);
  });

  await t.test('WEB-41: a newer version waits until a page takes over; mixed versions are not installed', async (t) => {
    Object.assign(at, { version: 'two' });
    t.equal(await call(page)('update'), 'redundant', 'a page and files of two versions are not mixed');
    const same = await world.open();
    t.equal(await same.title(), 'one');
    Object.assign(at, { index: 'two' });
    t.equal(await call(page)('update'), 'installed');
    await same.reload();
    t.equal(await same.title(), 'one', 'the newer version waits');
    await call(same)('takeOver');
    await same.reload();
    t.equal(await same.title(), 'two');
    t.same(
      (await call(same)('cached')).map((name) => name.replace(/^service-web-shell-/, '')),
      ['two'],
    );
  });
});

t.test('WEB-47: without an open device content is refused within seconds', { skip }, async (t) => {
  const { page, origin, browser } = await scene(t);
  const begun = Date.now();
  t.match(await call(page)('read', 'PICTVRE'), { status: 503, text: /No device is open/ }, 'no engine at all');
  t.ok(Date.now() - begun < 20_000);
  await page.evaluate(() => {
    const { page } = globalThis as unknown as { page: WorkerPage };
    page.state.phase = 'locked';
    page.serve();
  });
  const locked = Date.now();
  t.match(await call(page)('read', 'PICTVRE'), { status: 503 });
  t.ok(Date.now() - locked < 4_000, 'it is refused at once');
  await stopWorker(browser, origin);
  await page.evaluate(() => ((globalThis as unknown as { page: WorkerPage }).page.state.phase = 'open'));
  t.match(
    await call(page)('read', 'PICTVRE'),
    { status: 200, length: 300_000 },
    'a service worker that was ended starts anew',
  );
});

t.test('WEB-42 WEB-43: a file that a device put is served by its address, whole and in parts', { skip }, async (t) => {
  const server = await runServer(t);
  const browser = await freshContext(t, WHOLE_CHROMIUM);
  const app = await App.open(browser, `http://127.0.0.1:${server.port}/`);
  await app.claim();
  await app.page.evaluate(async () => {
    const { link } = (globalThis as unknown as { probe: { link: { call(...all: unknown[]): Promise<unknown> } } })
      .probe;
    const bytes = Uint8Array.from({ length: 700_000 }, (_, at) => at % 251);
    await link.call('upload', { binId: 'inbox', files: [new File([bytes], 'film.mp4', { type: 'video/mp4' })] });
  });
  const sent = ({ title, pending }: ItemRow): boolean => title === 'film.mp4' && !pending;
  const { items } = await app.shows('list', (list) => list.items.some(sent));
  const id = items.find(sent)?.id ?? '';
  await app.page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  await app.page.waitForFunction('navigator.serviceWorker.controller !== null');
  const read = (range: string) =>
    app.page.evaluate(
      async (path, range) => {
        const response = await fetch(path, range === '' ? {} : { headers: { range } });
        const bytes = new Uint8Array(await response.arrayBuffer());
        const first = bytes[0] ?? 0;
        const { status, headers } = response;
        const sound = bytes.every((byte, at) => byte === (first + at) % 251);
        return { status, type: headers.get('content-type'), length: bytes.length, first, sound };
      },
      `/web/content/${id}`,
      range,
    );
  t.match(await read(''), { status: 200, type: 'video/mp4', length: 700_000, first: 0, sound: true });
  t.match(await read('bytes=400000-'), { status: 206, length: 300_000, first: 400_000 % 251, sound: true });
  t.match(await read('bytes=699999-'), { status: 206, length: 1 });
  t.match(await read('bytes=700000-'), { status: 416 });
  t.same(app.faults, []);
});

/** Ends the service worker's process, as a browser does after a while. */
async function stopWorker(browser: BrowserContext, origin: string): Promise<void> {
  const target = await browser.waitForTarget(
    (one) => one.type() === TargetType.SERVICE_WORKER && one.url().startsWith(origin),
  );
  const worker = await target.worker();
  await worker?.close();
}

/** The result of a download: as the browser shows it, and on the disk. */
async function downloaded(
  t: WithTeardown,
  { browser, open }: Pick<Awaited<ReturnType<typeof scene>>, 'browser' | 'open'>,
  id: string,
) {
  const folder = await temporaryFolder(t);
  const session = await browser.browser().target().createCDPSession();
  const allowed = {
    behavior: 'allow',
    downloadPath: folder,
    eventsEnabled: true,
    browserContextId: browser.id,
  } as const;
  await session.send('Browser.setDownloadBehavior', allowed);
  const tab = await open();
  let name = '';
  session.on('Browser.downloadWillBegin', (event) => (name = event.suggestedFilename));
  const over = new Promise<string>((resolve) => {
    session.on('Browser.downloadProgress', ({ state }) => {
      if (state !== 'inProgress') resolve(state);
    });
  });
  await tab.evaluate((path) => {
    const link = Object.assign(document.createElement('a'), { href: `/web/content/${path}` });
    document.body.append(link);
    link.click();
  }, id);
  const state = await over;
  // An incomplete file has another extension.
  const files = (await readdir(folder)).filter((file) => !file.endsWith('.crdownload'));
  const size = files[0] === undefined ? null : (await readFile(join(folder, files[0]))).length;
  await tab.close();
  await session.detach();
  return { state, name, size, files };
}
