/** Markdown to HTML. Raw HTML is escaped, so that a page cannot contain markup of its own. */
import { Marked, type Tokens } from 'marked';

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

/** Escapes text for HTML, including attribute values. */
export const escaped = (text: string): string => text.replace(/[&<>"']/g, (char) => ESCAPES[char] ?? char);

/** The anchor of a heading, as code hosts generate it, so that links work there and under `/docs`. */
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

/**
 * The address of a link under `/docs`. Undefined for a file of the repository that is not a page: only the link's text
 * is shown.
 */
export function addressOf(href: string): string | undefined {
  if (/^(https?:|#)/.test(href)) return href;
  if (/^\/(docs|api)\b/.test(href)) return href;
  const page = /^(?:\.\/)?([a-z0-9-]+)\.(md|json)(#.*)?$/.exec(href);
  if (page === null) return undefined;
  const [, name = '', kind, anchor = ''] = page;
  if (kind === 'json') return `/docs/${name}.json`;
  return name === 'index' ? `/docs${anchor}` : `/docs/${name}${anchor}`;
}

interface Rendered {
  readonly html: string;
  readonly anchors: ReadonlySet<string>;
}

/** Renders a page. Anchors of equal headings get `-1`, `-2` and so on, as on code hosts. */
export function render(markdown: string): Rendered {
  const anchors = new Set<string>();
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
      html: ({ text }) => (/^<!--[\s\S]*-->\s*$/.test(text) ? '' : escaped(text)),
      heading({ tokens, depth, text }) {
        const inner = this.parser.parseInline(tokens);
        const id = escaped(anchorOf(text));
        return `<h${depth} id="${id}"><a class="anchor" href="#${id}">${inner}</a></h${depth}>\n`;
      },
      link({ href, tokens }: Tokens.Link) {
        const inner = this.parser.parseInline(tokens);
        const address = addressOf(href);
        return address === undefined ? inner : `<a href="${escaped(address)}">${inner}</a>`;
      },
      // No external resources: of an image only its text is shown.
      image: ({ text }) => escaped(text),
      table(token) {
        const cells = (row: readonly Tokens.TableCell[], tag: 'th' | 'td'): string =>
          `<tr>${row.map((cell) => `<${tag}>${this.parser.parseInline(cell.tokens)}</${tag}>`).join('')}</tr>\n`;
        const rows = token.rows.map((row) => cells(row, 'td')).join('');
        return `<div class="table"><table><thead>${cells(token.header, 'th')}</thead><tbody>${rows}</tbody></table></div>\n`;
      },
    },
  });
  return { html: marked.parse(markdown, { async: false }), anchors };
}
