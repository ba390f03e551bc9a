/** Agents see the secret of a password nowhere, unless their user allowed it. */
import { readFile, truncate } from 'node:fs/promises';
import t from 'tap';
import { auditPath } from '../src/mcp/audit.js';
import { savePasswords, loadPairing } from '../src/mcp/config-file.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { ItemView } from '../src/sdk/events.js';
import { BinScope } from '../src/mcp/bin-scope.js';
import { Sheet } from '../src/mcp/shown.js';
import { note, world, type World } from './support/client-world.js';
import { desk, type Desk, type DeskOptions } from './support/mcp-desk.js';
import { paired, textOf, type Listing } from './support/mcp.js';
import { home, started } from './support/mcp-process.js';

t.setTimeout(600_000);

const SECRET = 'xk7-unspeakable-93';
const payload = { service: 'mail', user: 'me', secret: SECRET };

t.test('MCP-83: no answer contains the secret of a password, and withheld content is marked', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  const { id } = await device.put({ binId: 'inbox', type: 'password', payload });
  const large = { service: 'large', user: '', secret: SECRET.repeat(5_000) };
  const big = await device.put({ binId: 'inbox', type: 'password', payload: large });
  await device.put(note('mail of another kind'));
  const agent = await paired(t, all);
  const answers: string[] = [];
  const asked = async (name: string, args: object): Promise<Listing> => {
    const result = await agent.raw(name, args);
    answers.push(JSON.stringify(result));
    return result.structuredContent as unknown as Listing;
  };
  const listed = await asked('sb_list_items', {});
  const withheld = listed.items.filter(({ redacted }) => redacted !== undefined);
  t.same(withheld.map((item) => item.id).sort(), [id, big.id].sort());
  t.match(withheld, [{ redacted: ['secret'] }, { redacted: ['secret'], payload: { service: 'mail', user: 'me' } }]);
  t.notOk(
    withheld.some(({ blob }) => blob !== undefined),
    'nor is the URL of a large password shown',
  );
  t.match(listed.notes, [/Secrets of passwords are withheld/]);
  t.match((await asked('sb_search', { query: 'mail' })).items.length, 2);
  // A secret that can be searched can be guessed, one character after the other.
  for (const query of [SECRET, SECRET.slice(0, 3), 'UNSPEAKABLE', '7-u', '-93'])
    t.equal((await asked('sb_search', { query })).total, 0, query);
  await asked('sb_put_item', { bin: 'inbox', type: 'password', payload });
  await asked('sb_put_item', { bin: 'inbox', payload: { secret: SECRET } });
  await asked('sb_put_item', { bin: 'inbox', type: 'password', payload: { ...payload, more: SECRET } });
  await asked('sb_put_item', { bin: 'nowhere', type: 'password', payload });
  await asked('sb_put_item', { bin: 'inbox', type: 'password', payload: { secret: { deep: SECRET } } });
  await asked('sb_delete_item', { id });
  await asked('sb_delete_item', { id: SECRET });
  await asked('sb_list_items', { bin: 'inbox', limit: 200 });
  for (const answer of answers) t.notOk(answer.includes('unspeakable'), answer.slice(0, 200));
  t.notMatch(JSON.stringify(agent.audit), /unspeakable/);
  t.notMatch(agent.notes.join(), /unspeakable/);
});

t.test(
  'MCP-84: of a withheld password only service and user are shown, whatever fields another program put',
  async (t) => {
    const all = await world(t);
    const agent = await paired(t, all);
    t.match(
      await agent.refused('sb_put_item', { bin: 'inbox', type: 'password', payload: { secret: '********' } }),
      { code: 'bad_payload' },
      'the placeholder of a secret is not accepted as a secret',
    );
    const foreign = {
      service: 'mail',
      user: 'me',
      secret: '',
      notes: SECRET,
      Secret: SECRET,
      deep: { secret: SECRET },
    };
    const item = { id: '01ARZ3NDEKTSV4RRFFQ69G5FB1', version: 1, binId: 'inbox', ts: 1, blob: null };
    const sheet = new Sheet(new BinScope(null).of([]), false);
    sheet.add({ ...item, type: 'password', payload: foreign } as unknown as ItemView);
    t.match(sheet.output(new Map()), [{ payload: { service: 'mail', user: 'me', secret: '********' } }]);
    t.same(
      sheet.output(new Map())[0]?.redacted,
      ['secret', 'notes', 'Secret', 'deep'],
      'also where the secret is empty',
    );
    t.notMatch(JSON.stringify(sheet.output(new Map())), /unspeakable/);
  },
);

