/** Lies presented over the network to a client in a process of its own. The long test presents all of them. */
import { readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { changed, FAULTS, seenAll, SMALL_CLIENT, told } from './support/client-mutants.js';

t.setTimeout(600_000);

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

/** Faults that the vectors once failed to detect, and one that only the liar detects. */
const SOME = [
  'E: leaves out the host',
  'tries the first usable key only',
  'tries the master wrap before `blobKeys`',
  'takes the minus sign for a dash',
  'takes every delete',
];

t.test('CONF-11: a fault put into the client is detected', async (t) => {
  const some = FAULTS.filter(({ what }) => SOME.includes(what));
  t.equal(some.length, SOME.length);
  await seenAll(t, some);
});

t.test('CONF-10: lies reach a client that names its shape in the query of every call', async (t) => {
  const command = await changed(t, {
    what: 'names its shape in the query',
    file: 'client',
    find: '/api${path}`,',
    put: "/api${path}${path.includes('?') ? '&' : '?'}shape=${this.shape}`,",
  });
  const outcomes = await told(t, command, ['HONEST-03', 'LIAR-24', 'LIAR-56', 'LIAR-84', 'LIAR-85']);
  t.same(
    outcomes.map(({ id, kind, text }) => [id, kind, text]),
    [
      ['HONEST-03', 'kept_safe', ''],
      ['LIAR-24', 'noticed', 'rolled_back'],
      ['LIAR-56', 'noticed', 'uncertified_device'],
      ['LIAR-84', 'noticed', 'wrong_device'],
      ['LIAR-85', 'noticed', 'bad_challenge'],
    ],
  );
});

t.test('CONF-10: a client that adds the keys of the device that it let in at once is not suspected', async (t) => {
  const release = "await this.call('POST', '/devices/pair-wrap', { code: code.wire, ...release, confirmation });";
  const command = await changed(t, {
    what: 'adds the keys of a device at once',
    file: 'client',
    find: release,
    put: `${release}
      for (const row of (await this.call('GET', '/items?since=0')).items)
        await this.write(await this.rewrapped(readItem(row)), row.version);`,
  });
  t.match(await told(t, command, ['HONEST-03']), [{ id: 'HONEST-03', kind: 'kept_safe' }]);
});

t.test('CONF-10: a client that exits, or calls everything a lie, fails; an unknown command is skipped', async (t) => {
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

t.test('CONF-10: the liar program does not import tap, which would end it after a while', (t) => {
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
