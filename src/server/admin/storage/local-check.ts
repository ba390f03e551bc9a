/** The checks of the local store: its folder, and the server that serves its files by signed URLs. */
import { stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ulid } from 'ulid';
import { ifThere } from '../../../files/there.js';
import { isObject } from '../../../protocol/bytes.js';
import { errorCode } from '../../../protocol/error-code.js';
import { storageUnavailable } from '../../../protocol/errors.js';
import { StoreFault } from '../../blobs/objects/fault.js';
import type { LocalStore } from '../../blobs/objects/local.js';
import { COMMON, send, StoreRun, type StoreCheck } from './run.js';
import { adviceFor, NotOk, type Verdict } from './verdict.js';

interface LocalCheck extends StoreCheck {
  readonly store: LocalStore & StoreCheck['store'];
  /** The address of the running server. */
  readonly origin: string;
}

/** Checks the local store through the server at `origin`. Does not reject on faults: they become verdicts. */
export async function checkLocal(check: LocalCheck): Promise<readonly Verdict[]> {
  const { store, origin } = check;
  const tenant = await tenantAt(origin);
  // No row names the probe, so the nightly job removes one that an interrupted check left behind.
  const probe = { tenantId: typeof tenant === 'string' ? tenant : '', ref: `${ulid()}.bin` };
  const run = new StoreRun(check, [probe], origin);
  const { body } = run;
  return run.run({
    checks: ['folder', 'server', 'write', ...COMMON, 'used URL', 'CORS', 'DELETE'],
    opening: {
      folder: () => folderSeen(store, probe.tenantId),
      server: () => serverSeen(run, origin, tenant),
      write: async () => {
        const draft = await store.create(probe);
        try {
          await draft.write(body);
          await draft.commit();
        } finally {
          await draft.discard();
        }
        return 'written, flushed and renamed';
      },
    },
    uploads: {
      'used URL': async () => {
        const upload = await run.upload(probe, body.length);
        const answer = await send(upload.url, { method: 'PUT', ...upload, body });
        if (answer.status === 403) return 'an upload without a reservation is refused (403)';
        run.accepted(answer, []);
        return undefined;
      },
    },
  });
}

async function folderSeen(store: LocalStore, tenantId: string): Promise<string> {
  const written = await writtenTo(store.folder, tenantId);
  const other = written.find(({ owner }) => owner !== process.getuid?.());
  if (other === undefined) return `${written.map(({ folder }) => folder).join(', ')}: owned by this user`;
  // The server can neither read nor remove what another user, including root, writes there.
  const seen = `${other.folder} belongs to another user`;
  throw new NotOk({ outcome: 'failed', seen, reason: 'denied', advice: adviceFor('credentials', 'local') });
}

/** Why there is no tenant at the server's address. */
interface NoTenant {
  readonly fault: StoreFault;
  readonly advice: string;
}

const START = 'Start the server; if it is reached at another address, give --url (with many tenants: of a tenant).';
const ADDRESS = 'Give --url with the address at which devices reach the server (with many tenants: of a tenant).';
const DATABASE = 'Start the database, or see the log of the server.';

async function serverSeen(run: StoreRun, origin: string, tenant: string | NoTenant): Promise<string> {
  if (typeof tenant === 'string') {
    await run.sign();
    return `${origin} answers`;
  }
  const { fault, advice } = tenant;
  throw new NotOk({ outcome: 'failed', seen: fault.message, reason: fault.reason, advice });
}

/** The tenant at this address, whose URLs the server accepts, or why there is none. */
async function tenantAt(origin: string): Promise<string | NoTenant> {
  try {
    const { status, body } = await send(`${origin}/api/service/status`, { method: 'GET' });
    // A proxy whose server is away says so on a page of its own.
    if (status === 503 && !body.toString().startsWith('{'))
      return { fault: new StoreFault('unreachable', `the server behind ${origin} is down (503)`), advice: START };
    const reply: unknown = status === 200 || status === 503 ? JSON.parse(body.toString()) : undefined;
    const { database, tenantId: id } = isObject(reply) ? reply : {};
    if (database === 'down')
      return { fault: new StoreFault('unreachable', `${origin} answers, its database does not`), advice: DATABASE };
    if (typeof id === 'string') return id;
    return { fault: new StoreFault('refused', `${origin} is no tenant's address (${status})`), advice: ADDRESS };
  } catch (error) {
    if (!(error instanceof StoreFault))
      return { fault: new StoreFault('broken', `${origin} is another server`), advice: ADDRESS };
    const { reason, message } = error;
    return { fault: new StoreFault(reason, message.replace(/^GET at the store/, origin)), advice: START };
  }
}

/**
 * The folders that an upload is written to; instead of a missing one its parent, in which the server will create it.
 * Otherwise the data folder may belong to another user, since nothing is written there.
 */
async function writtenTo(folder: string, tenantId: string) {
  const own = (await ownerOf(folder)) ?? (await ownerOf(dirname(folder)));
  if (own === undefined) throw storageUnavailable(new StoreFault('bucket', `there is no ${dirname(folder)}`, 'ENOENT'));
  // Without a tenant, `folder` stands for the tenant's own folder.
  const below = await Promise.all(
    ['uploads', tenantId].filter((name) => name !== '').map((name) => ownerOf(join(folder, name))),
  );
  return [own, ...below.filter((found) => found !== undefined)];
}

/** The user id of a folder's owner. Undefined: there is no such folder. */
async function ownerOf(folder: string) {
  try {
    const found = await ifThere(() => stat(folder));
    return found && { folder, owner: found.uid };
  } catch (error) {
    const code = errorCode(error);
    throw storageUnavailable(new StoreFault('bucket', `${folder}: ${code}`, code));
  }
}
