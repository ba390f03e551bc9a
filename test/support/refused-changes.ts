/** Which changes of a device the server has refused, for comparison with what the device reports. */
import { toBase64Url } from '../../src/protocol/base64.js';
import type { LiveItem } from '../../src/protocol/item.js';
import type { Pending } from '../../src/sdk/store/store.js';
import type { Reply, Request } from './honest-server.js';

type Json = Record<string, unknown>;

/** A change as a request identifies it: by its item, its tag and, except for a delete, its base version. */
const nameOf = (id: unknown, sig: unknown, base: unknown): string => `${String(id)} ${String(sig)} on ${String(base)}`;

const sigOf = (change: Pending): Uint8Array | null => (change.kind === 'delete' ? change.sig : change.row.sig);

function nameOfPending(change: Pending): string {
  const sig = sigOf(change);
  return nameOf(change.id, sig && toBase64Url(sig), change.kind === 'delete' ? undefined : change.base);
}

/** The changes that a request carries, in their order. */
function carried({ method, path, body }: Request): readonly string[] {
  const [, subject, id, action] = path.replace(/\?.*/, '').split('/');
  if (subject !== 'items' || method === 'GET') return [];
  if (method === 'DELETE') return [nameOf(id, body['sig'], undefined)];
  if (action === 'reconcile') return [nameOf(id, body['sig'], body['version'])];
  const writes = id === 'batch' ? (body['items'] as readonly Json[]) : [body];
  return writes.map(({ id, sig, payloadEnc, ifVersion }) => nameOf(id, sig ?? (payloadEnc as Json)['sig'], ifVersion));
}

/** The changes of one device. */
export class RefusedChanges {
  /** By `seq`, as last stored, also those that are gone. */
  private readonly changes = new Map<number, Pending>();
  private readonly refused = new Set<string>();

  /** The device stores these. */
  stored(changes: readonly Pending[]): void {
    for (const change of changes) this.changes.set(change.seq, change);
  }

  /** The device gets a reply. */
  answered(request: Request, { status, body }: Reply): void {
    const names = carried(request);
    const results = status === 200 && 'results' in body ? (body.results as readonly Json[]) : [];
    for (const [at, name] of names.entries())
      if (status !== 200 || results[at]?.['error'] !== undefined) this.refused.add(name);
  }

  /** The program ends: the next one must be told again. */
  forget(): void {
    this.refused.clear();
  }

  /** The newest change of an item that is the wanted one. */
  newest(id: string, isIt: (change: Pending) => boolean): Pending | undefined {
    const all = [...this.changes.values()].filter((change) => change.id === id && isIt(change));
    return all.sort((one, other) => one.seq - other.seq).at(-1);
  }

  /** The change of an item with this state; null: a delete. */
  withState(id: string, row: LiveItem | null): Pending | undefined {
    return this.newest(id, (change) => {
      if (row === null || change.kind === 'delete') return row === null && change.kind === 'delete';
      const { sig } = change.row;
      return sig !== null && row.sig !== null && Buffer.compare(sig, row.sig) === 0;
    });
  }

  /** True where the server has refused this very change, or one below it on which it was still based. */
  explains(change: Pending): boolean {
    const below = [...this.changes.values()].filter(({ id, seq }) => id === change.id && seq <= change.seq);
    for (const one of below.sort((a, b) => b.seq - a.seq)) {
      if (this.refused.has(nameOfPending(one))) return true;
      if (one.base !== null) return false;
    }
    return false;
  }
}
