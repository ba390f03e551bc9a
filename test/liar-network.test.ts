/** Lies told over the network to a client that is a program of its own. The long test tells all of them. */
import { readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { FAULTS, seenAll, SMALL_CLIENT, told } from './support/client-mutants.js';

t.setTimeout(300_000);

t.test(
  'CONF-10: the small client notices a lie about an item, a delete, the count, and the host of a pairing',
  async (t) => {
    const outcomes = await told(t, SMALL_CLIENT, ['HONEST-02', 'LIAR-21', 'LIAR-24', 'LIAR-35', 'LIAR-118']);
    t.same(
      outcomes.map(({ id, kind, text }) => [id, kind, text]),
      [
        ['HONEST-02', 'kept_safe', ''],
        ['LIAR-21', 'noticed', 'untagged_delete'],
        ['LIAR-24', 'noticed', 'rolled_back'],
        ['LIAR-35', 'noticed', 'missing'],
        ['LIAR-118', 'noticed', 'wrong_host'],
      ],
    );
  },
);

/** Each was let pass by the vectors once; and one that only a liar sees. */
const SOME = [
  'E: leaves out the host',
  'tries the first usable key only',
  'tries the master wrap before `blobKeys`',
  'takes the minus sign for a dash',
  'takes every delete',
];

t.test('CONF-11: a client with a fault falls', async (t) => {
  const some = FAULTS.filter(({ what }) => SOME.includes(what));
  t.equal(some.length, SOME.length);
  await seenAll(t, some);
});

t.test('CONF-10: what is no client, and what says too much', async (t) => {
  const ends = await told(t, [process.execPath, '-e', 'process.exit(3)'], ['HONEST-01']);
  t.match(ends, [{ kind: 'believed', text: 'it ended (exit code 3)' }]);
  const cries = [
    "require('node:readline').createInterface({ input: process.stdin })",
    '.on("line", () => console.log(\'{"problem":"a lie!"}\\n{"done":true}\'))',
  ].join('');
  t.match(await told(t, [process.execPath, '-e', cries], ['LIAR-01']), [
    { kind: 'believed', text: 'it did not join: a lie!' },
  ]);
  const mute = cries.replace('{"problem":"a lie!"}', '{"cannot":true}');
  t.match(await told(t, [process.execPath, '-e', mute], ['LIAR-84']), [{ kind: 'skipped' }]);
});

t.test('CONF-10: the program is none of the tests: their library would end it after a while', (t) => {
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    const text = readFileSync(file, 'utf8');
    t.notMatch(text, /^import .* from 'tap';/m, file);
    for (const [, target = ''] of text.matchAll(/^(?:import|export) (?!type )[^;]*? from '(\.[^']+)';/gms))
      visit(resolve(dirname(file), target.replace(/\.js$/, '.ts')));
  };
  visit(join(PROJECT_ROOT, 'test/liar/network/run.ts'));
  t.ok(seen.size > 20);
  t.end();
});
