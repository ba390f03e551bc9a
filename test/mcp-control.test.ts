/** What a person allows agents, and the record of their calls (issue of the companion, "A person stays in control"). */
import { readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { Audit, AUDIT_KEPT, AUDIT_MAX, auditPath, type AuditEntry } from '../src/mcp/audit.js';
import { McpError } from '../src/mcp/errors.js';
import { pathsOf } from '../src/mcp/context.js';
import { readPolicy } from '../src/mcp/policy.js';
import { DAY_MS } from './support/accounts.js';
import { note, refusal, wiretap, world } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { companion, paired, textOf } from './support/mcp.js';
import { temporaryFolder } from './support/postgres.js';

t.test('MCP-50: the allow list applies to reading, searching, writing and deleting', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  await device.bins.create('01work', { name: 'Work' }, 'work');
  await device.bins.create('private', { name: 'Private' });
  const own = await device.put({ ...note('a plan'), binId: '01work' });
  const hidden = await device.put({ ...note('a secret plan'), binId: 'private' });
  const agent = await paired(t, all, { SERVICE_BINS: 'work, gone' });
  const listed = await agent.list();
  t.match(listed.items, [{ id: own.id, bin: '01work', binSlug: 'work' }]);
  t.match(listed.notes, [/no bin, or several, for gone/]);
  t.match((await agent.search('plan')).items, [{ id: own.id }]);
  for (const bin of ['private', 'inbox', 'nowhere']) {
    t.match(await agent.refused('sb_list_items', { bin }), {
      code: 'bin_not_allowed',
      hint: 'Bins: "Work" (work).',
    });
    t.match(await agent.refused('sb_search', { query: 'plan', bin }), { code: 'bin_not_allowed' });
    t.match(await agent.refused('sb_put_item', { bin, payload: { text: 'x' } }), { code: 'bin_not_allowed' });
  }
  const unknown = await agent.refused('sb_delete_item', { id: hidden.id });
  t.equal(unknown.code, 'item_not_found', 'the answer does not reveal that the item exists');
  await agent.put('work', { text: 'by slug' });
  await agent.put('01work', { text: 'by id' });
  await agent.call('sb_delete_item', { id: own.id });
  t.equal((await agent.list({ bin: '01work' })).total, 2);
  await device.pull();
  t.ok(await device.get(hidden.id));
});

t.test('MCP-50: an allowed slug keeps naming the same bin, whatever the server reports later', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  await device.bins.create('open', { name: 'Open' });
  await device.bins.create('private', { name: 'Private' });
  await device.put({ ...note('for agents'), binId: 'open' });
  const { id } = await device.put({ ...note('for nobody else'), binId: 'private' });
  await device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  const agent = await companion(t, {
    identity: second.identity(),
    platform: second.tap.platform,
    env: { SERVICE_BINS: 'open' },
  });
  t.equal((await agent.list()).total, 1);
  second.tap.alterReply = ({ path }, answer) => {
    if (path !== '/bins') return undefined;
    const bins = (answer['bins'] as Record<string, unknown>[]).filter((bin) => bin['id'] !== 'open');
    return { bins: bins.map((bin) => (bin['id'] === 'private' ? { ...bin, slug: 'open' } : bin)) };
  };
  const { items } = await agent.list({ bin: 'open' });
  t.notOk(items.some((item) => item.id === id));
  t.equal((await agent.refused('sb_delete_item', { id })).code, 'item_not_found');
});

t.test('MCP-51: with SERVICE_READ_ONLY the tools that write are not offered, and are refused', async (t) => {
  const all = await world(t);
  const { id } = await all.first.device.put(note('stays'));
  const agent = await paired(t, all, { SERVICE_READ_ONLY: '1' });
  const { tools } = await agent.client.listTools();
  t.same(
    tools.map(({ name }) => name),
    ['sb_list_items', 'sb_search'],
  );
  t.match(await agent.refused('sb_put_item', { bin: 'inbox', payload: { text: 'x' } }), { code: 'read_only' });
  t.match(await agent.refused('sb_delete_item', { id }), { code: 'read_only' });
  t.match(await agent.list(), { total: 1, items: [{ id }] });
});

t.test('MCP-52: with SERVICE_REDACT_SECRETS secrets are withheld even where the pairing allows them', async (t) => {
  const all = await world(t);
  const payload = { service: 'mail', user: 'me', secret: 'hunter2 of the test' };
  await all.first.device.put({ binId: 'inbox', type: 'password', payload });
  const agent = await paired(t, all, { SERVICE_REDACT_SECRETS: 'true' }, true);
  for (const name of ['sb_list_items', 'sb_search']) {
    const result = await agent.raw(name, name === 'sb_search' ? { query: 'mail' } : {});
    t.match(result.structuredContent, { items: [{ payload: { service: 'mail', user: 'me' }, redacted: ['secret'] }] });
    t.notMatch(JSON.stringify(result), /hunter2/);
    t.match(textOf(result), /withheld: secret/);
  }
});

