/** What a tool answers when something is wrong: a code and what to do, with nothing lost and no crash. */
import t, { type Test } from 'tap';
import type { Identity } from '../src/sdk/identity.js';
import type { Platform } from '../src/sdk/platform.js';
import { mcpPlatform } from '../src/mcp/context.js';
import { Liar } from './liar/proxy.js';
import { note, shows, world } from './support/client-world.js';
import { companion } from './support/mcp.js';

/** A world whose second device is the companion's. */
async function paired(t: Test) {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  return { all, identity: second.identity() };
}

/** The same, where the companion reaches the server only through a liar. */
async function behindLiar(t: Test) {
  const { all, identity } = await paired(t);
  const liar = await Liar.before(t, all.server.port);
  return { all, liar, identity: { ...identity, serverUrl: liar.url } };
}

const text = (of: string) => ({ bin: 'inbox', payload: { text: of } });

t.test('MCP-66: on a revoked machine every tool answers revoked, and how to pair again', async (t) => {
  const { all, identity } = await paired(t);
  const { id } = await all.first.device.put(note('kept from it'));
  const agent = await companion(t, { identity });
  await agent.list();
  await all.first.device.revoke(identity.deviceId);
  for (const [name, args] of [
    ['sb_list_items', {}],
    ['sb_search', { query: 'kept' }],
    ['sb_put_item', text('x')],
    ['sb_delete_item', { id }],
  ] as const)
    t.match(await agent.refused(name, args), { code: 'revoked', hint: /service-mcp pair --force/ }, name);
});

t.test('MCP-67: while the server is away the tools say so, and when it is back they work again', async (t) => {
  const { all, liar, identity } = await behindLiar(t);
  const platform = { ...(await mcpPlatform()), random: () => 0 };
  const agent = await companion(t, { identity, platform });
  const { id } = await all.first.device.put(note('from before'));
  t.match(await agent.list(), { total: 1 });
  liar.raw = () => ({ status: 503, body: '{"error":{"code":"unavailable","message":"no"}}' });
  t.match(await agent.refused('sb_list_items'), { code: 'server_trouble' });
  t.match(await agent.refused('sb_put_item', text('x')), { code: 'server_trouble' });
  t.match(await agent.refused('sb_search', { query: 'before' }), { code: 'server_trouble' });
  liar.honest();
  t.match(await agent.list(), { total: 1, complete: true, items: [{ id }] });
  const put = await agent.put('inbox', { text: 'again' });
  t.match(await shows(all.first, put.id), { payload: { text: 'again' } });
});

t.test('MCP-68: a put whose answer was lost is kept, sent again, and made once', async (t) => {
  const { all, liar, identity } = await behindLiar(t);
  const platform = { ...(await mcpPlatform()), random: () => 0 };
  const agent = await companion(t, { identity, platform });
  liar.raw = ({ path }) => (path === '/items' ? { status: 502, body: 'a proxy' } : undefined);
  const refused = await agent.refused('sb_put_item', text('sent later'));
  t.match(refused, { code: 'queued', hint: /Do not call again/ });
  const [, id = ''] = /change of item (\w{26})/.exec(refused.message) ?? [];
  t.match((await agent.list()).notes, [/^1 change is waiting for the server to be back/]);
  liar.honest();
  await agent.list();
  t.match(await shows(all.first, id), { payload: { text: 'sent later' } });
  t.match(await agent.list(), { total: 1, items: [{ id }] });
});

t.test('MCP-69: a rate limit is waited for as the server says', async (t) => {
  const { all, liar, identity } = await behindLiar(t);
  const base = await mcpPlatform();
  const waits: number[] = [];
  const clock = {
    ...base.clock,
    setTimer: (ms: number, fn: () => void) => {
      waits.push(ms);
      return base.clock.setTimer(ms === 7_000 ? 0 : ms, fn);
    },
  };
  const agent = await companion(t, { identity, platform: { ...base, clock } });
  let refusals = 2;
  liar.raw = ({ path, method }) =>
    method === 'POST' && path === '/items' && refusals-- > 0
      ? {
          status: 429,
          headers: { 'retry-after': '7' },
          body: '{"error":{"code":"rate_limited","message":"slow down"}}',
        }
      : undefined;
  const { id } = await agent.put('inbox', { text: 'patient' });
  t.equal(waits.filter((ms) => ms === 7_000).length, 2);
  await shows(all.first, id);
});

