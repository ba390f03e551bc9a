/** The reference: its pages, how they are served, and whether they agree with the code. */
import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { copyFile, readFile, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { CONFIG_VARIABLES } from '../src/server/config/config.js';
import { openDocs } from '../src/server/app/built.js';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { CLOSE } from '../src/protocol/close-codes.js';
import { CATALOGUE, codeOf, type ErrorName } from '../src/protocol/errors.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { ENDPOINT_ALIASES } from '../src/docs/endpoints-pages.js';
import { addressOf, ARCHIVE, render, SAVED, SERVED, slugOf, titleOf } from '../src/docs/markdown.js';
import { INDEX_PAGE, makeSite, readSources } from '../src/docs/site.js';
import { madePages } from '../src/docs/write-site.js';
import { PROJECT_ROOT, DOCS_FOLDER, REFERENCE_FOLDER } from '../src/root.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';
import { SHAPES } from './support/wire.js';

const COMMON = { version: '1.2.3', documents: {}, script: '', places: SERVED };
const made = madePages(ALL_ROWS);
const sources = await readSources(DOCS_FOLDER, made);
const site = await makeSite({ ...COMMON, folder: DOCS_FOLDER, made, documents: { 'openapi.json': { a: 1 } } });
const pageOf = (name: string): string => String(site.get(name) ?? '');
const textOf = (name: string): string => sources.find((source) => source.name === name)?.markdown ?? '';

t.test('REF-01: pages generated from the code have their own titles and are linked from their parents', (t) => {
  const codes = Object.keys(CATALOGUE).flatMap((name) => SHAPES.map((shape) => codeOf(name as ErrorName, shape)));
  const named = made.map(({ name }) => name);
  t.same(
    named.filter((name) => name.startsWith('error')).sort(),
    ['errors', ...new Set(codes.map((code) => `error-${code}`))].sort(),
  );
  t.ok(
    named.includes('endpoints') && named.includes('endpoints-items'),
    'the endpoints have an overview and a page per subject',
  );
  for (const { name, title, parent = 'index', markdown } of made) {
    t.equal(titleOf(markdown), title);
    t.match(pageOf(name), `<title>${title}</title>`);
    t.match(pageOf(parent), `<a href="/docs/${name}`, `${name} is linked from its parent`);
  }
  t.end();
});

t.test('REF-02 REF-19: every code has its place at /docs/errors and a page for clients and operators', (t) => {
  const html = pageOf('errors');
  const { anchors } = render(textOf('errors'));
  for (const name of Object.keys(CATALOGUE) as ErrorName[]) {
    for (const shape of SHAPES) {
      const code = codeOf(name, shape);
      t.ok(html.includes(`id="${code}"`) && anchors.has(code), code);
      const own = textOf(`error-${code}`);
      t.match(own, CATALOGUE[name].when, code);
      for (const part of ['What a client does', 'What an operator does'])
        t.match(own, new RegExp(`###? ${part}\n\n.{20,}`), `${code}: ${part}`);
    }
  }
  t.end();
});

/** Links of a page, outside of code. */
function linksOf(markdown: string): string[] {
  const prose = markdown.replace(/```[\s\S]*?```/g, '').replace(/`[^`\n]*`/g, '');
  return [...prose.matchAll(/\]\(([^)\s]+)\)/g)].map(([, href]) => href ?? '');
}

t.test('REF-03: every link in the Markdown leads to an existing page, heading or file', (t) => {
  const anchors = new Map(sources.map(({ name, markdown }) => [name, render(markdown).anchors]));
  for (const alias of ENDPOINT_ALIASES) anchors.set(alias, anchors.get('endpoints') ?? new Set());
  anchors.set(INDEX_PAGE.name, new Set());
  const documents = new Set(['openapi-a', 'openapi-b', 'openapi', 'frames-a', 'frames-b']);
  for (const { name, markdown } of sources) {
    for (const href of linksOf(markdown)) {
      if (/^https?:/.test(href)) continue;
      const [file = '', anchor] = href.split('#');
      if (file === ARCHIVE) continue;
      if (/^[a-z-]+\.json$/.test(file)) {
        t.ok(documents.has(file.slice(0, -'.json'.length)), `${name}: ${href}`);
        continue;
      }
      if (file !== '' && !/^(\.\/)?[a-z0-9_-]+\.md$/.test(file)) {
        t.ok(existsSync(resolve(DOCS_FOLDER, file)), `${name}: ${href} is in the repository`);
        continue;
      }
      const target = file === '' ? name : file.replace(/^\.\//, '').slice(0, -'.md'.length);
      const found = anchors.get(target);
      t.ok(found !== undefined, `${name}: ${href}`);
      if (anchor !== undefined) t.ok(found?.has(anchor), `${name}: ${href}`);
    }
  }
  t.end();
});

t.test('REF-03: every link in the built pages, served or saved, leads to an existing page or file', async (t) => {
  for (const [places, folder] of [
    [SERVED, 'served'],
    [SAVED, 'saved'],
  ] as const) {
    const names = readdirSync(join(REFERENCE_FOLDER, folder)).filter((name) => name.endsWith('.html'));
    t.ok(names.length > 80, `${names.length} pages`);
    const pages = new Map<string, string>();
    for (const name of names)
      pages.set(name.slice(0, -'.html'.length), await readFile(join(REFERENCE_FOLDER, folder, name), 'utf8'));
    const addresses = new Map([...pages.keys()].map((name) => [places.page(name), name]));
    const lost: string[] = [];
    for (const [name, html] of pages) {
      for (const [, address = ''] of html.matchAll(/ (?:href|src|data-index)="([^"]*)"/g)) {
        const [path = '', anchor] = address.split('#');
        const target = path === '' ? name : addresses.get(path);
        const file = path.slice(places.file('').length);
        if (target === undefined) {
          const leaves = /^https?:/.test(address) || (folder === 'saved' && address.startsWith('/'));
          if (!leaves && !existsSync(join(REFERENCE_FOLDER, folder, file))) lost.push(`${name}: ${address}`);
        } else if (anchor !== undefined && !pages.get(target)?.includes(`id="${anchor}"`))
          lost.push(`${name}: ${address}`);
      }
    }
    t.same(lost, [], folder);
  }
});

t.test('REF-13: the start page links every page, and the READMEs name the pages, scripts and commands', (t) => {
  const index = sources.find(({ name }) => name === 'index')?.markdown ?? '';
  for (const { name, parent } of sources)
    if (name !== 'index' && parent === undefined) t.match(index, `](${name}.md)`, name);
  const file = (path: string): string => readFileSync(join(PROJECT_ROOT, path), 'utf8');
  const readme = file('README.md');
  for (const page of ['blobs', 'archive', 'agent-tools', 'command-line', 'configuration', 'operating', 'billing'])
    t.match(readme, `](src/docs/${page}.md)`, page);
  const { scripts } = JSON.parse(file('package.json')) as { readonly scripts: Readonly<Record<string, string>> };
  for (const name of Object.keys(scripts))
    t.match(readme, new RegExp(`npm (run )?(--silent )?${name}\\b`), `npm run ${name}`);
  for (const command of ['check-storage', 'upgrade-postgres', 'backup', 'verify']) {
    t.match(readme, command, command);
    t.match(file('deploy/README.md'), `service-admin ${command}`, command);
  }
  for (const name of ['sdk', 'cli', 'mcp', 'server']) t.match(file(`src/${name}/README.md`), 'npm run pack', name);
  t.end();
});

t.test('REF-13: messages and comments name pages of the reference that exist', (t) => {
  // Without those below another page, whose titles are names of subjects.
  const titles = new Set(sources.flatMap(({ title, parent }) => (parent === undefined ? [title] : [])));
  const folder = join(PROJECT_ROOT, 'src');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => /\.tsx?$/.test(name));
  const cited = files.flatMap((file) =>
    [...readFileSync(join(folder, file), 'utf8').matchAll(/\breference, ([A-Z][\w ]*)/g)].map(
      ([, title = '']) => [title.trim(), file] as const,
    ),
  );
  t.ok(cited.length > 100);
  t.same(
    cited.filter(([title]) => !titles.has(title)),
    [],
  );
  t.end();
});

t.test('REF-04: a Markdown file put into the folder becomes a page, listed under its heading', async (t) => {
  const folder = await temporaryFolder(t);
  await copyFile(join(DOCS_FOLDER, 'style.css'), join(folder, 'style.css'));
  const pages = { index: 'Start', zebra: 'Stripes `and` more', errors: 'Errors', aardvark: 'Ants' };
  for (const [name, title] of Object.entries(pages)) {
    await writeFile(join(folder, `${name}.md`), `Some words\n\n# ${title}\n\n## Part\n`);
  }
  const own = await makeSite({ ...COMMON, folder, made: [] });
  const start = /<nav id="pages"[\s\S]*?<\/nav>/.exec(String(own.get('index')))?.[0] ?? '';
  const listed = [...start.matchAll(/<li><a href="([^"]+)"[^>]*>([^<]*)</g)].map(([, href, title]) => [href, title]);
  t.same(listed, [
    ['/docs', 'Start'],
    ['/docs/errors', 'Errors'],
    ['/docs/aardvark', 'Ants'],
    ['/docs/zebra', 'Stripes and more'],
    ['/docs/index-a-z', 'Index A–Z'],
  ]);
  t.match(own.get('zebra'), 'aria-current="page">Stripes');
  await writeFile(join(folder, 'untitled.md'), 'no heading');
  await t.rejects(makeSite({ ...COMMON, folder, made: [] }), /untitled\.md: a page begins with a heading/);
});

