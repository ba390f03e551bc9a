/** A bucket, tried out with real requests: what a client does over signed URLs, and what the server does by itself. */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ulid } from 'ulid';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest, UploadGrant } from '../../../blobs/ports.js';
import { faultOf } from '../../../objects/fault.js';
import { corsVerdicts } from './cors-check.js';
import { altered, ask, clockOf, type StoreAnswer } from './requests.js';
import { adviceFor, failedBy, reasonOfAnswer, spanOf, type StoreKind, type Verdict } from './verdict.js';

/** What is checked. */
export interface BucketCheck {
  readonly store: ObjectStore;
  /** Of CORS_ORIGINS. */
  readonly origins: readonly string[];
  /** Told of each verdict when it stands. */
  readonly onVerdict: (verdict: Verdict) => void;
}

/** The last ULID there can be: no tenant has it, so nobody's blobs lie there. What is left behind the nightly job removes. */
const PROBE_TENANT = '7ZZZZZZZZZZZZZZZZZZZZZZZZZ';
const PROBE_BYTES = 100_000;
const TYPE = 'application/octet-stream';
const UPLOAD_MS = 15 * 60_000;
const DOWNLOAD_MS = 5 * 60_000;
/** A clock that is further off than this costs a part of each URL's life; stores refuse at some 15 minutes. */
const SKEW_MAX_MS = 60_000;
const SHORT_MS = 1_000;

const newProbe = (): ObjectName => ({ tenantId: PROBE_TENANT, ref: `${ulid()}.bin` });

const lasting = (ms: number, now = Date.now()): DownloadGrant => ({ now, expiresAt: now + ms });
const uploadOf = (size: number): UploadGrant => ({ size, contentType: TYPE, ...lasting(UPLOAD_MS) });

const CHECKS = [
  ...[
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
  ],
  ...['altered URL', 'no signature', 'late URL', 'CORS', 'DELETE'],
] as const;

/** Goes through all checks; what can no longer be told after a failure is `skipped`. Never rejects for the store's faults. */
export async function checkBucket({ store, origins, onVerdict }: BucketCheck): Promise<readonly Verdict[]> {
  const run = new Run(store, onVerdict);
  try {
    if (await run.opening()) {
      await run.writing();
      await run.reading();
      await run.refusing();
      await run.browsers(origins);
    }
  } finally {
    await run.cleaning();
  }
  run.skipRest();
  return run.verdicts;
}

class Run {
  readonly verdicts: Verdict[] = [];
  private readonly kind: StoreKind;
  private readonly body = new Uint8Array(randomBytes(PROBE_BYTES));
  private readonly probe = newProbe();
  private readonly second = newProbe();
  private shortLived: SignedRequest | undefined;
  private shortSince = 0;
  private written = false;

  constructor(
    private readonly store: ObjectStore,
    private readonly onVerdict: (verdict: Verdict) => void,
  ) {
    this.kind = store.kind;
  }

  /** Credentials, endpoint, clock, rights to list. False: nothing else can work. */
  async opening(): Promise<boolean> {
    const signed = await this.tried('credentials', () => this.store.signDownload(this.probe, lasting(SHORT_MS), ''));
    if (signed === undefined) return false;
    this.shortLived = signed;
    this.shortSince = Date.now();
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
    return true;
  }

  private clock(answer: StoreAnswer): boolean {
    const theirs = clockOf(answer);
    if (theirs === undefined) {
      this.add({ check: 'clock', outcome: 'skipped', seen: 'the store does not tell its time' });
      return true;
    }
    const ahead = Date.now() - theirs;
    if (Math.abs(ahead) <= SKEW_MAX_MS) {
      this.ok('clock', 'the same as the store’s, to the minute');
      return true;
    }
    const seen = `this machine is ${spanOf(ahead)} ${ahead > 0 ? 'ahead of' : 'behind'} the store`;
    this.add({ check: 'clock', outcome: 'failed', seen, reason: 'clock', advice: adviceFor('clock', this.kind) });
    return false;
  }

