/** Lists and searches page by page: what is on a page, how large it is, and that nothing is lost between pages. */
import fc from 'fast-check';
import t from 'tap';
import type { ItemView } from '../src/sdk/events.js';
import { ulid } from '../src/sdk/ulid.js';
import { BinScope } from '../src/mcp/bin-scope.js';
import { McpError } from '../src/mcp/errors.js';
import { Page } from '../src/mcp/page.js';
import { firstOf, lastOf } from '../src/mcp/schemas.js';
import { PAGE_MAX, Sheet } from '../src/mcp/shown.js';
import type { Card } from '../src/mcp/vault-store.js';
import { note, world } from './support/client-world.js';
import { companion, paired, type Listing } from './support/mcp.js';

const bins = new BinScope(null).of([]);
const card = (number: number, ts: number): Card =>
  ({
    id: ulid(number, (length) => new Uint8Array(length)),
    ts,
    type: 'text',
    binId: 'inbox',
    provenBin: 'inbox',
  }) as Card;

t.test('MCP-91: an item that is there from the first page to the last is given once, whatever changes', (t) => {
  const change = fc.record({ number: fc.nat(60), ts: fc.nat(8), comes: fc.boolean() });
  fc.assert(
    fc.property(
      fc.array(fc.nat(8), { maxLength: 40 }),
      fc.array(fc.array(change, { maxLength: 6 }), { maxLength: 12 }),
      fc.integer({ min: 1, max: 5 }),
      (written, changes, limit) => {
        const there = new Map(written.map((ts, number) => [number, card(number, ts)]));
        const stays = new Set(there.keys());
        const given: string[] = [];
        let cursor: string | undefined;
        for (let round = 0; ; round++) {
          const page = new Page(bins, { limit, ...(cursor === undefined ? {} : { cursor }) });
          for (const each of there.values()) if (page.fits(each)) page.offer(each);
          given.push(...page.cards.map(({ id }) => id));
          const { left, nextCursor } = page.after(page.cards.length);
          if (page.cards.length > limit || (nextCursor === null) !== (left === 0)) throw new Error('a page too large');
          if (nextCursor === null) break;
          cursor = nextCursor;
          for (const { number, ts, comes } of changes[round] ?? []) {
            if (!comes) there.delete(number);
            else if (!there.has(number)) there.set(number, card(number, ts));
            else continue;
            stays.delete(number);
          }
        }
        // An item that was deleted and written again, with an older time, may be given again.
        const times = [...stays].map((number) => given.filter((id) => id === card(number, 0).id).length);
        if (times.some((each) => each !== 1)) throw new Error(`given ${times.join(', ')} times`);
      },
    ),
  );
  t.end();
});

t.test('MCP-91: a cursor is refused with other arguments, and with any character added, removed or changed', (t) => {
  const asked = { query: 'tax', type: 'text', since: '2026-03-01', limit: 1 } as const;
  const page = new Page(bins, asked);
  for (const each of [card(1, firstOf('2026-03-02')), card(2, firstOf('2026-03-03'))]) page.offer(each);
  const { nextCursor } = page.after(1);
  const cursor = nextCursor ?? '';
  t.doesNotThrow(
    () => new Page(bins, { ...asked, cursor, limit: 200, query: ' TAX ', since: '2026-03-01T01:00+01:00' }),
  );
  const refused = (others: object): void =>
    void t.throws(
      () => new Page(bins, { ...asked, cursor, ...others }),
      { code: 'bad_cursor' },
      JSON.stringify(others),
    );
  refused({ query: 'rent' });
  refused({ query: undefined });
  refused({ type: undefined });
  refused({ type: 'link' });
  refused({ since: undefined });
  refused({ until: '2026-03-31' });
  refused({ id: card(1, 0).id });
  for (let at = 0; at < cursor.length; at++) {
    refused({ cursor: cursor.slice(0, at) + (cursor[at] === 'A' ? 'B' : 'A') + cursor.slice(at + 1) });
    refused({ cursor: cursor.slice(0, at) + cursor.slice(at + 1) });
    refused({ cursor: `${cursor.slice(0, at)} ${cursor.slice(at)}` });
  }
  refused({ cursor: `${cursor}=` });
  refused({ cursor: '\u0000' });
  fc.assert(
    fc.property(fc.string({ maxLength: 200, unit: 'binary' }), (text) => {
      t.throws(() => new Page(bins, { limit: 1, cursor: text }), McpError);
    }),
  );
  t.end();
});