t.test('REF-05: pages have no markup of their own and one script, which is a file', (t) => {
  const evil =
    '# <script>x</script>\n\n<script>y</script>\n\n[a](javascript:z) [b](other.md#c) <b>c</b> ![i](http://h/i.png)\n';
  const { html } = render(evil);
  t.notMatch(html, /<script|javascript:|<img|<b>/);
  t.match(html, '<a href="/docs/other#c">b</a>');
  t.equal(
    render('![a](pictures/list-light-1280.png)').html.includes('<img src="/docs/list-light-1280.png" alt="a"'),
    true,
  );
  t.equal(slugOf('GET /api/items/{id}: "what"?'), 'get-apiitemsid-what');
  t.equal(addressOf('../../test/vectors/README.md'), undefined);
  t.same([...render('# A\n\n## b\n\n## b\n').anchors], ['a', 'b', 'b-1']);
  for (const { name } of sources) {
    const scripts = pageOf(name).match(/<script[^>]*>/g) ?? [];
    t.same([scripts.length, / on\w+=|style="|javascript:/.test(pageOf(name))], [1, false], name);
    t.match(scripts[0], / src="\/docs\/search\.js" /, 'the script is a file');
  }
  t.end();
});

t.test('REF-22: no text outside code blocks has 45 characters without a place to break the line', (t) => {
  const long: string[] = [];
  for (const { name } of sources) {
    const [, body = ''] = pageOf(name).split('<article');
    // A block of code scrolls.
    const text = body.replace(/<pre[\s\S]*?<\/pre>/g, ' ').replace(/<[^>]*>/g, ' ');
    const signs = text.replace(/&\w+;/g, '?');
    long.push(...(signs.match(/[^\s]{45,}/g) ?? []).map((word) => `${name}: ${word}`));
  }
  t.same(long, []);
  t.end();
});

t.test('REF-05: pages are served with policy, entity tag and content type; unknown paths are 404', async (t) => {
  const { wire } = await runServer(t);
  const index = await wire.get('//docs');
  t.equal(index.status, 200);
  t.equal(index.headers['content-type'], 'text/html; charset=utf-8');
  t.equal(index.headers['x-content-type-options'], 'nosniff');
  t.equal(index.headers['cache-control'], 'no-cache');
  t.equal(
    index.headers['content-security-policy'],
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  );
  const etag = String(index.headers.etag);
  t.match(etag, /^"[\w-]{20,}"$/);
  for (const tags of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
    const again = await wire.get('//docs', { headers: { 'if-none-match': tags } });
    t.same([again.status, again.raw, again.headers.etag], [304, '', etag], tags);
  }
  t.equal((await wire.get('//docs', { headers: { 'if-none-match': '"other"' } })).status, 200);
  const head = await wire.ask('HEAD', '//docs/errors');
  const whole = await wire.get('//docs/errors');
  t.same([head.status, head.raw, head.headers.etag], [200, '', whole.headers.etag]);
  t.equal(head.headers['content-length'], String(Buffer.byteLength(whole.raw)));
  t.equal((await wire.get('//docs/style.css')).headers['content-type'], 'text/css; charset=utf-8');
  t.equal((await wire.get('//docs/openapi.json')).at('openapi'), '3.1.0');
  t.equal(
    (await wire.get('//docs/endpoints-a')).raw,
    (await wire.get('//docs/endpoints')).raw,
    'a former address leads to its replacement',
  );
  for (const coding of ['br', 'gzip']) {
    const packed = await wire.get('//docs/errors', { headers: { 'accept-encoding': coding } });
    t.equal(packed.headers['content-encoding'], coding, 'pages are compressed');
    t.ok(Number(packed.headers['content-length']) < Buffer.byteLength(whole.raw) / 2);
  }
  const script = await wire.get('//docs/search-index.js', { headers: { 'accept-encoding': 'br' } });
  t.same(
    [script.headers['content-encoding'], script.headers['content-type']],
    ['br', 'text/javascript; charset=utf-8'],
  );
  t.match(script.headers.etag, /^"[\w-]{20,}\.br"$/);
  t.equal((await wire.get('//docs/reference.tar.gz')).headers['content-type'], 'application/gzip');
  t.equal((await wire.get('//docs/errors.html.br')).status, 404);
  t.equal((await wire.get('//docs/list-light-1280.png')).headers['content-type'], 'image/png');
  for (const path of ['//docs/nothing', '//docs/..%2fserver.ts', '//docs/a/b', '//docs/errors.md']) {
    t.equal((await wire.get(path)).outcome, '404 not_found', path);
  }
  t.equal((await wire.get('//docs/index')).raw, index.raw, '/docs/index is the start page too');
  t.equal((await wire.post('//docs', {})).outcome, '405 method_not_allowed');
});

t.test('REF-05: without a built reference there are no pages; a file in place of the folder fails', async (t) => {
  t.equal(await openDocs(join(await temporaryFolder(t), 'nothing')), undefined);
  await t.rejects(openDocs(join(PROJECT_ROOT, 'package.json')), { code: 'ENOTDIR' });
});

t.test('REF-21: the archive contains the pages that open from a disk', async (t) => {
  const folder = await temporaryFolder(t);
  await promisify(execFile)('tar', ['-xzf', join(REFERENCE_FOLDER, 'served', ARCHIVE), '-C', folder]);
  const names = readdirSync(join(folder, 'reference')).sort();
  t.same(names, readdirSync(join(REFERENCE_FOLDER, 'saved')).sort());
  for (const name of ['index.html', 'search-index.js', 'list-light-1280.png'])
    t.same(
      await readFile(join(folder, 'reference', name)),
      await readFile(join(REFERENCE_FOLDER, 'saved', name)),
      name,
    );
});

t.test('REF-05: pages are served for any host, also for one without a tenant', async (t) => {
  const { wire } = await runServer(t, { resolveTenant: () => undefined });
  t.equal((await wire.get('/me')).status, 404, 'the host has no tenant');
  t.equal((await wire.get('//docs/errors', { headers: { host: 'apex.example' } })).status, 200);
});

/** Body rows of the Markdown tables with the given first header, cells trimmed. */
function tables(markdown: string, header: string): string[][] {
  const rows = (lines: readonly string[]): string[][] =>
    lines.map((line) =>
      line
        .split(/(?<!\\)\|/)
        .slice(1, -1)
        .map((part) => part.trim().replaceAll('\\|', '|')),
    );
  const lines = markdown.split('\n');
  return lines.flatMap((line, at) => {
    if (!line.startsWith(`| ${header} |`)) return [];
    const end = lines.findIndex((later, index) => index > at && !later.startsWith('|'));
    return rows(lines.slice(at + 2, end < 0 ? undefined : end));
  });
}

const code = (text: string): string => /^`([^`]*)`$/.exec(text)?.[1] ?? text;

t.test('REF-11: every variable is described once, with its default and the values it accepts', (t) => {
  const rows = tables(textOf('configuration'), 'Variable');
  t.same(rows.map(([name]) => code(name ?? '')).sort(), CONFIG_VARIABLES.map(({ name }) => name).sort());
  for (const { name, takes, fallback, parse } of CONFIG_VARIABLES) {
    const [, written, taken] = rows.find(([first]) => code(first ?? '') === name) ?? [];
    t.equal(taken, takes, `${name}: the values it accepts`);
    // The written default, parsed as the variable is parsed, is the default.
    const value = written === 'unset' ? fallback : parse(code(written ?? ''));
    t.same(value, fallback, `${name}: default ${written}`);
  }
  t.end();
});

t.test('REF-11: the table in the README agrees with the page on configuration', (t) => {
  const readme = readFileSync(join(PROJECT_ROOT, 'README.md'), 'utf8');
  const rows = tables(textOf('configuration'), 'Variable');
  const inReadme = tables(readme, 'Variable').flatMap(([names, defaults]) => {
    const values = (defaults ?? '').split(', ').map(code);
    return (names ?? '').split(', ').map((name, at) => [code(name), values[at]] as const);
  });
  t.ok(inReadme.length > 10);
  for (const [name, value] of inReadme) {
    const written = rows.find(([first]) => code(first ?? '') === name)?.[1];
    t.not(written, undefined, `${name} is a variable`);
    // Where the README has words ("generated", "loopback, private") the page has the exact value.
    if (
      value !== undefined &&
      /^[0-9a-z./]+$/.test(value) &&
      !['unset', 'none', 'generated', 'loopback'].includes(value)
    ) {
      t.equal(value, code(written ?? ''), name);
    }
  }
  t.match(readme, 'src/docs/index.md', 'the README links to the reference');
  t.end();
});

t.test('REF-23: both guides begin with steps; the operator’s fill in what the compose file requires', async (t) => {
  t.match(textOf('web'), /^# .*\n\n1\. .*\n2\. .*\n3\. /);
  const [, commands = ''] = /\n\n((?: {4}.*\n)+)/.exec(textOf('operating')) ?? [];
  const folder = await temporaryFolder(t);
  await copyFile(join(PROJECT_ROOT, 'deploy/.env.example'), join(folder, '.env.example'));
  const here = commands.split('\n').filter((line) => /^ {4}(cp|sed) /.test(line));
  t.equal(here.length, 2);
  await promisify(execFile)('bash', ['-ec', here.join('\n')], { cwd: folder });
  const env = await readFile(join(folder, '.env'), 'utf8');
  for (const name of ['TOKEN_SECRET', 'POSTGRES_PASSWORD'])
    t.match(env, new RegExp(`^${name}=[0-9a-f]{64}$`, 'm'), name);
  t.match(env, /^BOOTSTRAP_TOKEN=[0-9a-f]{32}$/m);
  t.match(env, /^DOMAIN=sync\.example\.com$/m);
});

t.test('REF-12: the pages name every content type, close code and vector file', (t) => {
  t.same(
    tables(textOf('content-types'), 'Type')
      .map(([type]) => code(type ?? ''))
      .sort(),
    [...CONTENT_TYPES].sort(),
  );
  const closes = tables(textOf('sockets'), 'Code').map(([number]) => Number(code(number ?? '')));
  t.same([...new Set(closes)].sort(), Object.values(CLOSE).sort());
  const files = readdirSync(join(PROJECT_ROOT, 'test/vectors')).filter((file) => file.endsWith('.json'));
  t.same(
    tables(textOf('vectors'), 'File')
      .map(([file]) => code(file ?? ''))
      .sort(),
    files.sort(),
  );
  t.equal(dirname(DOCS_FOLDER), join(PROJECT_ROOT, 'src'));
  t.end();
});
