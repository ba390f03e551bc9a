/** The search and the index A-Z: what a reader finds, with a script and without. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { runInNewContext } from 'node:vm';
import t from 'tap';
import { find, type Index } from '../src/docs/page/search.js';
import { indexScript, sectionsOf } from '../src/docs/search-index.js';
import { render } from '../src/docs/markdown.js';
import { EXAMPLES } from '../src/docs/examples.js';
import { WIRE_CODES } from '../src/docs/errors-page.js';
import { REFERENCE_FOLDER } from '../src/root.js';
import { CONFIG_VARIABLES } from '../src/server/config/config.js';

const SAVED = join(REFERENCE_FOLDER, 'saved');
const textOf = (name: string): string => readFileSync(join(SAVED, name), 'utf8');

/** The index as a page gets it: by running the script. */
function built(script: string): Index {
  const scope: { referenceIndex?: Index } = {};
  runInNewContext(script, { globalThis: scope });
  return scope.referenceIndex ?? [];
}

const index = built(textOf('search-index.js'));
const best = (query: string): string => {
  const [hit] = find(index, query, 1);
  return hit === undefined ? '' : `${hit.page}#${hit.anchor}`;
};

t.test('REF-21: an error, endpoint, variable or command that is searched by its name is found first', (t) => {
  for (const code of WIRE_CODES) t.match(best(code), new RegExp(`^(?:errors|error-${code})#${code}$`), code);
  for (const key of Object.keys(EXAMPLES)) {
    const [method = '', path = ''] = key.replaceAll(/:([a-z]+)/g, '{$1}').split(' ');
    t.match(best(`${method} ${path}`), /^endpoints-[a-z]+#/, key);
  }
  t.match(best('METRICS_PORT'), /^(?:configuration|alert)/);
  t.match(best('restore'), /^operating#restore$/);
  t.match(best('twelve words'), /#/);
  t.end();
});

t.test('REF-21: every word of a query must occur, case and accents do not matter, the excerpt shows the match', (t) => {
  const pages = [
    {
      name: 'p',
      title: 'Page',
      sections: sectionsOf(render('# Page\n\n## Café\n\nA `long_name` & <more>.\n\n## Tea\n\nOnly tea.').html),
    },
  ];
  const own = built(indexScript(pages));
  t.same(
    find(own, 'CAFE', 9).map(({ anchor }) => anchor),
    ['café'],
  );
  t.same(
    find(own, 'tea only', 9).map(({ heading }) => heading),
    ['Tea'],
  );
  t.same(find(own, 'tea coffee', 9), [], 'a query finds nothing where one of its words is missing');
  t.same(find(own, '  ', 9), []);
  const [hit] = find(own, 'long_name', 9);
  t.same(hit?.excerpt, ['A ', 'long_name', ' & <more>.']);
  // The query is never read as a pattern, and the excerpt of a long text is short.
  t.same(find(own, '.* (', 9), []);
  const long = built(
    indexScript([
      {
        name: 'l',
        title: 'L',
        sections: sectionsOf(render(`# L\n\n${'word '.repeat(500)}needle ${'word '.repeat(500)}`).html),
      },
    ]),
  );
  const shown = find(long, 'needle', 1)[0]?.excerpt.join('') ?? '';
  t.match(shown, /^… .*needle.* …$/);
  t.ok(shown.length < 300);
  t.end();
});

t.test('REF-21: the index A-Z has every heading, endpoint, error, variable and command, without a script', (t) => {
  const html = textOf('index-a-z.html').replaceAll('<wbr>', '');
  const has = (term: string): void => {
    t.ok(
      html.includes(
        `>${term.replaceAll('&', '&amp;').replaceAll("'", '&#39;').replaceAll('"', '&quot;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')}</a>`,
      ),
      term,
    );
  };
  for (const [, , sections] of index) for (const [, heading] of sections) if (heading !== '') has(heading);
  for (const code of WIRE_CODES) has(code);
  for (const { name } of CONFIG_VARIABLES) has(name);
  for (const command of ['backup <file>', 'verify [file]', 'check-storage', 'claim [url]']) has(command);
  for (const option of ['-h', '--json']) has(option);
  t.match(textOf('http.html'), '<a class="az-link" href="index-a-z.html">');
  t.end();
});
