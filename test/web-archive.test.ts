/** The web app on real servers, in a real browser: refused changes, the archive written and read, recovery by words. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { fingerprintOfMaster } from '../src/crypto/fingerprint.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { phraseSeed } from '../src/crypto/master-key.js';
import { ArchiveWriter, readArchive } from '../src/sdk/archive/archive.js';
import { ulid } from '../src/sdk/ulid.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { TcpProxy } from './support/tcp-proxy.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const newId = (): string => ulid(Date.now(), randomBytes);
const FILE_BYTES = 700_000;
const OTHER_WORDS = `${'abandon '.repeat(11)}about`;

/** What a page gives to `evaluate`: its own link. */
interface Probe {
  readonly probe: {
    readonly link: {
      call(name: string, params: unknown): Promise<unknown>;
      read(stream: string, params: unknown): AsyncIterable<Uint8Array>;
    };
  };
}

/** The archive that this tab makes, as base64. */
const archived = (app: App, phrase: string): Promise<string> =>
  app.page.evaluate(async (words) => {
    const { link } = (globalThis as unknown as Probe).probe;
    let all = '';
    for await (const bytes of link.read('archive', { phrase: words }))
      for (const byte of bytes) all += String.fromCharCode(byte);
    return btoa(all);
  }, phrase);

const imported = (app: App, archive: string, phrase: string): Promise<unknown> =>
  app.page.evaluate(
    async (base64, words) => {
      const { link } = (globalThis as unknown as Probe).probe;
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      try {
        return await link.call('importArchive', { file: new File([bytes], 'vault.archive'), phrase: words });
      } catch (error) {
        return { failed: (error as { problem: { code: string } }).problem.code };
      }
    },
    archive,
    phrase,
  );

/** Reads a file item in the page: the number of its bytes, and whether each is the one that was sent. */
const contentOf = (app: App, id: string): Promise<{ readonly bytes: number; readonly same: boolean }> =>
  app.page.evaluate(async (item) => {
    const { link } = (globalThis as unknown as Probe).probe;
    const read = { bytes: 0, same: true };
    for await (const part of link.read('content', { id: item, from: 0 }))
      for (const byte of part) read.same &&= byte === read.bytes++ % 251;
    return read;
  }, id);

const upload = (app: App, binId: string): Promise<unknown> =>
  app.page.evaluate(
    (bin, length) => {
      const bytes = Uint8Array.from({ length }, (_, at) => at % 251);
      const { link } = (globalThis as unknown as Probe).probe;
      return link.call('upload', { binId: bin, files: [new File([bytes], 'film.bin')] });
    },
    binId,
    FILE_BYTES,
  );

/** A fresh server, and a tab with its app in a browser context of its own. */
async function scene(t: WithTeardown) {
  const server = await runServer(t);
  const proxy = await TcpProxy.before(t, `http://127.0.0.1:${server.port}`);
  const url = proxy.through(`http://127.0.0.1:${server.port}/`);
  const open = async (): Promise<App> => App.open(await freshContext(t), url);
  return { proxy, open, app: await open() };
}

t.test(
  'WEB-82: a refused change is kept with its content until it is written again or dismissed, also after a reload',
  { skip },
  async (t) => {
    const { app, proxy } = await scene(t);
    await app.claim();
    const nowhere = newId();
    const put = (words: string) =>
      app.call('put', { id: newId(), binId: nowhere, type: 'text', payload: { text: words } });
    proxy.refuse(true);
    proxy.cut();
    await app.shows('info', (info) => info?.connection.state !== 'connected');
    for (const words of ['the first', 'the second']) t.match(await put(words), { id: /^\w{26}$/ });
    proxy.refuse(false);
    await app.call('reconnect');
    const refused = await app.shows('notices', (notices) => notices.filter(({ canResend }) => canResend).length === 2);
    t.same(refused.map(({ title }) => title).sort(), ['the first', 'the second'], 'each is reported separately');
    t.match(refused[0], { kind: 'rejected', problem: { code: 'bin_not_found' } });
    await app.reload();
    const again = await app.shows('notices', (notices) => notices.length === 2);
    t.same(again.map(({ title }) => title).sort(), ['the first', 'the second'], 'both are kept after a reload');
    const [first, second] = again;
    t.same(await app.call('resend', { noticeId: first?.id ?? '', how: 'copy' }), { failed: 'bin_not_found' });
    t.equal((await app.value('notices'))?.length, 2, 'a change that is refused again is kept');
    await app.call('dismiss', first?.id ?? '');
    await app.reload();
    t.match(await app.shows('notices', (notices) => notices.length === 1), [{ title: second?.title ?? '' }]);
    t.same(app.faults, []);
  },
);

