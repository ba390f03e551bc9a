/** Unsaved input: kept when its field is removed; while there is any, the browser asks before it leaves the page. */
import type { Draft } from './fields.js';

/** By item. */
const drafts = new Map<string, Draft>();
const holding = new Set<string>();

addEventListener('beforeunload', (event) => {
  if (holding.size > 0) event.preventDefault();
});

/** Records whether there is unsaved input under this name. */
export function hold(name: string, unsaved: boolean): void {
  if (unsaved) holding.add(name);
  else holding.delete(name);
}

/** The draft of an item that was neither saved nor discarded. */
export const keptDraft = (itemId: string): Draft | undefined => drafts.get(itemId);

/** Drops all drafts, as when the device is locked. */
export function forgetDrafts(): void {
  for (const itemId of drafts.keys()) keepDraft(itemId, undefined);
}

/** Keeps the draft of an item; undefined: drops it. */
export function keepDraft(itemId: string, draft: Draft | undefined): void {
  if (draft === undefined) drafts.delete(itemId);
  else drafts.set(itemId, draft);
  hold(itemId, draft !== undefined);
}