  async writing(): Promise<void> {
    const upload = await this.tried('signed PUT', () => this.store.signUpload(this.probe, uploadOf(PROBE_BYTES), ''));
    if (upload === undefined) return;
    const put = await this.tried('signed PUT', () => this.send(upload, this.body));
    if (put === undefined || !this.accepted('signed PUT', put, [200, 201, 204])) return;
    this.written = true;
    this.ok('signed PUT', `${PROBE_BYTES} bytes went up`);
    await this.refusedOrWeak('once only', () => this.send(upload, this.body), {
      good: 'a second upload over the first is refused',
      weak: 'a second upload replaces the first: the store does not honour if-none-match',
    });
    const other = await this.tried('exact size', () => this.store.signUpload(this.second, uploadOf(10), ''));
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

  async reading(): Promise<void> {
    if (!this.written) return;
    const { probe, store } = this;
    const found = await this.tried('HEAD', () => store.head(probe).then((object) => ({ object })));
    if (found !== undefined) {
      if (found.object?.size === PROBE_BYTES) this.ok('HEAD', 'the size is the one declared');
      else this.wrong('HEAD', found.object === undefined ? 'the upload is not there' : `${found.object.size} bytes`);
    }
    const url = (await this.tried('signed GET', () => store.signDownload(probe, lasting(DOWNLOAD_MS), '')))?.url;
    if (url === undefined) return;
    const whole = await this.tried('signed GET', () => ask(url, { method: 'GET' }));
    if (whole !== undefined && this.accepted('signed GET', whole, [200])) {
      if (whole.body.equals(this.body)) this.ok('signed GET', 'the same bytes came back');
      else this.wrong('signed GET', 'other bytes came back');
    }
    const part = await this.tried('range', () => ask(url, { method: 'GET', headers: { range: 'bytes=50000-50009' } }));
    if (part === undefined || !this.accepted('range', part, [200, 206])) return;
    if (part.status === 206 && part.body.equals(this.body.slice(50_000, 50_010)))
      this.ok('range', 'ten bytes of the middle');
    else this.weak('range', 'ranges are not served: a download that breaks off begins anew');
  }

  /** What must not work. */
  async refusing(): Promise<void> {
    if (!this.written) return;
    const signed = await this.tried('altered URL', () => this.store.signDownload(this.probe, lasting(DOWNLOAD_MS), ''));
    if (signed === undefined) return;
    await this.mustRefuse('altered URL', altered(signed));
    await this.mustRefuse('no signature', signed.url.replace(/\?.*$/s, ''));
    if (this.shortLived === undefined) return;
    await sleep(Math.max(0, this.shortSince + 2 * SHORT_MS - Date.now()));
    await this.mustRefuse('late URL', this.shortLived.url);
  }

  private async mustRefuse(check: string, url: string): Promise<void> {
    const answer = await this.tried(check, () => ask(url, { method: 'GET' }));
    if (answer === undefined) return;
    if (answer.status >= 400 && answer.status < 500) return this.ok(check, `refused (${answer.status})`);
    const seen = `the store answered ${answer.status} instead of refusing`;
    const advice =
      'The bucket must not be public: take away every right of everybody (allUsers, anonymous, public access).';
    this.add({ check, outcome: 'failed', seen, advice, reason: 'public' });
  }

  async browsers(origins: readonly string[]): Promise<void> {
    if (!this.written) return;
    const upload = await this.tried('CORS', () => this.store.signUpload(newProbe(), uploadOf(10), ''));
    const download = await this.tried('CORS', () => this.store.signDownload(this.probe, lasting(DOWNLOAD_MS), ''));
    if (upload === undefined || download === undefined) return;
    const verdicts = await this.tried('CORS', () => corsVerdicts({ upload, download, origins }));
    for (const verdict of verdicts ?? []) this.add(verdict);
  }

  /** Also after a failure: nothing that was written stays. */
  async cleaning(): Promise<void> {
    if (!this.written) return;
    const gone = await this.tried('DELETE', async () => {
      for (const name of [this.probe, this.second]) await this.store.remove(name);
      return (await this.store.head(this.probe)) === undefined;
    });
    if (gone === true) this.ok('DELETE', 'the object is gone');
    else if (gone === false) this.wrong('DELETE', 'the object is still there');
  }

  skipRest(): void {
    for (const check of CHECKS) {
      if (this.verdicts.some((verdict) => verdict.check.startsWith(check))) continue;
      this.add({ check, outcome: 'skipped', seen: 'not tried after the failure above' });
    }
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

  /** Undefined after a fault, which is then a verdict. */
  private async tried<T>(check: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      const fault = faultOf(error);
      if (fault === undefined) throw error;
      this.add(failedBy(check, fault, this.kind));
      return undefined;
    }
  }

  private accepted(check: string, { status, code }: StoreAnswer, statuses: readonly number[]): boolean {
    if (statuses.includes(status)) return true;
    const reason = reasonOfAnswer(status, code, this.kind);
    const seen = `refused: ${status}${code === undefined ? '' : ` ${code}`}`;
    this.add({ check, outcome: 'failed', seen, reason, advice: adviceFor(reason, this.kind) });
    return false;
  }

  private ok(check: string, seen: string): void {
    this.add({ check, outcome: 'ok', seen });
  }

  private weak(check: string, seen: string): void {
    this.add({ check, outcome: 'weak', seen });
  }

  private wrong(check: string, seen: string): void {
    const advice = 'Does something stand between, such as a proxy or a CDN that changes or keeps bodies?';
    this.add({ check, outcome: 'failed', seen, reason: 'wrong', advice });
  }

  private add(verdict: Verdict): void {
    this.verdicts.push(verdict);
    this.onVerdict(verdict);
  }
}
