/** `export` and `import` as commands, with a real device on a real server. */
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { exportVault } from '../src/cli/commands/export.js';
import { importVault } from '../src/cli/commands/import.js';
import { openSource } from '../src/cli/import-source.js';
import { surveyOf } from '../src/sdk/archive/importer.js';
import { EXIT } from '../src/terminal/terminal.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { drawPhrase, phraseSeed } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { note, refusal, wiretap } from './support/client-world.js';
import { fakeTerminal } from './support/vault-context.js';
import { contextFor, filled, place } from './support/vault-place.js';

const parts = async (folder: string): Promise<string[]> =>
  (await readdir(folder)).filter((name) => name.endsWith('.part'));

t.test(
  'ARCHIVE-05 ARCHIVE-07 ARCHIVE-14: an archive is encrypted under words that are typed without being shown',
  async (t) => {
    const { world: at, folder, context } = await filled(t);
    const file = join(folder, 'vault.archive');
    const wrong = drawPhrase(nodeSodium);
    const terminal = fakeTerminal({ answers: ['not twelve words', wrong, at.phrase] });
    t.equal(await exportVault(context(terminal), { file }), EXIT.ok);
    t.ok(terminal.asked.every(({ hidden }) => hidden) && terminal.asked.length === 3);
    t.match(terminal.notes, [/expected 12 words, got 3/, /not the twelve words of this vault/]);
    t.equal((await stat(file)).mode & 0o777, 0o600);
    const bytes = await readFile(file, 'latin1');
    for (const content of ['spare', 'Beans', 'garden', 'record']) t.notOk(bytes.includes(content), content);
    for (const content of ['spare', 'Beans', 'garden']) t.notOk(terminal.all().includes(content), `told: ${content}`);
    for (const phrase of [at.phrase, wrong]) {
      const words = phrase.split(' ');
      for (const [n, word] of words.entries()) {
        t.notOk(word.length > 4 && bytes.includes(word));
        t.notOk(
          n > 0 && terminal.all().includes(`${words[n - 1] ?? ''} ${word}`),
          'no two adjacent words of a phrase are printed',
        );
      }
    }
    t.same(await parts(folder), []);
  },
);

t.test('ARCHIVE-05: wrong words write no file, and are asked for three times at most', async (t) => {
  const { world: at, folder, context } = await filled(t);
  const file = join(folder, 'vault.archive');
  const wrong = [1, 2, 3, 4].map(() => drawPhrase(nodeSodium));
  const terminal = fakeTerminal({ answers: wrong });
  t.match(await refusal(exportVault(context(terminal), { file })), { message: /not the twelve words/ });
  t.equal(terminal.asked.length, 3);
  t.match(await refusal(exportVault(context(fakeTerminal()), { file })), { exitCode: EXIT.usage });
  const piped = fakeTerminal({ input: `${wrong[0] ?? ''}\n` });
  t.match(await refusal(exportVault(context(piped), { file, phraseStdin: true })), { message: /not the twelve words/ });
  t.same((await readdir(folder)).sort(), ['default'], 'nothing was written');
  const right = fakeTerminal({ input: `${at.phrase}\n`, interactive: false });
  t.equal(await exportVault(context(right), { file, phraseStdin: true }), EXIT.ok);
});

t.test('ARCHIVE-06: bins with names and all items that verify are exported; the rest is reported', async (t) => {
  const { world: at, folder, client, ids } = await filled(t);
  const file = join(folder, 'vault.json');
  // Another program with the same device, which has no item yet and gets one whose tag is invalid.
  await at.server.sql(`UPDATE items SET sig = decode(repeat('00', 32), 'hex') WHERE id = $1`, [ids[1]]);
  const terminal = fakeTerminal({ json: true });
  const store = new MemoryStore();
  const fresh = await at.open(client.identity(), { store });
  t.equal(
    await exportVault(await contextFor({ client: fresh, store, folder }, terminal), { file, plain: true }),
    EXIT.ok,
  );
  t.match(terminal.documents, [{ file, plain: true, bins: 2, items: 1, blobs: 0, hidden: 1 }]);
  t.match(terminal.notes.join('\n'), /1 items do not verify/);
  const document = JSON.parse(await readFile(file, 'utf8')) as Record<'bins' | 'items', Record<string, unknown>[]>;
  t.match(
    document.bins.find((bin) => bin['id'] === 'garden'),
    { label: { name: 'The garden', emoji: '🌱' } },
  );
  t.match(document.items, [
    { id: ids[0], bin: 'inbox', type: 'text', payload: { text: 'the spare key is under the pot' } },
  ]);
});

t.test('ARCHIVE-06: false bins of a server do not lead to an export that no import accepts', async (t) => {
  const tap = wiretap();
  const truth = tap.platform.fetch;
  const row = { meta: null, createdAt: 1, updatedAt: 1, itemCount: 0 };
  const many = Array.from({ length: 1_200 }, (_, n) => ({ ...row, id: `more${n}`, slug: `more${n}` }));
  const bins = [...many, { ...row, id: 'garden', slug: 's'.repeat(100) }, { ...row, id: 'inbox', slug: '' }];
  let lies = false;
  Object.assign(tap.platform, {
    fetch: (url: string, init: RequestInit): Promise<Response> =>
      lies && new URL(url).pathname === '/api/bins' ? Promise.resolve(Response.json({ bins })) : truth(url, init),
  });
  const { folder, context, client, world: at } = await place(t, { tap });
  await client.device.bins.create('garden', { name: 'The garden' });
  await client.device.put(note('one'));
  await client.device.put({ ...note('two'), binId: 'garden' });
  lies = true;
  const input = `${at.phrase}\n`;
  for (const plain of [true, false]) {
    const file = join(folder, `vault.${String(plain)}`);
    t.equal(await exportVault(context(fakeTerminal({ input })), { file, plain, phraseStdin: true }), EXIT.ok);
    const source = await openSource(file);
    const seed = await phraseSeed(tap.platform.sodium, at.phrase);
    const survey = await surveyOf(source.records(tap.platform.sodium, seed, () => undefined));
    await source.close();
    t.equal(survey.items, 2);
    t.ok(survey.bins.get('garden') && survey.bins.get('inbox'), 'the bins that have items are included');
    t.equal(survey.bins.size, 1_000);
  }
});

