/** What would go with the page: while there is something, the browser asks before it leaves. */
import type { Edit } from './fields.js';

/** Edits that were neither saved nor discarded, by item: kept when their form is removed. Cleared when the device is locked. */
export const drafts = new Map<string, Edit>();

const reasons = [(): boolean => drafts.size > 0];

/** The browser asks while `isUnsaved`. */
export const asksToLeave = (isUnsaved: () => boolean): void => void reasons.push(isUnsaved);

/** From now on the browser asks. */
export const startAsking = (): void =>
  addEventListener('beforeunload', (event) => {
    if (reasons.some((isUnsaved) => isUnsaved())) event.preventDefault();
  });
