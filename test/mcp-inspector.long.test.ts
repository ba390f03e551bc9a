/** The inspector's command line with every tool of the companion. */
import t from 'tap';
import { note } from './support/client-world.js';
import { inspector, machine } from './support/mcp-process.js';

t.setTimeout(600_000);

t.test("MCP-65: the inspector's command line lists and calls the tools", async (t) => {
  const { all, at } = await machine(t);
  const { id } = await all.first.device.put(note('seen by the inspector'));
  const inspect = await inspector(t, at);
  t.match(await inspect('--method', 'tools/list'), {
    tools: [{ name: 'sb_put_item' }, { name: 'sb_list_items' }, { name: 'sb_search' }, { name: 'sb_delete_item' }],
  });
  const tool = (name: string, ...args: string[]): Promise<Record<string, unknown>> =>
    inspect('--method', 'tools/call', '--tool-name', name, ...args.flatMap((arg) => ['--tool-arg', arg]));
  t.match(await tool('sb_list_items', 'limit=5'), { structuredContent: { items: [{ id }] } });
  const put = await tool('sb_put_item', 'bin=inbox', 'payload={"text":"by the inspector"}');
  t.match(put, { structuredContent: { type: 'text' } });
  t.match(await tool('sb_search', 'query=by the inspector'), { structuredContent: { total: 2 } });
  t.match(await tool('sb_delete_item', `id=${id}`), { structuredContent: { id, deleted: true } });
});
