/**
 * The reference as served under `/docs`: every Markdown file of a folder as a page, generated pages, and
 * machine-readable documents. Files are read once at start.
 */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { escaped, render, titleOf } from './markdown.js';

/** The order of the navigation. Other pages follow, by name. */
const ORDER = [
  'index',
  'what-is-promised',
  'web',
  'command-line',
  'doctor',
  'archive',
  'agent-tools',
  'sdk',
  'http',
  'endpoints-a',
  'endpoints-b',
  'sockets',
  'limits',
  'errors',
  'blobs',
  'pairing',
  'content-types',
  'cryptography',
  'vectors',
  'attacks',
  'conformance',
  'configuration',
  'operating',
  'dependencies',
  'releases',
];

/** A page or document under `/docs`. */
export interface SitePage {
  /** Content type. */
  readonly type: string;
  readonly text: string;
  /** The text as UTF-8, shared by all responses. */
  readonly bytes: Buffer;
  /** Entity tag with its quotes: a hash of the text. */
  readonly etag: string;
}

/**
 * All pages by their names in the path; `''` is `/docs` itself. Each is generated on first request, so that a start is
 * fast.
 */
export class Site {
  private readonly made = new Map<string, SitePage>();

  constructor(private readonly pages: ReadonlyMap<string, () => SitePage>) {}

  page(name: string): SitePage | undefined {
    const make = this.pages.get(name);
    const page = this.made.get(name) ?? make?.();
    if (page !== undefined) this.made.set(name, page);
    return page;
  }

  /** The names of all pages, documents and the style sheet. */
  get names(): readonly string[] {
    return [...this.pages.keys()];
  }
}

/** A page without the HTML around it. */
export interface Source {
  /** The file's name without its extension. */
  readonly name: string;
  readonly title: string;
  /** Its text; generated pages are made on request. */
  readonly markdown: () => string;
}

interface SiteOptions {
  /** Folder with the `.md` files and `style.css`. */
  readonly folder: string;
  /** Generated pages. */
  readonly made: readonly Source[];
  /** The server's version, which every page shows. */
  readonly version: string;
  /** Documents served as JSON, by their file names; made on request. */
  readonly documents: Readonly<Record<string, () => object>>;
}

function compare(one: Source, other: Source): number {
  const places = [one, other].map(({ name }) => ORDER.indexOf(name)).map((at) => (at < 0 ? ORDER.length : at));
  const [first = 0, second = 0] = places;
  return first - second || (one.name < other.name ? -1 : 1);
}

/**
 * The pages of a folder and the generated ones, in the order of the navigation. Throws for a page without a heading.
 */
export async function readSources(folder: string, made: readonly Source[]): Promise<Source[]> {
  const files = (await readdir(folder)).filter((file) => /^[a-z0-9-]+\.md$/.test(file));
  const sources = await Promise.all(
    files.map(async (file): Promise<Source> => {
      const markdown = await readFile(join(folder, file), 'utf8');
      const title = titleOf(markdown);
      if (title === undefined) throw new Error(`${join(folder, file)}: a page begins with a heading`);
      return { name: file.slice(0, -'.md'.length), title, markdown: () => markdown };
    }),
  );
  return [...sources, ...made].sort(compare);
}

const pathOf = (name: string): string => (name === 'index' ? '/docs' : `/docs/${name}`);

function framed(source: Source, all: readonly Source[], version: string): string {
  const links = all.map(({ name, title }) => {
    const current = name === source.name ? ' aria-current="page"' : '';
    return `<li><a href="${pathOf(name)}"${current}>${escaped(title)}</a></li>`;
  });
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(source.title)}</title>
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
<div class="frame">
<nav aria-label="Pages"><ul>
${links.join('\n')}
</ul></nav>
<main>
${render(source.markdown()).html}
<footer>Version ${escaped(version)}</footer>
</main>
</div>
</body>
</html>
`;
}

function pageOf(type: string, text: string): SitePage {
  const hash = createHash('sha256').update(type).update('\0').update(text).digest('base64url');
  return { type, text, bytes: Buffer.from(text), etag: `"${hash.slice(0, 27)}"` };
}

/** Reads every file. Throws if the folder or a file cannot be read. */
export async function openSite({ folder, made, version, documents }: SiteOptions): Promise<Site> {
  const sources = await readSources(folder, made);
  const style = await readFile(join(folder, 'style.css'), 'utf8');
  const pages = new Map<string, () => SitePage>();
  for (const source of sources) {
    const make = (): SitePage => pageOf('text/html; charset=utf-8', framed(source, sources, version));
    pages.set(source.name === 'index' ? '' : source.name, make);
  }
  for (const [name, document] of Object.entries(documents)) {
    pages.set(name, () => pageOf('application/json', `${JSON.stringify(document(), null, 1)}\n`));
  }
  pages.set('style.css', () => pageOf('text/css; charset=utf-8', style));
  return new Site(pages);
}
