/** The local store: its folder, and the server that hands its files out over signed URLs. */
import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
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
  readonly dataDir: string;
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
    const owner = await this.tried('folder', () => ownerOf(this.local.dataDir));
    if (owner === undefined) return false;
    if (process.getuid?.() !== owner) {
      // Whatever another user writes there, root too, the server could neither read nor remove.
      const seen = `${this.local.dataDir} belongs to another user`;
      this.add({
        check: 'folder',
        outcome: 'failed',
        seen,
        reason: 'denied',
        advice: adviceFor('credentials', 'local'),
      });
      return false;
    }
    this.ok('folder', `${this.local.dataDir} belongs to this user`);
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

async function ownerOf(dataDir: string): Promise<number> {
  try {
    return (await stat(dataDir)).uid;
  } catch (error) {
    const code = errorCode(error);
    throw storageUnavailable(new StoreFault('bucket', `${dataDir} in ${dirname(dataDir)}: ${code}`, code));
  }
}
