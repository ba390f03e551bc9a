/** The data of the search and of the index A-Z: the text of each page by section. */
import { escapeHtml } from '../protocol/sanitize.js';
import type { Places } from './markdown.js';

/** A heading and the content below it, as plain text. */
interface Section {
  /** The heading's anchor; empty before the first one. */
  readonly anchor: string;
  readonly heading: string;
  readonly text: string;
  /** Names in the first column of its tables (variables, commands, codes), and options, wherever they stand. */
  readonly names: readonly string[];
}

export interface IndexedPage {
  readonly name: string;
  readonly title: string;
  readonly sections: readonly Section[];
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'" };

/** The text of HTML from `render`. */
const textOf = (html: string): string =>
  html
    .replace(/<wbr>/g, '')
    .replace(/<\/(?:p|li|h\d|td|th|tr|pre)>/g, ' ')
    .replace(/<[^>]+>/g, '')
    .replace(/&(amp|lt|gt|quot|#39);/g, (_, name: string) => ENTITIES[name] ?? '')
    .replace(/\s+/g, ' ')
    .trim();

const codesIn = (html: string): string[] =>
  [...html.matchAll(/<code[^>]*>([\s\S]*?)<\/code>/g)].map(([, code = '']) => textOf(code));

/** An option, alone or with one argument. Commands' tables have it in the description. */
const OPTION = /^(?:-[A-Za-z]|--[a-z][a-z-]*)(?: (?:<\S+>|\[\S+\]|[A-Z]+))?$/;

function namesIn(html: string): string[] {
  const cells = [...html.matchAll(/<tr><t[dh][^>]*>([\s\S]*?)<\/t[dh]>/g)].map(([, cell = '']) => cell);
  const named = cells.filter((cell) => cell.startsWith('<code') || cell.startsWith('<a ')).flatMap(codesIn);
  return [...named, ...codesIn(html).filter((code) => OPTION.test(code))];
}

/** The parts of a page's HTML. */
export function sectionsOf(html: string): Section[] {
  const parts = html.split(/(?=<h[1-4] id=")/);
  return parts.flatMap((part) => {
    const [head = '', anchor = '', title = ''] = /^<h\d id="([^"]*)">([\s\S]*?)<\/h\d>/.exec(part) ?? [];
    const body = part.slice(head.length);
    const text = textOf(body);
    return head === '' && text === '' ? [] : [{ anchor, heading: textOf(title), text, names: namesIn(body) }];
  });
}

/** The script with the index: one assignment, so that it can be loaded both from disk and from a server. */
export function indexScript(pages: readonly IndexedPage[]): string {
  const index = pages.map(({ name, title, sections }) => [
    name,
    title,
    sections.map(({ anchor, heading, text }) => [anchor, heading, text]),
  ]);
  return `globalThis.referenceIndex=${JSON.stringify(index)};\n`;
}

interface Entry {
  readonly term: string;
  readonly page: IndexedPage;
  readonly anchor: string;
}

/** The letter under which a term is listed; punctuation before it is ignored. */
const letterOf = (term: string): string => /[A-Za-z]/.exec(term)?.[0].toUpperCase() ?? '#';

const sortKey = (term: string): string => term.toLowerCase().replace(/^[^a-z0-9]+/, '');

function entriesOf(pages: readonly IndexedPage[]): Entry[] {
  const found = new Map<string, Entry>();
  for (const page of pages) {
    for (const { anchor, heading, names } of page.sections) {
      for (const term of [heading, ...names]) {
        // An option is listed once for a page, with or without its argument.
        const key = `${term.startsWith('-') ? term.split(' ', 1)[0] : term}\0${page.name}`;
        if (term !== '' && !found.has(key)) found.set(key, { term, page, anchor });
      }
    }
  }
  const order = (one: string, other: string): number => (one < other ? -1 : Number(one > other));
  return [...found.values()].sort(
    (one, other) => order(sortKey(one.term), sortKey(other.term)) || order(one.page.title, other.page.title),
  );
}

/** The page that lists every heading and name, as HTML; it works without scripts. */
export function indexPageHtml(pages: readonly IndexedPage[], places: Places): string {
  const byLetter = new Map<string, string[]>();
  for (const { term, page, anchor } of entriesOf(pages)) {
    const href = escapeHtml(`${places.page(page.name)}${anchor === '' ? '' : `#${anchor}`}`);
    const line = `<li><a href="${href}">${escapeHtml(term).replace(/([/_.])(?=\w)/g, '$1<wbr>')}</a> <small>${escapeHtml(page.title)}</small></li>`;
    const letter = letterOf(term);
    byLetter.set(letter, [...(byLetter.get(letter) ?? []), line]);
  }
  const letters = [...byLetter].sort(([one], [other]) => (one < other ? -1 : 1));
  const id = (letter: string): string => (letter === '#' ? 'signs' : letter.toLowerCase());
  const links = letters.map(([letter]) => `<a href="#${id(letter)}">${letter}</a>`).join(' ');
  const parts = letters.map(
    ([letter, lines]) => `<h2 id="${id(letter)}">${letter}</h2>\n<ul>\n${lines.join('\n')}\n</ul>`,
  );
  return `<h1 id="index-a-z">Index A–Z</h1>
<p>Every heading, endpoint, error, alert, command, option and variable of these pages.</p>
<p class="letters">${links}</p>
<div class="az">${parts.join('\n')}</div>
`;
}
