/** Markdown to HTML. Raw HTML is escaped, so that a page cannot contain markup of its own. */
import { Marked, type Tokens } from 'marked';
import { escapeHtml } from '../protocol/sanitize.js';

/** The anchor of a heading, generated as by code hosts, so that links work both there and under `/docs`. */
export function slugOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_\- ]/gu, '')
    .trim()
    .replaceAll(' ', '-');
}

/** The text of a heading without Markdown syntax. */
const plain = (markdown: string): string => markdown.replace(/[`*]/g, '').replace(/\[([^\]]*)\]\([^)]*\)/g, '$1');

/** A page's title: its first heading; undefined if there is none. */
export function titleOf(markdown: string): string | undefined {
  const found = /^# +(.+)$/m.exec(markdown)?.[1];
  return found === undefined ? undefined : plain(found).trim();
}

/** The path of a picture of the reference in its pages. */
const PICTURE = /^pictures\/([a-z0-9-]+\.(?:png|svg))$/;

/** Sizes of screenshots, by the width in their names (test/pictures.ts), so that text does not move when they load. */
const SCREENSHOT_SIZES: Readonly<Record<string, string>> = {
  '1280': ' width="1280" height="800"',
  '360': ' width="360" height="740"',
};

/** The archive with all pages for reading from disk. */
export const ARCHIVE = 'reference.tar.gz';

/** The addresses of pages, documents and pictures: on a server's `/docs`, or in a folder on disk. */
export interface Places {
  page(name: string): string;
  /** `name` with its extension. */
  file(name: string): string;
}

/** For a server's `/docs`. */
export const SERVED: Places = {
  page: (name) => (name === 'index' ? '/docs' : `/docs/${name}`),
  file: (name) => `/docs/${name}`,
};

/** For one folder that is opened without a server. */
export const SAVED: Places = { page: (name) => `${name}.html`, file: (name) => name };

/** The address of a link. Undefined for a file of the repository that is not a page: only the link's text is shown. */
export function addressOf(href: string, places: Places = SERVED): string | undefined {
  if (/^(https?:|#)/.test(href)) return href;
  if (/^\/(docs|api)\b/.test(href)) return href;
  // The archive is not part of the saved pages.
  if (href === ARCHIVE) return places === SAVED ? undefined : places.file(ARCHIVE);
  const page = /^(?:\.\/)?([A-Za-z0-9_-]+)\.(md|json)(#.*)?$/.exec(href);
  if (page === null) return undefined;
  const [, name = '', kind, anchor = ''] = page;
  return kind === 'json' ? places.file(`${name}.json`) : places.page(name) + anchor;
}

/** Allows line breaks after punctuation inside a long name, so that no break within a word is needed. */
export const breakable = (html: string): string =>
  html.length < 12
    ? html
    : html.replace(/([a-z0-9>}](?:&(?:amp|gt);)?[/_=:.,-]+|\/)(?=&lt;|[A-Za-z0-9{:$<])/gi, '$1<wbr>');

/** Applies `breakable` to long words outside of code, such as addresses. */
const withBreaks = (html: string): string =>
  html.replace(
    /(<pre[\s\S]*?<\/pre>|<code[^>]*>[\s\S]*?<\/code>|<[^>]*>)|[^<>\s]{20,}/g,
    (word, markup: string | undefined) => markup ?? breakable(word),
  );

/** Maximum length of code that is never broken across lines; longer code may break after punctuation. */
const LINE_CODE_MAX = 24;

/** Hexadecimal bytes have no punctuation: a line may break after each 32 digits. */
const DIGITS = /[A-Za-z0-9]{32}(?=[A-Za-z0-9])/g;

const longCode = (html: string): string => `<code class="long">${breakable(html).replace(DIGITS, '$&<wbr>')}</code>`;

/** A heading of a page. */
export interface Heading {
  readonly depth: number;
  /** HTML. */
  readonly text: string;
  readonly id: string;
}

/** From this many columns each cell has its column's title: on a phone the rows become cards that show it. */
const LABELLED_COLUMNS_MIN = 3;

/** Renders a page. Anchors of equal headings get `-1`, `-2` and so on, as on code hosts. */
export function render(markdown: string, places: Places = SERVED) {
  const anchors = new Set<string>();
  const headings: Heading[] = [];
  const anchorOf = (heading: string): string => {
    const slug = slugOf(plain(heading));
    let name = slug;
    for (let n = 1; anchors.has(name); n++) name = `${slug}-${n}`;
    anchors.add(name);
    return name;
  };
  const marked = new Marked({
    gfm: true,
    renderer: {
      // Comments are dropped.
      html: ({ text }) => (/^<!--[\s\S]*-->\s*$/.test(text) ? '' : escapeHtml(text)),
      heading({ tokens, depth, text }) {
        // Headings are set larger: code that fits into a line of text may not fit into a heading.
        const inner = this.parser
          .parseInline(tokens)
          .replace(/<code>([^<]*)<\/code>/g, (_, code: string) => longCode(code));
        const id = escapeHtml(anchorOf(text));
        headings.push({ depth, text: inner, id });
        return `<h${depth} id="${id}"><a class="anchor" href="#${id}">${inner}</a></h${depth}>\n`;
      },
      link({ href, tokens }: Tokens.Link) {
        const inner = this.parser.parseInline(tokens);
        const address = addressOf(href, places);
        return address === undefined ? inner : `<a href="${escapeHtml(address)}">${inner}</a>`;
      },
      codespan: ({ text }) =>
        text.length > LINE_CODE_MAX ? longCode(escapeHtml(text)) : `<code>${escapeHtml(text)}</code>`,
      // `tabindex` makes it scrollable by keyboard.
      code: ({ text, lang }) =>
        `<pre tabindex="0"${lang === undefined || lang === '' ? '' : ` data-lang="${escapeHtml(lang)}"`}><code>${escapeHtml(text)}\n</code></pre>\n`,
      // No external resources: for any other image only its text is shown.
      image({ href, text }) {
        const [, name] = PICTURE.exec(href) ?? [];
        if (name === undefined) return escapeHtml(text);
        const [, width = ''] = /-(\d+)\.png$/.exec(name) ?? [];
        return `<img src="${places.file(name)}" alt="${escapeHtml(text)}"${SCREENSHOT_SIZES[width] ?? ''}>`;
      },
      table(token) {
        const labelled = token.header.length >= LABELLED_COLUMNS_MIN;
        const titles = token.header.map(({ text }) => escapeHtml(plain(text)));
        const titled = titles.some((title) => title !== '');
        const cell = ({ tokens }: Tokens.TableCell, at: number): string => {
          const inner = this.parser.parseInline(tokens);
          // If no column has a title, the first cell is the heading of its row.
          if (!titled && at === 0) return `<th scope="row">${inner}</th>`;
          return `<td${labelled && at > 0 && titles[at] !== '' ? ` data-label="${titles[at]}"` : ''}>${inner}</td>`;
        };
        const head = titles.map((title, at) =>
          title === '' ? '<td></td>' : `<th>${this.parser.parseInline(token.header[at]?.tokens ?? [])}</th>`,
        );
        const rows = token.rows.map((row) => `<tr>${row.map(cell).join('')}</tr>\n`).join('');
        return `<table>${titled ? `<thead><tr>${head.join('')}</tr></thead>` : ''}<tbody>${rows}</tbody></table>\n`;
      },
    },
  });
  return { html: withBreaks(marked.parse(markdown, { async: false })), anchors, headings };
}
