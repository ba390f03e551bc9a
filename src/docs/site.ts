/**
 * The reference as a site: every Markdown file of a folder as a page, generated pages, machine-readable documents,
 * pictures, a search and an index. Made by the build, for a server's `/docs` and for a folder on disk.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { escapeHtml } from '../protocol/sanitize.js';
import { breakable, render, titleOf, type Heading, type Places } from './markdown.js';
import { indexPageHtml, indexScript, sectionsOf, type IndexedPage } from './search-index.js';

/** The groups of the navigation and their pages. Other pages follow in the last one, by name. */
const GROUPS: readonly (readonly [title: string, names: readonly string[]])[] = [
  ['Begin', ['index', 'what-is-promised']],
  ['Use it', ['web', 'command-line', 'doctor', 'archive', 'importing', 'agent-tools']],
  ['Run it', ['operating', 'configuration', 'alerts', 'billing', 'dependencies', 'releases']],
  ['Build on it', ['sdk', 'endpoints', 'errors', 'http', 'sockets', 'blobs', 'pairing', 'content-types', 'limits']],
  ['Check it', ['cryptography', 'vectors', 'conformance', 'attacks']],
  ['More', []],
];
const ORDER = GROUPS.flatMap(([, names]) => names);

/** The page that lists every heading. */
export const INDEX_PAGE = { name: 'index-a-z', title: 'Index A–Z' } as const;

/** A page without the HTML around it. */
export interface Source {
  /** The file's name without its extension. */
  readonly name: string;
  readonly title: string;
  /** The page that it belongs to, which lists it in place of the navigation. */
  readonly parent?: string | undefined;
  readonly markdown: string;
}

interface SiteOptions {
  /** Folder with the `.md` files, `style.css` and `pictures`. */
  readonly folder: string;
  /** Generated pages. */
  readonly made: readonly Source[];
  /** The server's version, which every page shows. */
  readonly version: string;
  /** Documents served as JSON, by their file names. */
  readonly documents: Readonly<Record<string, object>>;
  /** The script of the pages (src/docs/page). */
  readonly script: string;
  readonly places: Places;
}

const placeOf = ({ name }: Source): number => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);

const compare = (one: Source, other: Source): number =>
  placeOf(one) - placeOf(other) || (one.name < other.name ? -1 : 1);

/**
 * The pages of a folder and the generated ones, in the order of the navigation. A file `alert-x` belongs to the page
 * `alerts`: the plural of its prefix. Throws for a page without a heading.
 */
export async function readSources(folder: string, made: readonly Source[]): Promise<Source[]> {
  const files = (await readdir(folder)).filter((file) => /^[a-z0-9-]+\.md$/.test(file));
  const sources = await Promise.all(
    files.map(async (file): Promise<Source> => {
      const markdown = await readFile(join(folder, file), 'utf8');
      const title = titleOf(markdown);
      if (title === undefined) throw new Error(`${join(folder, file)}: a page begins with a heading`);
      const name = file.slice(0, -'.md'.length);
      const family = `${name.split('-', 1)[0] ?? ''}s`;
      const parent = files.includes(`${family}.md`) ? family : undefined;
      return { name, title, parent, markdown };
    }),
  );
  return [...sources, ...made].sort(compare);
}

/** A rendered page without the frame around it. */
interface Body extends Omit<Source, 'markdown'> {
  readonly html: string;
  readonly headings: readonly Heading[];
}

class Frame {
  private readonly titles: ReadonlyMap<string, string>;

  constructor(
    private readonly bodies: readonly Body[],
    private readonly options: Pick<SiteOptions, 'places' | 'version'>,
  ) {
    this.titles = new Map(bodies.map(({ name, title }) => [name, title]));
  }

  private link(name: string, more = ''): string {
    return `<a href="${this.options.places.page(name)}"${more}>${escapeHtml(this.titles.get(name) ?? '')}</a>`;
  }

  private navigation(current: Body): string {
    const listed = this.bodies.filter(({ parent }) => parent === undefined).map(({ name }) => name);
    const groups = GROUPS.map(([title, names]) => {
      const pages = listed.filter((name) => (title === 'More' ? !ORDER.includes(name) : names.includes(name)));
      const links = pages.map((name) => {
        const here = name === current.name ? ' aria-current="page"' : name === current.parent ? ' class="here"' : '';
        return `<li>${this.link(name, here)}</li>`;
      });
      return pages.length === 0 ? '' : `<p>${title}</p><ul>\n${links.join('\n')}\n</ul>`;
    });
    return `<nav id="pages" popover aria-label="Pages">${groups.join('\n')}</nav>`;
  }

