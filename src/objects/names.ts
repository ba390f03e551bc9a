/** Where objects lie in a bucket: `[<prefix>/]<tenantId>/<ref>`. */
import type { ObjectName } from '../blobs/ports.js';
import { BLOB_REF, ULID } from '../protocol/ids.js';

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
    keyOf: ({ tenantId, ref }) => {
      // Ids come from our own rows: one that is not such an id would lie outside of its tenant's folder.
      if (!ULID.test(tenantId) || !BLOB_REF.test(ref)) throw new Error('not the name of a blob');
      return `${begin}${tenantId}/${ref}`;
    },
    nameOf: (key) => {
      if (!key.startsWith(begin)) return undefined;
      const [tenantId = '', ref = '', ...more] = key.slice(begin.length).split('/');
      return more.length === 0 && ULID.test(tenantId) && BLOB_REF.test(ref) ? { tenantId, ref } : undefined;
    },
  };
}