t.test('MCP-91 MCP-95: lists and searches are paged across restarts, and filtered by type and time', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  await device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  const ids: string[] = [];
  for (let day = 1; day <= 9; day++) {
    const ts = Date.parse(`2026-03-0${day}T12:00:00Z`);
    const payload = day % 2 === 0 ? { url: `https://example.org/tax/${day}` } : { text: `tax ${day}` };
    ids.unshift((await device.put({ binId: 'inbox', type: day % 2 === 0 ? 'link' : 'text', payload, ts })).id);
  }
  let one = await companion(t, { identity: second.identity() });
  for (const name of ['sb_list_items', 'sb_search']) {
    const ask = (args: object): Promise<Listing> =>
      one.call(name, name === 'sb_search' ? { query: 'tax', ...args } : args);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const { items, total, nextCursor } = await ask({ limit: 4, ...(cursor === null ? {} : { cursor }) });
      t.equal(total, 9);
      seen.push(...items.map(({ id }) => id));
      cursor = nextCursor;
      await one.vault.close();
      one = await companion(t, { identity: second.identity() });
    } while (cursor !== null);
    t.same(seen, ids, name);
    const only = async (args: object): Promise<string[]> => (await ask(args)).items.map(({ id }) => id);
    t.same(await only({ type: 'link' }), [ids[1], ids[3], ids[5], ids[7]]);
    t.same(await only({ since: '2026-03-03', until: '2026-03-04' }), [ids[5], ids[6]], 'a date counts to its end');
    t.same(await only({ until: '2026-03-02T12:00:00Z' }), [ids[7], ids[8]], 'until includes its time');
    t.same(await only({ until: '2026-03-02T11:59:59' }), [ids[8]], 'a time without a zone is UTC');
    t.match(await ask({ since: '2027-01-01' }), { total: 0, nextCursor: null, notes: [/call sb_/] });
  }
  t.equal(lastOf('2026-03-01') - firstOf('2026-03-01'), 86_399_999);
  t.match(await one.list({ id: ids[3], type: 'link' }), { total: 1, items: [{ id: ids[3] }] });
  t.match(await one.refused('sb_list_items', { id: ids[3], type: 'text' }), { code: 'item_not_found' });
});

t.test('MCP-94: a page is bounded in items and characters, and its first item is never cut', (t) => {
  const view = (payload: Record<string, unknown>): ItemView =>
    ({
      id: card(1, 0).id,
      version: 1,
      binId: 'inbox',
      type: 'text',
      ts: 1,
      payload,
      blob: null,
    }) as unknown as ItemView;
  const fields = Object.fromEntries(Array.from({ length: 6_000 }, (_, at) => [`f${at}`, 1]));
  const full = (payload: Record<string, unknown>): { readonly count: number; readonly size: number } => {
    const sheet = new Sheet(bins, false);
    let count = 0;
    while (count < 1_000 && sheet.add(view(payload))) count++;
    return { count, size: JSON.stringify(sheet.output(new Map())).length };
  };
  for (const [payload, least] of [
    [fields, 1],
    [{ text: 'x'.repeat(64_000) }, 20],
    [{ text: 'x'.repeat(1_000) }, 60],
    [{ text: '\ud800'.repeat(10_000) }, 5],
    [{ text: 'short' }, 300],
  ] as const) {
    const { count, size } = full(payload);
    t.ok(size < PAGE_MAX + 2_000, `${size} characters`);
    t.ok(count >= least, `${count} items`);
  }
  const odd = Object.fromEntries(Array.from({ length: 9_000 }, (_, at) => [`f${at}`, 1]));
  const sheet = new Sheet(bins, false);
  sheet.add({ ...view({ service: 'mail', ...odd }), type: 'password' });
  const [item] = sheet.output(new Map());
  t.ok(JSON.stringify(item).length < 2_000, 'a withheld password with thousands of fields is short');
  t.match(item, { payload: { service: 'mail', f0: '********' } });
  t.equal(full({ text: 'x'.repeat(150_000) }).count, 1, 'the first item is never cut, and fills the page');
  t.end();
});

t.test('MCP-94: pages of long items end by size, and miss none', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const { device } = all.first;
  const put = Array.from({ length: 150 }, (_, at) => device.put(note(`${at} ${'long '.repeat(200)}`)));
  const ids = new Set((await Promise.all(put)).map(({ id }) => id));
  let pages = 0;
  let cursor: string | null = null;
  do {
    const args = { limit: 200, ...(cursor === null ? {} : { cursor }) };
    const page: Listing = await agent.call('sb_list_items', args);
    t.ok(JSON.stringify(page.items).length <= PAGE_MAX + 1_000);
    for (const { id } of page.items) t.ok(ids.delete(id));
    cursor = page.nextCursor;
    pages++;
  } while (cursor !== null);
  t.equal(ids.size, 0);
  t.ok(pages > 1);
});

t.test('MCP-96: a text with half a surrogate pair makes no answer unreadable', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  await agent.put('inbox', { text: 'half \ud83d of a pair' });
  const { items } = await agent.list();
  t.equal(items[0]?.payload?.['text'], 'half \ufffd of a pair');
  const raw = JSON.stringify(await agent.raw('sb_search', { query: 'half' }));
  t.notMatch(raw, /(?<!\\)(?:\\\\)*\\ud[89a-f]/i, 'the answer escapes no lone surrogate, which strict parsers refuse');
});
