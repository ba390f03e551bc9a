/** Unsaved edits: kept when their form is removed; while there is one, the browser asks before it leaves the page. */
import type { Edit } from './fields.js';

/** What was neither saved nor discarded, by item. Cleared when the device is locked. */
export const drafts = new Map<string, Edit>();

addEventListener('beforeunload', (event) => {
  if (drafts.size > 0) event.preventDefault();
});
