/** The local store: its folder, and the server that hands its files out over signed URLs. */
import { stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ulid } from 'ulid';
import { errorCode } from '../../../protocol/error-code.js';
import { storageUnavailable } from '../../../protocol/errors.js';
import { StoreFault } from '../../../objects/fault.js';
import type { LocalStore } from '../../../objects/local.js';
import { ask } from './requests.js';
import { StoreRun, type StoreCheck } from './run.js';
import { adviceFor, type Verdict } from './verdict.js';

/** What is checked. */
export interface LocalCheck extends StoreCheck {
  readonly store: LocalStore & StoreCheck['store'];
  /** Where the running server is reached. */
  readonly origin: string;
}

const CHECKS = [
  'folder',
  'server',
  'write',
  'HEAD',
  'signed GET',
  'range',
  'altered URL',
  'no signature',
  'late URL',
  'used URL',
  'CORS',
  'DELETE',
] as const;

/** Checks the local store through the server that runs at `origin`. Never rejects for faults: they are verdicts. */
export async function checkLocal(check: LocalCheck): Promise<readonly Verdict[]> {
  const tenantId = await tenantAt(check.origin);
  return new LocalRun(check, tenantId).run(CHECKS);
}

/** The tenant whose URLs the server takes there, or why there is none. */
async function tenantAt(origin: string): Promise<string | StoreFault> {
  try {
    const { status, body } = await ask(`${origin}/api/service/status`, { method: 'GET' });
    const told: unknown = status === 200 ? JSON.parse(body.toString()) : undefined;
    const id = typeof told === 'object' && told !== null && 'tenantId' in told ? told.tenantId : undefined;
    return typeof id === 'string' ? id : new StoreFault('refused', `${origin} is no tenant's address (${status})`);
  } catch (error) {
    return error instanceof StoreFault ? error : new StoreFault('broken', `${origin} is another server`);
  }
}

class LocalRun extends StoreRun {
  constructor(
    private readonly local: LocalCheck,
    private readonly tenant: string | StoreFault,
  ) {
    // What is left of it the nightly job removes: no row names it.
    super(local, { tenantId: typeof tenant === 'string' ? tenant : '', ref: `${ulid()}.bin` }, local.origin);
  }

  protected async opening(): Promise<boolean> {
    const written = await this.tried('folder', () => writtenTo(this.local.store.folder, this.probe.tenantId));
    if (written === undefined) return false;
    const strange = written.find(({ owner }) => owner !== process.getuid?.());
    if (strange !== undefined) {
      // Whatever another user writes there, root too, the server could neither read nor remove.
      const seen = `${strange.folder} belongs to another user`;
      const advice = adviceFor('credentials', 'local');
      this.add({ check: 'folder', outcome: 'failed', seen, reason: 'denied', advice });
      return false;
    }
    this.ok('folder', `${written.map(({ folder }) => folder).join(', ')}: of this user`);
    const { tenant } = this;
    if (typeof tenant !== 'string') {
      const advice =
        'Start the server; where it is reached by another address give --url (with many tenants: of a tenant).';
      this.add({ check: 'server', outcome: 'failed', seen: tenant.message, reason: tenant.reason, advice });
      return false;
    }
    this.ok('server', `${this.local.origin} answers`);
    return (await this.signing('server')) !== undefined;
  }

  protected async writing(): Promise<void> {
    const whole = await this.tried('write', async () => {
      const draft = await this.local.store.create(this.probe);
      try {
        await draft.write(this.body);
        return await draft.commit();
      } finally {
        await draft.discard();
      }
    });
    if (whole !== true) return;
    this.written = true;
    this.ok('write', 'written, flushed and renamed');
    const upload = await this.tried('used URL', () => this.upload(this.probe, this.body.length));
    const answer =
      upload && (await this.tried('used URL', () => ask(upload.url, { method: 'PUT', ...upload, body: this.body })));
    if (answer === undefined) return;
    if (answer.status === 403) this.ok('used URL', 'an upload that nobody reserved is refused (403)');
    else this.accepted('used URL', answer, []);
  }
}

/** A folder and its owner's number. */
interface Owned {
  readonly folder: string;
  readonly owner: number;
}

/**
 * Folders that an upload is written to, and those of them that the server has yet to make by the one above, in which it
 * will. The data folder may be another user's: nothing is written there.
 */
async function writtenTo(folder: string, tenantId: string): Promise<readonly Owned[]> {
  const own = (await ownerOf(folder)) ?? (await ownerOf(dirname(folder)));
  if (own === undefined) throw storageUnavailable(new StoreFault('bucket', `there is no ${dirname(folder)}`, 'ENOENT'));
  // Without a tenant the folder above stands for the tenant's own.
  const below = await Promise.all(
    ['uploads', tenantId].filter((name) => name !== '').map((name) => ownerOf(join(folder, name))),
  );
  return [own, ...below.filter((found) => found !== undefined)];
}

/** Undefined: there is no such folder. */
async function ownerOf(folder: string): Promise<Owned | undefined> {
  try {
    return { folder, owner: (await stat(folder)).uid };
  } catch (error) {
    const code = errorCode(error);
    if (code === 'ENOENT') return undefined;
    throw storageUnavailable(new StoreFault('bucket', `${folder}: ${code}`, code));
  }
}
