/** Comparisons of two states of an item. */
import { equalBytes } from '../protocol/bytes.js';
import type { LiveItem, SealedKeys } from '../protocol/item.js';

const NO_KEYS: SealedKeys = new Map();

const sameBytes = (a: Uint8Array | undefined, b: Uint8Array | undefined): boolean =>
  a === undefined || b === undefined ? a === b : equalBytes(a, b);

/** Whether two states of an item have one content, sealed once. */
export const sameContent = (one: LiveItem, other: LiveItem): boolean =>
  one.ts === other.ts &&
  sameBytes(one.inline?.ct, other.inline?.ct) &&
  sameBytes(one.inline?.nonce, other.inline?.nonce) &&
  one.blob?.ref === other.blob?.ref &&
  sameBytes(one.blob?.nonce, other.blob?.nonce);

/** Whether a tag that covers one covers the other, in the same bin: that of a file covers its keys too. */
export const sameTagged = (one: LiveItem, other: LiveItem): boolean =>
  sameContent(one, other) && sameKeys(one.blob?.keys, other.blob?.keys);

const sameKeys = (one: SealedKeys = NO_KEYS, other: SealedKeys = NO_KEYS): boolean =>
  one.size === other.size && [...one].every(([device, key]) => sameBytes(key, other.get(device)));

/** The tag covers everything that a user sees: two states with the same tag differ by a re-wrap at most. */
export const sameSig = (one: LiveItem, other: LiveItem): boolean =>
  sameBytes(one.sig ?? undefined, other.sig ?? undefined);
