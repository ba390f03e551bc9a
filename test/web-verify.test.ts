/** `verify-web`, and the check of `doctor`: a server that serves another page than the release's is detected. */
import { readFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { join } from 'node:path';
import t from 'tap';
import { webFileName, type WebRelease } from '../src/protocol/web-app.js';
import { SERVER_VERSION, WEB_FOLDER } from '../src/root.js';
import { readRelease } from '../src/cli/web-check.js';
import { EXIT } from '../src/terminal/terminal.js';
import { machine, type Machine } from './support/cli.js';
import { wiretap, world } from './support/client-world.js';
import { examined, HttpProxy } from './support/doctor.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';

const release = JSON.parse(await readFile(join(WEB_FOLDER, 'assets.json'), 'utf8')) as WebRelease;
const engine = release.assets.find(({ path }) => path.startsWith('/web/engine.'))?.path ?? '';

type Found = { readonly path: string; readonly found: string };
type Answering = (request: IncomingMessage, response: ServerResponse) => boolean;

/** With the plain `fetch`: the wire tap reads every reply as JSON, and here some are files. */
const atHome = (t: WithTeardown): Promise<Machine> => {
  const tap = wiretap();
  return machine(t, { ...tap, platform: { ...tap.platform, fetch } });
};

/** Answers one path in place of the server. */
const instead =
  (path: string, send: (response: ServerResponse) => void): Answering =>
  (request, response) => {
    if (request.url !== path) return false;
    send(response);
    return true;
  };

const policyOf = async (url: string): Promise<string> =>
  (await fetch(url, { headers: { accept: 'text/html' } })).headers.get('content-security-policy') ?? '';

t.test('WEB-15: verify-web reports for a server of this release that all files are the same', async (t) => {
  const { port } = await runServer(t);
  const home = await atHome(t);
  const words = await home.call(['verify-web', `http://127.0.0.1:${port}`]);
  t.equal(words.code, EXIT.ok, words.notes);
  t.match(words.out, /^FOUND +FILE\nsame +\/\n/);
  t.match(words.out, new RegExp(`The same\\..* ${release.assets.length} files`));
  const json = await home.json(['verify-web', `127.0.0.1:${port}`]);
  t.match(json, { version: SERVER_VERSION, same: true, reached: [] });
  t.same(
    (json['files'] as Found[]).map(({ path, found }) => `${found} ${path}`),
    release.assets.map(({ path }) => `same ${path}`),
  );
});

t.test('WEB-16: one altered byte, another policy, a missing file and a foreign script are named', async (t) => {
  const { port } = await runServer(t);
  const proxy = await HttpProxy.before(t, port);
  const home = await atHome(t);
  const found = async (answer: Answering, headers: Record<string, string> = {}): Promise<string[]> => {
    proxy.answer = answer;
    proxy.headers = () => headers;
    const { code, data } = await home.call(['--json', 'verify-web', proxy.url]);
    t.equal(code, EXIT.untrusted);
    t.equal(data[0]?.['same'], false);
    return (data[0]?.['files'] as Found[])
      .filter((file) => file.found !== 'same')
      .map((file) => `${file.found} ${file.path}`);
  };
  const script = await readFile(join(WEB_FOLDER, webFileName({ path: engine })));
  const altered = Buffer.from(script);
  altered[1_000] = (altered[1_000] ?? 0) ^ 1;
  const policy = { 'content-security-policy': await policyOf(proxy.url) };
  const sends = (bytes: Buffer | string, more = {}) =>
    instead(engine, (response) => void response.writeHead(200, { ...policy, ...more }).end(bytes));
  t.same(await found(sends(altered)), [`differs ${engine}`]);
  t.same(await found(sends(script.subarray(0, -1))), [`differs ${engine}`], 'a file that is cut short');
  t.same(
    await found(sends(Buffer.concat([script, Buffer.alloc(1 << 20)]))),
    [`differs ${engine}`],
    'a file that is longer',
  );
  t.same(await found(sends(script, { 'content-security-policy': '' })), [`policy ${engine}`]);
  t.same(await found(instead(engine, (response) => void response.writeHead(404).end())), [`missing ${engine}`]);
  const index = await readFile(join(WEB_FOLDER, 'index.html'), 'utf8');
  const page = index.replace(
    '</head>',
    '<script src="/web/more.js"></script><img src="https://evil.example/x"></head>',
  );
  const html = { 'content-type': 'text/html' };
  t.same(await found(instead('/', (response) => void response.writeHead(200, { ...policy, ...html }).end(page))), [
    'differs /',
    'extra /web/more.js',
    'extra https://evil.example/x',
  ]);
  const lax = { 'content-security-policy': `${policy['content-security-policy']}; script-src-attr 'unsafe-inline'` };
  const ruled = release.assets.map(({ path }) => path).filter((path) => path === '/' || path.endsWith('.js'));
  t.same(
    await found(() => false, lax),
    ruled.map((path) => `policy ${path}`),
    'the policy of page and scripts',
  );
  const words = await home.call(['verify-web', proxy.url]);
  t.match(words.out, new RegExp(`OTHER POLICY +/sw\\.js[^]*Not the same\\. ${ruled.length} files`));
});

t.test('WEB-17: an origin that the page may send to is reported, and is no difference', async (t) => {
  const { port } = await runServer(t);
  const proxy = await HttpProxy.before(t, port);
  const policy = (await policyOf(proxy.url)).replace(/connect-src [^;]*/, '$& https://files.example');
  proxy.headers = () => ({ 'content-security-policy': policy });
  const home = await atHome(t);
  t.match(await home.json(['verify-web', proxy.url]), { same: true, reached: ['https://files.example'] });
  t.match((await home.call(['verify-web', proxy.url])).out, /may also send to https:\/\/files\.example/);
});

t.test('CLI-14: neither the version nor the policy of a server can control the terminal', async (t) => {
  const { port } = await runServer(t);
  const proxy = await HttpProxy.before(t, port);
  const home = await atHome(t);
  // Headers are read as Latin-1, which has a second set of control characters: U+009B begins a sequence as ESC [ does.
  const policy = (await policyOf(proxy.url)).replace(/connect-src [^;]*/, '$& https://x\u009b2J\u009b31m');
  proxy.headers = () => ({ 'content-security-policy': policy });
  t.match(await home.json(['verify-web', proxy.url]), { same: true, reached: ['https://x\u009b2J\u009b31m'] });
  t.match((await home.call(['verify-web', proxy.url])).out, /may also send to https:\/\/x<U\+009B>2J<U\+009B>31m:/);
  const health = { ok: true, version: '9\u001b[2J\nThe same.' };
  proxy.answer = instead('/api/health', (response) => void response.end(JSON.stringify(health)));
  const { notes } = await home.call(['verify-web', proxy.url], { env: { SERVICE_DEBUG: '1' } });
  t.match(notes, /version 9<U\+001B>\[2J The same\., and/, 'on one line');
  t.match(notes, /\n {4}at /, 'with its origin');
  t.notMatch(notes, /[^\n\P{Cc}]/u);
});

t.test('WEB-18: no web app, another version and a bad answer are each reported as such', async (t) => {
  const home = await atHome(t);
  const refused = async (url: string): Promise<unknown[]> => {
    const { code, error } = await home.call(['--json', 'verify-web', url]);
    return [code, error?.['code']];
  };
  const off = await runServer(t, { env: { WEB_APP: 'off' } });
  t.same(await refused(`http://127.0.0.1:${off.port}`), [EXIT.notFound, 'no_web_app']);
  const proxy = await HttpProxy.before(t, off.port);
  proxy.answer = instead('/api/health', (response) => void response.end('{"ok":true,"version":"9.0.0"}'));
  t.same(await refused(proxy.url), [EXIT.failure, 'other_version']);
  proxy.answer = instead('/api/health', (response) => void response.end('<p>It works!</p>'));
  t.same(await refused(proxy.url), [EXIT.failure, 'bad_answer']);
  t.same(await refused('http://127.0.0.1:1'), [EXIT.unavailable, 'network']);
  t.same(await refused('not an address'), [EXIT.usage, 'usage']);
  t.same((await home.call(['--json', 'verify-web'])).error?.['code'], 'no_device');
  t.equal(
    await readRelease(await temporaryFolder(t)),
    undefined,
    'without a build there is no release to compare with',
  );
});

t.test('WEB-19 WEB-18: doctor compares the web app in one row; none, or another version, is no fault', async (t) => {
  const made = await world(t);
  const proxy = await HttpProxy.before(t, made.server.port);
  const identity = { ...made.first.identity(), serverUrl: proxy.url };
  const row = async (): Promise<unknown> => (await examined(t, { identity })).of('web');
  t.match(await row(), [{ status: 'ok', what: /serves is version/ }]);
  proxy.answer = instead(engine, (response) => void response.end('alert(1)'));
  t.match(await row(), [{ status: 'problem', what: new RegExp(`1 of .*${engine}`), do: /verify-web/ }]);
  proxy.answer = instead(
    '/',
    (response) => void response.writeHead(200, { 'content-type': 'text/plain' }).end('hello'),
  );
  t.match(await row(), [{ status: 'ok', what: /no web app/ }]);
  proxy.answer = instead('/api/health', (response) => void response.end('{"ok":true,"version":"9.0.0"}'));
  t.match(await row(), [{ status: 'ok', what: /9\.0\.0.*not compared/ }]);
});
