/** Where objects lie in a bucket: `[<prefix>/]<tenantId>/<ref>`. */
import type { ObjectName } from '../ports.js';
import { blobNameIn, isBlobName } from '../../../protocol/ids.js';

/** A bucket's keys under one prefix. */
export interface Keys {
  /** What every key of ours begins with; empty without a prefix. */
  readonly prefix: string;
  keyOf(name: ObjectName): string;
  /** Undefined: not the name of a blob of ours. */
  nameOf(key: string): ObjectName | undefined;
}

/** `prefix`: with or without slashes at its ends. */
export function keysUnder(prefix = ''): Keys {
  const trimmed = prefix.replace(/^\/+|\/+$/g, '');
  const begin = trimmed === '' ? '' : `${trimmed}/`;
  return {
    prefix: begin,
    keyOf: (name) => {
      // Ids come from our own rows: one that is not such an id would lie outside of its tenant's folder.
      if (!isBlobName(name)) throw new Error('not the name of a blob');
      return `${begin}${name.tenantId}/${name.ref}`;
    },
    nameOf: (key) => {
      if (!key.startsWith(begin)) return undefined;
      return blobNameIn(key.slice(begin.length));
    },
  };
}