t.test('MCP-46: an allowed secret is shown, and is never searched', async (t) => {
  const all = await world(t);
  const payload = { service: 'mail', user: 'me', secret: 'hunter2' };
  await all.first.device.put({ binId: 'inbox', type: 'password', payload });
  const agent = await paired(t, all, {}, true);
  t.match((await agent.list()).items, [{ payload }]);
  t.same((await agent.list()).notes, []);
  t.equal((await agent.search('mail')).total, 1);
  t.equal((await agent.search('hunter2')).total, 0);
});

t.test('MCP-53: an invalid setting is refused, and never counts as unset', async (t) => {
  const refused = async (env: Parameters<typeof readPolicy>[0]): Promise<unknown> =>
    (await refusal(Promise.resolve().then(() => readPolicy(env)))) instanceof McpError;
  for (const env of [
    { SERVICE_READ_ONLY: 'ture' },
    { SERVICE_REDACT_SECRETS: '2' },
    { SERVICE_BINS: ' , ' },
    { SERVICE_BINS: 'work;private' },
  ])
    t.ok(await refused(env), JSON.stringify(env));
  t.same(readPolicy({ SERVICE_BINS: '', SERVICE_READ_ONLY: '0' }), { bins: null, readOnly: false, redact: false });
  t.same(readPolicy({ SERVICE_BINS: 'a,b, a' }).bins, ['a', 'b']);
});

t.test('MCP-54: each call is recorded with time, tool, bin, ids and outcome, without payload and query', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  const folder = await temporaryFolder(t);
  const clock = new TestClock(Date.parse('2031-05-06T07:08:09.123Z'));
  const context = {
    paths: pathsOf({ HOME: folder, XDG_CONFIG_HOME: folder }),
    platform: wiretap(clock).platform,
    note: (text: string) => t.fail(text),
  };
  const audit = await Audit.open(context);
  const record = (entry: AuditEntry): void => audit.write(entry);
  const agent = await companion(t, { identity: second.identity(), record });
  const { id } = await agent.put('inbox', { text: 'unspeakable' });
  clock.advance(1_000);
  await agent.search('unspeakable', { bin: 'inbox' });
  clock.advance(60_000);
  await agent.refused('sb_list_items', { bin: 'nowhere' });
  await agent.refused('sb_put_item', { bin: 'inbox', payload: { unspeakable: 1 } });
  clock.advance(DAY_MS);
  await agent.call('sb_delete_item', { id });
  const text = await readFile(auditPath(context), 'utf8');
  const lines = text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  t.strictSame(
    lines.map(({ ms, ...line }) => ({ ...line, ms: typeof ms })),
    [
      { time: '2031-05-06T07:08:09.123Z', tool: 'sb_put_item', bin: 'inbox', ids: [id], outcome: 'ok' },
      { time: '2031-05-06T07:08:10.123Z', tool: 'sb_search', bin: 'inbox', ids: [id], outcome: 'ok' },
      { time: '2031-05-06T07:09:10.123Z', tool: 'sb_list_items', bin: 'nowhere', ids: [], outcome: 'bin_not_found' },
      { time: '2031-05-06T07:09:10.123Z', tool: 'sb_put_item', bin: 'inbox', ids: [], outcome: 'bad_payload' },
      { time: '2031-05-07T07:09:10.123Z', tool: 'sb_delete_item', bin: null, ids: [id], outcome: 'ok' },
    ].map((line) => ({ ...line, ms: 'number' })),
    'and with nothing else but how long it took',
  );
  t.notMatch(text, /unspeakable/);
});

t.test('MCP-55: the record is readable by its owner alone, follows no link, and is bounded in size', async (t) => {
  const folder = await temporaryFolder(t);
  const notes: string[] = [];
  const context = {
    paths: pathsOf({ HOME: folder, XDG_CONFIG_HOME: folder }),
    platform: { ...wiretap().platform, sodium: nodeSodium },
    note: (text: string): void => void notes.push(text),
  };
  const audit = await Audit.open(context);
  const path = auditPath(context);
  const entry = { tool: 'sb_search', bin: null, ids: ['not an id'], outcome: 'ok', ms: 1.5 } as const;
  audit.write({ ...entry, bin: 'a "bin"\nwith lines' });
  const [line = ''] = (await readFile(path, 'utf8')).split('\n');
  t.match(JSON.parse(line), { tool: 'sb_search', bin: '?', ids: [], outcome: 'ok', ms: 2 });
  t.equal((await stat(path)).mode & 0o777, 0o600);
  for (let at = 0; at < AUDIT_KEPT + 2; at++) {
    await writeFile(path, 'x'.repeat(AUDIT_MAX));
    audit.write(entry);
  }
  t.ok((await stat(path)).size < 1_000);
  for (let at = 1; at <= AUDIT_KEPT; at++) t.equal((await stat(`${path}.${at}`)).size, AUDIT_MAX);
  await t.rejects(stat(`${path}.${AUDIT_KEPT + 1}`), { code: 'ENOENT' });
  const linked = pathsOf({ HOME: folder, XDG_CONFIG_HOME: `${folder}/linked` });
  await Audit.open({ ...context, paths: linked });
  await rm(auditPath({ paths: linked }));
  const target = `${folder}/target`;
  await writeFile(target, '');
  await symlink(target, auditPath({ paths: linked }));
  t.match(await refusal(Audit.open({ ...context, paths: linked })), { code: 'disk' });
  t.equal((await stat(target)).size, 0);
});
