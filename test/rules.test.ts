/** Every rule has a test, and no test names a rule that does not exist. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';

const ID = /\b[A-Z]+-\d{2,3}\b/g;

const catalogue = readFileSync(join(PROJECT_ROOT, 'test/rules/RULES.md'), 'utf8');
const idsIn = (text: string): string[] =>
  [...text.matchAll(/^- \*\*([A-Z]+-\d{2,3})\*\* /gm)].map((match) => match[1] ?? '');
const rules = idsIn(catalogue);
const prefixes = new Set(rules.map((id) => id.split('-')[0]));

/**
 * The ids before the colon of each title, and those that a table of cases gives as separate strings. A case of the
 * conformance kit is a test: test/conformance.test.ts fails unless our server passes it.
 */
function quotedIds(): Map<string, string[]> {
  const found = new Map<string, string[]>();
  const folder = join(PROJECT_ROOT, 'test');
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) =>
    /\.test\.ts$|^conformance\/cases\//.test(name),
  );
  for (const name of names) {
    const source = readFileSync(join(folder, name), 'utf8');
    for (const [, text] of source.matchAll(/['"`]((?:[A-Z]+-\d{2,3}[ ,]*)+)(?::|['"`])/g)) {
      for (const [id] of (text ?? '').matchAll(ID)) {
        if (prefixes.has(id.split('-')[0])) found.set(id, [...(found.get(id) ?? []), name]);
      }
    }
  }
  return found;
}

t.test('ARCH-12: every rule has a test, and every id in a title is a rule', (t) => {
  const quoted = quotedIds();
  t.equal(new Set(rules).size, rules.length, 'no id occurs twice');
  t.same(
    [...quoted.keys()].filter((id) => !rules.includes(id)),
    [],
    'titles name existing rules only',
  );
  t.same(
    rules.filter((id) => !quoted.has(id)),
    [],
    'every rule has a test',
  );
  t.end();
});

/** Titles of the reference's pages; `Errors` is generated from the code. */
const pages = new Set([
  ...readdirSync(join(PROJECT_ROOT, 'src/docs'))
    .filter((name) => name.endsWith('.md'))
    .map((name) => /^# (.+)$/m.exec(readFileSync(join(PROJECT_ROOT, 'src/docs', name), 'utf8'))?.[1]),
  'Errors',
]);

t.test('ARCH-12: each section of the rules occurs once, has one prefix, and names existing pages', (t) => {
  const [, ...sections] = catalogue.split(/^## /m);
  const titles = sections.map((section) => section.split('\n', 1)[0] ?? '');
  t.equal(new Set(titles).size, titles.length, 'no section occurs twice');
  for (const [at, section] of sections.entries()) {
    const own = new Set(idsIn(section).map((id) => id.split('-')[0]));
    t.equal(own.size, 1, `${titles[at]}: ${[...own].join(', ')}`);
    const source = /^Source: (.+)$/m.exec(section)?.[1] ?? '';
    const [, named = ''] = /^the reference, (.+)$/.exec(source) ?? [];
    const unknown = named.split(/, | and /).filter((page) => page !== '' && !pages.has(page));
    t.same(source === '' ? ['no source'] : unknown, [], titles[at] ?? '');
  }
  t.end();
});
