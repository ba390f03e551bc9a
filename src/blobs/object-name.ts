/** Names of objects (contract 8): asked for their form wherever one becomes a path, a key or a query. */
import { BLOB_REF, ULID } from '../protocol/ids.js';
import type { ObjectName } from './ports.js';

/** True where both parts have their form: nothing else ever gets near a file. */
export const isObjectName = ({ tenantId, ref }: ObjectName): boolean => ULID.test(tenantId) && BLOB_REF.test(ref);

/** The name in `<tenantId>/<ref>`; undefined where that is none. */
export function objectNameIn(path: string): ObjectName | undefined {
  const [tenantId = '', ref = '', ...more] = path.split('/');
  const name = { tenantId, ref };
  return more.length === 0 && isObjectName(name) ? name : undefined;
}
