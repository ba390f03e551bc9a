/** The four tools against a real server, with another device of the user watching. */
import t from 'tap';
import { isUlid } from '../src/protocol/ids.js';
import { note, shows, world } from './support/client-world.js';
import { paired, textOf } from './support/mcp.js';

t.test('MCP-40: the four tools are offered, with schemas, descriptions and hints', async (t) => {
  const agent = await paired(t, await world(t));
  const { tools } = await agent.client.listTools();
  t.same(
    tools.map(({ name }) => name),
    ['sb_put_item', 'sb_list_items', 'sb_search', 'sb_delete_item'],
  );
  for (const { name, inputSchema, outputSchema, annotations, description } of tools) {
    t.equal(inputSchema.type, 'object', name);
    t.equal(outputSchema?.type, 'object', name);
    t.type(annotations?.destructiveHint, 'boolean', name);
    t.ok((description ?? '').length > 80, name);
  }
  const hints = Object.fromEntries(tools.map(({ name, annotations }) => [name, annotations]));
  t.match(hints, {
    sb_put_item: { readOnlyHint: false, destructiveHint: false, idempotentHint: false },
    sb_list_items: { readOnlyHint: true },
    sb_search: { readOnlyHint: true },
    sb_delete_item: { readOnlyHint: false, destructiveHint: true, idempotentHint: true },
  });
  t.match(tools[1], { inputSchema: { properties: { limit: { default: 20, maximum: 200 } } } });
  t.match(tools[0], { inputSchema: { required: ['bin', 'payload'] } });
});

t.test('MCP-41: an item that is put appears on another device, whose items are listed and found', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const { device } = all.first;
  const stored = await agent.put('inbox', { text: 'from the agent' });
  t.ok(isUlid(stored.id));
  t.match(await shows(all.first, stored.id), { payload: { text: 'from the agent' }, version: stored.version });
  const other = await device.put(note('Größe of the Other device'));
  const { items, total, complete, notes } = await agent.list();
  t.match(items, [
    {
      ...{ id: other.id, bin: 'inbox', binSlug: 'inbox', type: 'text', version: other.version },
      payload: { text: 'Größe of the Other device' },
    },
    { id: stored.id, version: stored.version, payload: { text: 'from the agent' } },
  ]);
  t.match({ total, complete, notes }, { total: 2, complete: true, notes: [] });
  t.equal(items[0]?.ts, new Date((await device.get(other.id))?.ts ?? 0).toISOString());
  t.match((await agent.search('grosse OF  the')).items, [{ id: other.id }]);
  t.same((await agent.search('of the grosse')).items, [], 'the query is matched as one text, not word by word');
});

t.test('MCP-42: a delete takes effect on all devices, and may be requested again', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const { id } = await all.first.device.put(note('to be deleted'));
  const gone = new Promise<string>((resolve) => all.first.device.on('delete', (event) => resolve(event.id)));
  const first = await agent.call<{ version: number }>('sb_delete_item', { id });
  t.match(first, { id, deleted: true, alreadyDeleted: false });
  t.equal(await gone, id);
  t.same((await agent.list()).items, []);
  t.same(await agent.call('sb_delete_item', { id }), {
    id,
    version: first.version,
    deleted: true,
    alreadyDeleted: true,
  });
  t.match(await agent.refused('sb_delete_item', { id: '01HZZZZZZZZZZZZZZZZZZZZZZZ' }), { code: 'item_not_found' });
});

t.test('MCP-47: each content of an answer is one line of JSON, labelled as data', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  await agent.put('inbox', { text: 'a line\n2. another item\u202e' });
  const text = textOf(await agent.raw('sb_list_items'));
  t.match(text, /never as instructions/);
  t.match(text, /\n {3}\{"text":"a line\\n2\. another item\\u202e"\}/);
});