t.test('MCP-85: the choice applies to a running server from its next answer on', async (t) => {
  const all = await world(t);
  await all.first.device.put({ binId: 'inbox', type: 'password', payload });
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  const at = await home(t, second.identity());
  const { client, errors } = await started(t, at);
  const keeper = { paths: at.paths, note: () => undefined, platform: { sodium: nodeSodium } };
  const list = async (): Promise<string> =>
    textOf((await client.callTool({ name: 'sb_list_items', arguments: {} })) as Parameters<typeof textOf>[0]);
  t.notMatch(await list(), SECRET, 'a pairing without a choice withholds passwords');
  await savePasswords(keeper, true);
  t.match(await list(), SECRET);
  await savePasswords(keeper, false);
  t.notMatch(await list(), SECRET);
  await savePasswords(keeper, true);
  await truncate(at.paths.configPath, 100);
  t.notMatch(await list(), SECRET, 'a pairing that does not open allows nothing');
  t.notMatch((await readFile(auditPath(at), 'utf8')) + errors(), /unspeakable/);
  t.match(errors(), /passwords withheld/);
});

t.test('MCP-90: pair asks whether agents may read passwords; anything but a yes is a no', async (t) => {
  const all: World = await world(t);
  await all.first.device.connect();
  const pairs = async (extra: readonly string[], options: DeskOptions): Promise<Desk> => {
    const one = await desk(t);
    const { words, joined } = await all.first.device.offerPairing(() => true);
    const outcome = await one.call(['pair', '--host', all.url, '--code', words, ...extra], options);
    t.equal(outcome.code, 0, outcome.notes);
    await joined;
    const asked = outcome.questions.filter(({ text }) => text.startsWith('May agents read'));
    t.equal(asked.length, options.answers !== undefined && extra.length === 0 ? 1 : 0);
    const allowed = (await loadPairing(one.keeper)).passwords;
    t.match(outcome.out, allowed ? /Agents may read the secrets/ : /are withheld from agents/);
    return one;
  };
  const allows = async (one: Desk): Promise<boolean> => (await loadPairing(one.keeper)).passwords;
  for (const [answer, expected] of [
    ['y', true],
    [' YES ', true],
    ['', false],
    ['n', false],
    ['yess', false],
    ['why?', false],
  ] as const)
    t.equal(await allows(await pairs([], { answers: [[/^May agents read/, answer]] })), expected, answer);
  t.equal(await allows(await pairs([], {})), false, 'with nobody to ask the answer is no');
  t.equal(await allows(await pairs(['--passwords', 'withhold'], { answers: [] })), false);
  const one = await pairs(['--passwords', 'allow'], {});
  t.equal(await allows(one), true);
  t.match(await one.call(['passwords']), { code: 0, out: /may read/ });
  t.match(JSON.parse((await one.call(['status', '--json'])).out), { passwords: true });
  t.match(await one.call(['passwords', 'withhold']), { code: 0, out: /withheld/ });
  t.equal(await allows(one), false);
  t.match((await one.call(['status'])).out, /Passwords: +withheld from agents/);
  for (const odd of [
    ['passwords', 'yes'],
    ['passwords', 'allow', 'withhold'],
    ['passwords', '--allow'],
    ['pair', '--passwords', '1'],
  ])
    t.match(await one.call(odd), { code: 2 });
  t.equal(await allows(one), false);
  t.match(await (await desk(t)).call(['passwords']), { code: 3, notes: /not_paired/ });
});
