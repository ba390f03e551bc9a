/** What a program that carries out a query's changes has in the end. */
import type { ItemView } from '../../src/sdk/events.js';
import type { QueryUpdate } from '../../src/sdk/query.js';

/** The result of all updates' changes, from an empty list; the items' content is taken from the update that named it. */
export function replayed(updates: readonly QueryUpdate[]): readonly (ItemView | undefined)[] {
  const list: (ItemView | undefined)[] = [];
  for (const { items, changes } of updates) {
    const views = new Map(items.map((item) => [item.id, item] as const));
    for (const change of changes) {
      if (change.kind === 'removed') list.splice(change.at, 1);
      if (change.kind === 'changed') list.splice(change.from, 1);
      if (change.kind !== 'removed') list.splice(change.at, 0, views.get(change.id));
    }
  }
  return list;
}
