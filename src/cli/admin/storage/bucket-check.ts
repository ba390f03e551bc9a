/** A bucket, tried out with real requests: what a client does over signed URLs, and what the server does by itself. */
import type { ObjectName, SignedRequest } from '../../../blobs/ports.js';
import { ask, clockOf, type StoreAnswer } from './requests.js';
import { PROBE_BYTES, StoreRun, type StoreCheck } from './run.js';
import { adviceFor, spanOf, type Verdict } from './verdict.js';

/** The last ULID there can be: no tenant has it, so nobody's blobs lie there. */
const LAST_ULID = '7ZZZZZZZZZZZZZZZZZZZZZZZZZ';
/** Always the same names: what a check that was cut off left behind, the next one removes. */
const PROBE: ObjectName = { tenantId: LAST_ULID, ref: `${LAST_ULID}.bin` };
/** For uploads that are to be refused. */
const SECOND: ObjectName = { tenantId: LAST_ULID, ref: `${LAST_ULID.slice(0, -1)}Y.bin` };
/** A clock that is further off than this costs a part of each URL's life; stores refuse at some 15 minutes. */
const SKEW_MAX_MS = 60_000;

const CHECKS = [
  'credentials',
  'endpoint',
  'clock',
  'list',
  'signed PUT',
  'once only',
  'exact size',
  'HEAD',
  'signed GET',
  'range',
  'altered URL',
  'no signature',
  'late URL',
  'CORS',
  'DELETE',
] as const;

/** Checks the bucket that a store is bound to. Never rejects for the store's faults: they are verdicts. */
export const checkBucket = (check: StoreCheck): Promise<readonly Verdict[]> => new BucketRun(check, PROBE).run(CHECKS);

class BucketRun extends StoreRun {
  protected override names(): readonly ObjectName[] {
    return [PROBE, SECOND];
  }

  /** Credentials, endpoint, clock, rights to list. False: nothing else can work. */
  protected async opening(): Promise<boolean> {
    const signed = await this.signing('credentials');
    if (signed === undefined) return false;
    const { origin } = new URL(signed.url);
    this.ok('credentials', 'there, and they sign');
    const answer = await this.tried('endpoint', () => ask(`${origin}/`, { method: 'GET' }));
    if (answer === undefined) return false;
    this.ok('endpoint', `${origin} answers`);
    if (!this.clock(answer)) return false;
    const pages = await this.tried('list', async () => {
      const listing = this.store.list()[Symbol.asyncIterator]();
      await listing.next();
      await listing.return?.();
      return true;
    });
    if (pages === undefined) return false;
    this.ok('list', 'the bucket is there and can be listed');
    const cleared = await this.tried('DELETE', async () => {
      for (const name of this.names()) await this.store.remove(name);
      return true;
    });
    return cleared !== undefined;
  }

  private clock(answer: StoreAnswer): boolean {
    const theirs = clockOf(answer);
    if (theirs === undefined) {
      this.add({ check: 'clock', outcome: 'skipped', seen: 'the store does not tell its time' });
      return true;
    }
    const ahead = Date.now() - theirs;
    if (Math.abs(ahead) <= SKEW_MAX_MS) {
      this.ok('clock', 'the same as the store has, to the minute');
      return true;
    }
    const seen = `this machine is ${spanOf(ahead)} ${ahead > 0 ? 'ahead of' : 'behind'} the store`;
    this.add({ check: 'clock', outcome: 'failed', seen, reason: 'clock', advice: adviceFor('clock', this.store.kind) });
    return false;
  }

  protected async writing(): Promise<void> {
    const upload = await this.tried('signed PUT', () => this.upload(this.probe, PROBE_BYTES));
    if (upload === undefined) return;
    const put = await this.tried('signed PUT', () => this.send(upload, this.body));
    if (put === undefined || !this.accepted('signed PUT', put, [200, 201, 204])) return;
    this.written = true;
    this.ok('signed PUT', `${PROBE_BYTES} bytes went up`);
    await this.refusedOrWeak('once only', () => this.send(upload, this.body), {
      good: 'a second upload over the first is refused',
      weak: 'a second upload replaces the first: the store does not honour if-none-match',
    });
    const other = await this.tried('exact size', () => this.upload(SECOND, 10));
    if (other === undefined) return;
    const headers = { ...other.headers, ...('content-length' in other.headers ? { 'content-length': '11' } : {}) };
    await this.refusedOrWeak('exact size', () => this.send({ ...other, headers }, this.body.slice(0, 11)), {
      good: 'a longer upload than declared is refused',
      weak: 'a longer upload than declared is taken: the server finds it when an item names it',
    });
  }

  private send({ url, headers }: SignedRequest, body: Uint8Array<ArrayBuffer>): Promise<StoreAnswer> {
    return ask(url, { method: 'PUT', headers, body });
  }

  private async refusedOrWeak(
    check: string,
    request: () => Promise<StoreAnswer>,
    words: { readonly good: string; readonly weak: string },
  ): Promise<void> {
    const answer = await this.tried(check, request);
    if (answer === undefined) return;
    if (answer.status >= 400 && answer.status < 500) this.ok(check, `${words.good} (${answer.status})`);
    else this.weak(check, words.weak);
  }
}
