/** Unsaved edits: kept when their form is removed; while there is one, the browser asks before it leaves the page. */
import type { Draft } from './fields.js';

/** By item. */
const drafts = new Map<string, Draft>();

addEventListener('beforeunload', (event) => {
  if (drafts.size > 0) event.preventDefault();
});

/** The draft of an item that was neither saved nor discarded. */
export const keptDraft = (itemId: string): Draft | undefined => drafts.get(itemId);

/** Drops all drafts, as when the device is locked. */
export const forgetDrafts = (): void => drafts.clear();

/** Keeps the draft of an item; undefined: drops it. */
export function keepDraft(itemId: string, draft: Draft | undefined): void {
  if (draft === undefined) drafts.delete(itemId);
  else drafts.set(itemId, draft);
}