  /** The list of the page's headings; empty if there are too few. */
  private contents({ headings }: Body): string {
    const shown = headings.filter(({ depth }) => depth === 2 || depth === 3);
    if (shown.length < 3) return '';
    const lines = shown.map(({ depth, id, text }) => {
      const inner = text.replace(/<\/?(?:a\b[^>]*)>/g, '');
      return `<li class="depth-${depth}"><a href="#${id}">${inner}</a></li>`;
    });
    return `<details class="contents"><summary>On this page</summary><nav aria-label="On this page"><ul>\n${lines.join('\n')}\n</ul></nav></details>`;
  }

  /** Links to the previous and the next page with the same parent. */
  private neighbours({ name, parent }: Body): string {
    const family = this.bodies.filter((other) => other.parent === parent);
    const at = family.findIndex((other) => other.name === name);
    const link = (other: Body | undefined, rel: string, word: string): string =>
      other === undefined
        ? '<span></span>'
        : `<a rel="${rel}" href="${this.options.places.page(other.name)}"><small>${word}</small>${breakable(escapeHtml(other.title))}</a>`;
    return `<nav class="neighbours" aria-label="Before and after">${link(family[at - 1], 'prev', 'Before')}${link(family[at + 1], 'next', 'Next')}</nav>`;
  }

  page(body: Body): string {
    const { places, version } = this.options;
    const [folder = '', suffix = ''] = places.page('*').split('*');
    const up = body.parent === undefined ? '' : `<p class="up">${this.link(body.parent)}</p>\n`;
    return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(body.title)}</title>
<link rel="icon" href="${places.file('icon.svg')}">
<link rel="stylesheet" href="${places.file('style.css')}">
<script src="${places.file('search.js')}" data-pages="${folder}" data-suffix="${suffix}" data-index="${places.file('search-index.js')}" defer></script>
</head>
<body>
<a class="skip" href="#main">To the text</a>
<header>
<button type="button" class="menu" popovertarget="pages">Pages</button>
<a class="home" href="${places.page('index')}">Reference</a>
<search class="search" hidden>
<input type="search" aria-label="Search the reference" placeholder="Search ( / )" autocomplete="off" spellcheck="false" maxlength="100">
<div class="found"><p role="status"></p><ol></ol></div>
</search>
<a class="az-link" href="${places.page(INDEX_PAGE.name)}">A–Z</a>
</header>
<div class="frame">
${this.navigation(body)}
<main id="main">
${up}${this.contents(body)}
<article>
${body.html}</article>
${this.neighbours(body)}
<footer>Version ${escapeHtml(version)}</footer>
</main>
</div>
</body>
</html>
`;
  }
}

/** The site's files by name: pages have no extension, all other files have one. */
export type SiteFiles = ReadonlyMap<string, string | Buffer>;

/** Makes every file. Throws if the folder or a file cannot be read. */
export async function makeSite(options: SiteOptions): Promise<SiteFiles> {
  const { folder, made, documents, places } = options;
  const sources = await readSources(folder, made);
  const bodies = sources.map(({ markdown, ...source }): Body => {
    const { html, headings } = render(markdown, places);
    return { ...source, html, headings };
  });
  const indexed = bodies.map(({ name, title, html }): IndexedPage => ({ name, title, sections: sectionsOf(html) }));
  const all: Body[] = [...bodies, { ...INDEX_PAGE, html: indexPageHtml(indexed, places), headings: [] }];
  const frame = new Frame(all, options);
  const files = new Map<string, string | Buffer>(all.map((body) => [body.name, frame.page(body)]));
  for (const [name, document] of Object.entries(documents)) files.set(name, `${JSON.stringify(document, null, 1)}\n`);
  files.set('style.css', await readFile(join(folder, 'style.css'), 'utf8'));
  files.set('search.js', options.script);
  files.set('search-index.js', indexScript(indexed));
  const pictures = join(folder, 'pictures');
  const names = await readdir(pictures).catch(() => []);
  for (const name of names.filter((file) => /^[a-z0-9-]+\.(?:png|svg)$/.test(file)))
    files.set(name, await readFile(join(pictures, name)));
  return files;
}
