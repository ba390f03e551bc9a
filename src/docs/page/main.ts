/**
 * The script of the reference's pages: the search, and a list of contents that is open if there is room beside the
 * text. One classic script without `fetch`, so that it also runs from disk.
 */
import { find, type Hit, type Index } from './search.js';

const HITS_MAX = 20;
/** As in style.css. */
const WIDE = '(min-width: 72rem)';

const script = document.currentScript as HTMLScriptElement | null;
const { pages = '', suffix = '', index = '' } = script?.dataset ?? {};

const scope = globalThis as { referenceIndex?: Index };
let loading: Promise<Index> | undefined;

/** Loads the index, once, on first use of the search. */
function load(): Promise<Index> {
  return (loading ??= new Promise<Index>((resolve, reject) => {
    const element = document.createElement('script');
    element.addEventListener('load', () => resolve(scope.referenceIndex ?? []));
    element.addEventListener('error', () => {
      loading = undefined;
      reject(new Error('the index cannot be loaded'));
    });
    element.src = index;
    document.head.append(element);
  }));
}

const addressOf = ({ page, anchor }: Hit): string =>
  `${page === 'index' && suffix === '' ? pages.replace(/\/$/, '') : `${pages}${page}${suffix}`}#${anchor}`;

/** Creates an element with text or child nodes. */
function element<K extends keyof HTMLElementTagNameMap>(tag: K, ...inside: readonly (string | Node)[]) {
  const made = document.createElement(tag);
  made.append(...inside);
  return made;
}

function lineOf(hit: Hit): HTMLLIElement {
  const excerpt = hit.excerpt.map((part, at) => (at % 2 === 0 ? part : element('mark', part)));
  const heading = element('b', hit.heading || hit.title);
  const link = element('a', heading, ' ', element('small', hit.title), element('p', ...excerpt));
  link.href = addressOf(hit);
  return element('li', link);
}

class Search {
  private readonly field: HTMLInputElement;
  private readonly list: HTMLElement;
  private readonly status: HTMLElement;

  constructor(private readonly box: HTMLElement) {
    this.field = box.querySelector('input') as HTMLInputElement;
    this.list = box.querySelector('ol') as HTMLElement;
    this.status = box.querySelector('[role=status]') as HTMLElement;
    box.hidden = false;
    this.field.addEventListener('focus', () => void load().catch(() => undefined));
    this.field.addEventListener('input', () => void this.show());
    // A hit may lead to a place on this page, which is not reloaded then.
    this.list.addEventListener('click', () => this.close());
    box.addEventListener('keydown', (event) => this.key(event));
    box.addEventListener('focusout', ({ relatedTarget }) => {
      if (relatedTarget instanceof Node && !box.contains(relatedTarget)) this.close();
    });
    document.addEventListener('keydown', (event) => {
      const typing = event.target instanceof HTMLElement && event.target.matches('input, textarea');
      if (event.key !== '/' || typing || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.field.focus();
      this.field.select();
    });
    document.addEventListener('click', ({ target }) => {
      if (target instanceof Node && !box.contains(target)) this.close();
    });
  }

  private close(): void {
    this.box.classList.remove('open');
  }

  private async show(): Promise<void> {
    const asked = this.field.value;
    if (asked.trim() === '') {
      this.status.textContent = '';
      this.list.replaceChildren();
      this.close();
      return;
    }
    try {
      const hits = find(await load(), asked, HITS_MAX);
      // Discards the hits of a query that has changed meanwhile.
      if (this.field.value !== asked) return;
      this.list.replaceChildren(...hits.map(lineOf));
      const more = hits.length === HITS_MAX ? 'The best ' : '';
      this.status.textContent = hits.length === 0 ? 'Nothing found' : `${more}${hits.length} found`;
    } catch {
      this.status.textContent = 'The search cannot be loaded; the index A–Z is a page';
    }
    this.box.classList.add('open');
  }

  private key(event: KeyboardEvent): void {
    const links = [...this.list.querySelectorAll('a')];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (event.key === 'Escape') {
      this.close();
      this.field.focus();
    } else if (event.key === 'ArrowDown') links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === 'ArrowUp') (at > 0 ? links[at - 1] : this.field)?.focus();
    else if (event.key === 'Enter' && at < 0) links[0]?.click();
    else return;
    event.preventDefault();
  }
}

const box = document.querySelector<HTMLElement>('.search');
if (box !== null) new Search(box);

const contents = document.querySelector<HTMLDetailsElement>('.contents');
if (contents !== null) {
  const wide = matchMedia(WIDE);
  const fit = (): void => {
    contents.open = wide.matches;
  };
  wide.addEventListener('change', fit);
  fit();
  // On a phone the list closes when a section is chosen.
  contents.addEventListener('click', ({ target }) => {
    if (target instanceof HTMLAnchorElement && !wide.matches) contents.open = false;
  });
}
