/** The companion's in-memory copy, compared with the client's own store, and the completeness of its pages. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import t from 'tap';
import { z } from 'zod';
import { ItemReader } from '../src/sdk/item-reader.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { ERRORS } from '../src/mcp/errors.js';
import { BinScope } from '../src/mcp/bin-scope.js';
import { Page } from '../src/mcp/page.js';
import * as schemas from '../src/mcp/schemas.js';
import { VaultStore, type Card } from '../src/mcp/vault-store.js';
import { PROJECT_ROOT } from '../src/root.js';
import { anyBatch, stateOf } from './support/stores.js';

t.test('MCP-64: after any batches the copy equals the client’s store', async (t) => {
  await fc.assert(
    fc.asyncProperty(fc.array(anyBatch, { maxLength: 12 }), async (batches) => {
      const ours = new VaultStore();
      const theirs = new MemoryStore();
      for (const batch of batches) await Promise.all([ours.apply(batch), theirs.apply(batch)]);
      t.same(await stateOf(ours), await stateOf(theirs));
    }),
    { numRuns: 60 },
  );
});

t.test('MCP-64: the bins of all items are known without decoding one', async (t) => {
  await fc.assert(
    fc.asyncProperty(fc.array(anyBatch, { maxLength: 12 }), async (batches) => {
      const ours = new VaultStore();
      for (const batch of batches) await ours.apply(batch);
      const expected = new Set<string>();
      for await (const entry of ours.entries()) if (entry.state === 'live') expected.add(entry.row.binId);
      const entries = (): never => {
        throw new Error('every item is decoded');
      };
      const reader = new ItemReader({ store: Object.assign(ours, { entries }) } as never);
      t.same([...(await reader.binIds())].sort(), [...expected].sort());
    }),
    { numRuns: 60 },
  );
});

t.test('MCP-45: the newest of many are found without sorting them', async (t) => {
  const card = (ts: number, id: string): Card => ({
    ...{ id, ts, version: 1, reason: null, binId: 'inbox', type: 'text', provenBin: 'inbox' },
  });
  await fc.assert(
    fc.asyncProperty(fc.array(fc.nat(50)), fc.integer({ min: 1, max: 8 }), async (times, most) => {
      await Promise.resolve();
      const cards = times.map((ts, at) => card(ts, String(at).padStart(4, '0')));
      const page = new Page(new BinScope(null).of([]), { limit: most });
      for (const each of cards) page.offer(each);
      const sorted = [...cards].sort((one, other) => other.ts - one.ts || (one.id < other.id ? 1 : -1));
      t.same(page.cards, sorted.slice(0, most));
      t.equal(page.total, cards.length);
    }),
  );
});

t.test('MCP-73: the README has every code, the reference every tool, argument and field', (t) => {
  const readme = readFileSync(join(PROJECT_ROOT, 'src/mcp/README.md'), 'utf8');
  for (const code of Object.keys(ERRORS)) t.match(readme, `| \`${code}\` |`, code);
  const page = readFileSync(join(PROJECT_ROOT, 'src/docs/agent-tools.md'), 'utf8');
  for (const name of ['sb_put_item', 'sb_list_items', 'sb_search', 'sb_delete_item']) t.match(page, `## \`${name}\``);
  const names = (of: unknown): string[] =>
    typeof of !== 'object' || of === null
      ? []
      : Object.entries(of).flatMap(([key, value]) => [
          ...(key === 'properties' ? Object.keys(value as object) : []),
          ...names(value),
        ]);
  for (const schema of Object.values(schemas))
    if (schema instanceof z.ZodType)
      for (const name of names(z.toJSONSchema(schema))) t.match(page, `\`${name}\``, name);
  t.end();
});
