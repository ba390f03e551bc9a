/** What was typed and is saved nowhere: it outlives the field, and the browser asks before the page goes. */
import type { Draft } from './drafts.js';

/** By item. */
const drafts = new Map<string, Draft>();
const holding = new Set<string>();

addEventListener('beforeunload', (event) => {
  if (holding.size > 0) event.preventDefault();
});

/** Whether there is something unsaved under this name. */
export function hold(name: string, unsaved: boolean): void {
  if (unsaved) holding.add(name);
  else holding.delete(name);
}

/** What was typed into an item when it was last edited, and was neither saved nor discarded. */
export const keptDraft = (itemId: string): Draft | undefined => drafts.get(itemId);

/** Forgets all of them, as under a lock. */
export function forgetDrafts(): void {
  for (const itemId of drafts.keys()) keepDraft(itemId, undefined);
}

/** Keeps it; undefined: forgets it. */
export function keepDraft(itemId: string, draft: Draft | undefined): void {
  if (draft === undefined) drafts.delete(itemId);
  else drafts.set(itemId, draft);
  hold(itemId, draft !== undefined);
}