t.test('ARCHIVE-07: an existing file is replaced only with --force, and a failed export leaves nothing', async (t) => {
  const { world: at, folder, context } = await filled(t);
  const file = join(folder, 'vault.archive');
  await writeFile(file, 'something else');
  const asked = fakeTerminal({ answers: [at.phrase] });
  t.match(await refusal(exportVault(context(asked), { file })), { exitCode: EXIT.usage, hint: /--force/ });
  t.equal(asked.asked.length, 0, 'refused before the words are asked for');
  t.equal(await readFile(file, 'utf8'), 'something else');
  t.equal(await exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file, force: true }), EXIT.ok);
  t.not(await readFile(file, 'utf8'), 'something else');
  const interrupted = fakeTerminal({ answers: [at.phrase], interrupted: AbortSignal.abort() });
  const other = join(folder, 'other.archive');
  t.match(await refusal(exportVault(context(interrupted), { file: other })), { exitCode: EXIT.interrupted });
  const nowhere = join(folder, 'no', 'such', 'folder');
  t.match(await refusal(exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file: nowhere })), {
    exitCode: EXIT.usage,
  });
  await mkdir(join(folder, 'a folder'));
  const onto = { file: join(folder, 'a folder'), force: true };
  t.match(await refusal(exportVault(context(fakeTerminal({ answers: [at.phrase] })), onto)), { message: /not a file/ });
  t.same((await readdir(folder)).sort(), ['a folder', 'default', 'vault.archive']);
});

t.test('ARCHIVE-08: plain JSON is written with a warning, with mode 0600, and not to a screen', async (t) => {
  const { folder, context, ids } = await filled(t);
  const file = join(folder, 'vault.json');
  const terminal = fakeTerminal();
  t.equal(await exportVault(context(terminal), { file, plain: true }), EXIT.ok);
  t.match(terminal.notes[0], /not encrypted/);
  t.equal((await stat(file)).mode & 0o777, 0o600);
  t.equal(terminal.asked.length, 0);
  t.match(await refusal(exportVault(context(fakeTerminal()), { file: '-', plain: true })), { message: /screen/ });
  t.match(await refusal(exportVault(context(fakeTerminal()), { file: '-' })), { exitCode: EXIT.usage });
  const piped = fakeTerminal({ outputIsTerminal: false });
  t.equal(await exportVault(context(piped), { file: '-', plain: true }), EXIT.ok);
  const document = JSON.parse(piped.printed.join('\n')) as { items: { id: string }[] };
  t.same(document.items.map(({ id }) => id).sort(), [...ids].sort());
});

t.test(
  'ARCHIVE-09: a file that is damaged, of another vault or no export is refused before anything is written',
  async (t) => {
    const { world: at, folder, context, client } = await filled(t);
    const { device, tap } = client;
    const file = join(folder, 'vault.archive');
    await exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file });
    const whole = await readFile(file);
    const calls = (): number => tap.calls.filter(({ method }) => method !== 'GET').length;
    const before = calls();
    const flipped = Buffer.from(whole);
    flipped[200] = (flipped[200] ?? 0) ^ 1;
    const cases: readonly (readonly [name: string, bytes: Buffer, message: RegExp])[] = [
      ['cut', whole.subarray(0, -1), /cut short/],
      ['changed', flipped, /changed or damaged/],
      ['text', Buffer.from('dear diary'), /is not an archive/],
      ['empty', Buffer.alloc(0), /is not an archive/],
      ['json', Buffer.from('{"some": "json"}'), /no export/],
    ];
    for (const [name, bytes, message] of cases) {
      await writeFile(join(folder, name), bytes);
      const terminal = fakeTerminal({ answers: [at.phrase] });
      const refused = await refusal(importVault(context(terminal), { file: join(folder, name) }));
      t.match(refused, { exitCode: EXIT.untrusted, message }, name);
    }
    const others = fakeTerminal({ answers: [drawPhrase(nodeSodium)] });
    t.match(await refusal(importVault(context(others), { file })), {
      exitCode: EXIT.untrusted,
      message: /other words/,
    });
    t.match(await refusal(importVault(context(others), { file: join(folder, 'none') })), { message: /does not exist/ });

    const foreign = await filled(t);
    const terminal = fakeTerminal({ answers: [at.phrase] });
    t.match(await refusal(importVault(foreign.context(terminal), { file })), {
      exitCode: EXIT.untrusted,
      message: /another vault/,
      hint: /--foreign/,
    });
    t.equal(calls(), before, 'nothing was sent');
    t.equal((await device.list()).length, 2);
    const taken = fakeTerminal({ answers: [at.phrase] });
    t.equal(await importVault(foreign.context(taken), { file, foreign: true }), EXIT.ok);
    t.equal((await foreign.client.device.list()).length, 4);
  },
);