t.test(
  'WEB-83: a browser’s archive is read by another one, with files, bins and names; a second time adds nothing',
  { skip },
  async (t) => {
    const { app } = await scene(t);
    const phrase = (await app.claim()).join(' ');
    const bin = await app.call('binCreate', { name: 'Reise', emoji: '' });
    const binId = 'id' in bin ? bin.id : '';
    await app.call('put', { id: newId(), binId, type: 'text', payload: { text: 'Ticket' } });
    await upload(app, binId);
    await app.shows('list', ({ items }) => items.length === 2 && items.every(({ pending }) => !pending));
    const archive = await archived(app, phrase);

    const bytes = Buffer.from(archive, 'base64');
    const source = {
      at: 0,
      read(length: number) {
        return Promise.resolve(new Uint8Array(bytes.subarray(this.at, (this.at += length))));
      },
    };
    const records = new Map<string, number>();
    const slugs: string[] = [];
    for await (const record of readArchive(nodeSodium, await phraseSeed(nodeSodium, phrase), source)) {
      records.set(record.record, (records.get(record.record) ?? 0) + 1);
      if (record.record === 'bin') slugs.push(record.slug);
    }
    t.equal(records.get('item'), 2);
    const bins = await app.value('bins');
    t.same(slugs.sort(), bins?.map(({ id }) => (id === 'inbox' ? 'inbox' : id.toLowerCase())).sort());

    const other = await scene(t);
    await other.app.claim('Other');
    t.same(await imported(other.app, archive, 'abandon '.repeat(12).trim()), { failed: 'bad_words' });
    t.same(await imported(other.app, archive, OTHER_WORDS), { failed: 'wrong_words' });
    t.match(await imported(other.app, archive, phrase), { written: 2, bins: 1, same: 0, refused: 0 });
    const { items } = await other.app.shows('list', ({ items }) => items.length === 2);
    t.ok((await other.app.shows('bins', (all) => all.length === 2)).some(({ name }) => name === 'Reise'));
    const film = items.find(({ type }) => type === 'file');
    t.equal(film?.title, 'film.bin');
    t.same(await contentOf(other.app, film?.id ?? ''), { bytes: FILE_BYTES, same: true });
    t.match(await imported(other.app, archive, phrase), { written: 0, bins: 0, same: 2, refused: 0 });
    t.same([...app.faults, ...other.app.faults], []);
  },
);

t.test('WEB-85: an import shows its progress, can be stopped, and resumes where it stopped', { skip }, async (t) => {
  const { app } = await scene(t);
  const phrase = (await app.claim()).join(' ');
  const bytes: Uint8Array[] = [];
  const sink = (part: Uint8Array): Promise<void> => Promise.resolve(void bytes.push(part));
  const writer = await ArchiveWriter.create(nodeSodium, await phraseSeed(nodeSodium, phrase), sink);
  const masterFingerprint = fingerprintOfMaster(nodeSodium, nodeSodium.random(32));
  await writer.add({ record: 'manifest', format: 1, createdAt: Date.now(), tenantId: newId(), masterFingerprint });
  const ITEMS = 1_500;
  for (let n = 0; n < ITEMS; n++) {
    const item = { record: 'item', id: newId(), bin: 'inbox', type: 'text', ts: Date.now() } as const;
    await writer.add({ ...item, payload: { text: `number ${n}` }, blob: false, content: null });
  }
  await writer.finish();
  const archive = Buffer.concat(bytes).toString('base64');
  const first = imported(app, archive, phrase);
  const seen = await app.shows('importing', (importing) => (importing?.done ?? 0) > 100);
  t.equal(seen?.total, ITEMS);
  t.match(await imported(app, archive, phrase), { failed: 'too_many' }, 'a second import at the same time is refused');
  await app.call('importStop');
  const stopped = (await first) as { readonly written: number; readonly stopped: boolean };
  t.ok(stopped.stopped && stopped.written > 100 && stopped.written < ITEMS, String(stopped.written));
  await app.shows('importing', (importing) => importing === null);
  const again = imported(app, archive, phrase);
  await app.shows('importing', (importing) => (importing?.done ?? 0) > stopped.written);
  await app.call('importStop');
  t.match(await again, { same: stopped.written, stopped: true });
  t.same(app.faults, []);
});

t.test('WEB-84: twelve words make a browser a device that reads the existing content', { skip }, async (t) => {
  const { app, open } = await scene(t);
  const words = await app.claim();
  await app.call('put', { id: newId(), binId: 'inbox', type: 'text', payload: { text: 'before' } });
  await upload(app, 'inbox');
  await app.shows('list', ({ items }) => items.length === 2 && items.every(({ pending }) => !pending));
  const recovered = await open();
  await recovered.shows('phase', ({ phase }) => phase === 'empty');
  for (const [phrase, code] of [
    ['abandon '.repeat(12).trim(), 'bad_words'],
    [OTHER_WORDS, 'forbidden'],
  ] as const) {
    await recovered.call('recover', { name: 'Recovered', phrase });
    t.match(await recovered.shows('enrolment', ({ step }) => step === 'failed'), { problem: { code } });
    await recovered.call('enrolCancel');
  }
  await recovered.call('recover', { name: 'Recovered', phrase: words.join(' ') });
  await recovered.ready();
  const { items } = await recovered.shows('list', ({ items }) => items.length === 2);
  t.same(items.map(({ title }) => title).sort(), ['before', 'film.bin']);
  const film = items.find(({ type }) => type === 'file');
  t.same(await contentOf(recovered, film?.id ?? ''), { bytes: FILE_BYTES, same: true });
  t.same(recovered.faults, []);
});