t.test('MCP-70: the companion polls, opens no socket, and concurrent calls share readings', async (t) => {
  const { all, liar, identity } = await behindLiar(t);
  const agent = await companion(t, { identity });
  await agent.list();
  liar.calls.length = 0;
  const both = await Promise.all(Array.from({ length: 10 }, () => agent.list()));
  t.equal(both.length, 10);
  const listings = liar.calls.filter(({ path }) => path.startsWith('/items?'));
  t.ok(listings.length <= 2, `${listings.length} readings for ten calls`);
  t.same(liar.upgrades, []);
  t.notOk(liar.calls.some(({ path }) => path.startsWith('/ws')));
  const { id } = await all.first.device.put(note('just now'));
  t.match((await agent.list()).items, [{ id }], 'each call sees what was there before it');
});

t.test('MCP-71: an expiring token is renewed by the device key, and kept', async (t) => {
  const { identity } = await paired(t);
  const kept: Identity[] = [];
  const agent = await companion(t, {
    identity: { ...identity, token: { text: identity.token.text, expiresAt: Date.now() + 60_000 } },
    keep: (renewed) => Promise.resolve(kept.push(renewed)),
  });
  await agent.list();
  await agent.list();
  t.equal(kept.length, 1);
  t.not(kept[0]?.token.text, identity.token.text);
  t.ok((kept[0]?.token.expiresAt ?? 0) > Date.now() + 86_400_000);
});

/** A platform whose server has another history from now on: the same one under another epoch, without one item. */
function another(base: Platform, lost: { readonly id: string; readonly version: number }): Platform {
  const fetchOf: Platform['fetch'] = async (url, init) => {
    const at = new URL(url);
    const known = at.searchParams.get('epoch') === 'another';
    if (at.pathname === '/api/items' && init.method === 'GET') {
      at.searchParams.delete('epoch');
      if (!known) at.searchParams.set('since', '0');
    }
    const response = await fetch(at, init);
    if (at.pathname !== '/api/items' && at.pathname !== '/api/me') return response;
    const truth = (await response.json()) as { items?: { id: string }[]; server?: Record<string, number> };
    const { itemCount = 0, versionSum = 0 } = truth.server ?? {};
    const less = { itemCount: itemCount - 1, versionSum: versionSum - lost.version, epoch: 'another' };
    const told =
      truth.items === undefined
        ? { ...truth, server: { ...truth.server, ...less } }
        : { ...truth, items: truth.items.filter(({ id }) => id !== lost.id), epoch: 'another', reset: !known };
    return new Response(JSON.stringify(told), { headers: response.headers });
  };
  return { ...base, fetch: (url, init) => (init.method === 'GET' ? fetchOf(url, init) : fetch(url, init)) };
}

t.test('MCP-72: after a change of epoch everything is read again, and items of the old history say so', async (t) => {
  const { all, identity } = await paired(t);
  const lost = await all.first.device.put(note('in the old history only'));
  const { id } = await all.first.device.put(note('in both'));
  const base = await mcpPlatform();
  let now = base;
  const platform: Platform = { ...base, fetch: (url, init) => now.fetch(url, init) };
  const agent = await companion(t, { identity, platform });
  t.match(await agent.list(), { total: 2, complete: true, notes: [] });
  now = another(base, lost);
  const { items, notes, complete } = await agent.list();
  t.equal(complete, true);
  t.match(items, [{ id }, { id: lost.id, version: 0, onServer: false, payload: { text: 'in the old history only' } }]);
  t.ok(notes.some((each) => each.includes('history was replaced')));
  t.notOk(
    (await agent.list()).notes.some((each) => each.includes('replaced')),
    'the change of history is reported once',
  );
});
