/** What the checks of all stores have in common: reading, what must be refused, browsers, and leaving nothing behind. */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ulid } from 'ulid';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest, UploadGrant } from '../../../blobs/ports.js';
import { faultOf } from '../../../objects/fault.js';
import { corsVerdicts } from './cors-check.js';
import { altered, ask, type StoreAnswer } from './requests.js';
import { adviceFor, failedBy, reasonOfAnswer, type StoreKind, type Verdict } from './verdict.js';

/** What is checked. */
export interface StoreCheck {
  readonly store: ObjectStore;
  /** Of CORS_ORIGINS. */
  readonly origins: readonly string[];
  /** Told of each verdict when it stands. */
  readonly onVerdict: (verdict: Verdict) => void;
}

/** Bytes of the blob that is written and read. */
export const PROBE_BYTES = 100_000;
const TYPE = 'application/octet-stream';
const UPLOAD_MS = 15 * 60_000;
const DOWNLOAD_MS = 5 * 60_000;
const SHORT_MS = 1_000;

const NOT_PUBLIC =
  'The bucket must not be public: take away every right of everybody (allUsers, anonymous, public access).';
/** Rights are of no use there: whatever the request shows is believed. */
const NOT_VERIFIED =
  'The store does not check signatures and their time: turn that on there, or take another store. Whoever knows a name gets in.';

const lasting = (ms: number, now = Date.now()): DownloadGrant => ({ now, expiresAt: now + ms });

/** An upload of so many bytes. */
export const uploadOf = (size: number): UploadGrant => ({ size, contentType: TYPE, ...lasting(UPLOAD_MS) });

/** One check, step by step. A step that fails is a verdict, and what builds on it is left out. */
export abstract class StoreRun {
  readonly verdicts: Verdict[] = [];
  protected readonly body = new Uint8Array(randomBytes(PROBE_BYTES));
  protected readonly store: ObjectStore;
  protected written = false;
  private shortLived: SignedRequest | undefined;
  private shortSince = 0;
  private verifies = true;
  private readonly kind: StoreKind;

  /** `probe`: what is written; `origin`: see `ObjectStore`. */
  constructor(
    private readonly check: StoreCheck,
    protected readonly probe: ObjectName,
    protected readonly origin = '',
  ) {
    this.store = check.store;
    this.kind = check.store.kind;
  }

  /** What has to be there before anything else. False: nothing else can work. */
  protected abstract opening(): Promise<boolean>;

  /** Brings `body` into the store under `probe`, and says so in `written`. */
  protected abstract writing(): Promise<void>;

  /** Goes through all steps; what can no longer be told after a failure is `skipped`. */
  async run(checks: readonly string[]): Promise<readonly Verdict[]> {
    try {
      if (await this.opening()) {
        await this.writing();
        if (this.written) {
          await this.reading();
          await this.refusing();
          await this.browsers();
        }
      }
    } finally {
      await this.cleaning();
    }
    for (const check of checks) {
      if (this.verdicts.some((verdict) => verdict.check.startsWith(check))) continue;
      this.add({ check, outcome: 'skipped', seen: 'not tried after the failure above' });
    }
    return this.verdicts;
  }

  /** Signs the URL that is to be late at the end; the first thing that needs credentials. */
  protected async signing(check: string): Promise<SignedRequest | undefined> {
    this.shortLived = await this.tried(check, () => this.download(SHORT_MS));
    this.shortSince = Date.now();
    return this.shortLived;
  }

  protected upload(name: ObjectName, size: number): Promise<SignedRequest> {
    return this.store.signUpload(name, uploadOf(size), this.origin);
  }

  private download(ms = DOWNLOAD_MS): Promise<SignedRequest> {
    return this.store.signDownload(this.probe, lasting(ms), this.origin);
  }

  private async reading(): Promise<void> {
    const { probe, store } = this;
    const found = await this.tried('HEAD', () => store.head(probe).then((object) => ({ object })));
    if (found !== undefined) {
      if (found.object?.size === PROBE_BYTES) this.ok('HEAD', 'the size is the one declared');
      else this.wrong('HEAD', found.object === undefined ? 'the upload is not there' : `${found.object.size} bytes`);
    }
    const url = (await this.tried('signed GET', () => this.download()))?.url;
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
  private async refusing(): Promise<void> {
    const signed = await this.tried('altered URL', () => this.download());
    if (signed === undefined) return;
    this.verifies = await this.mustRefuse('altered URL', altered(signed));
    await this.mustRefuse('no signature', signed.url.replace(/\?.*$/s, ''));
    if (this.shortLived === undefined) return;
    await sleep(Math.max(0, this.shortSince + 2 * SHORT_MS - Date.now()));
    await this.mustRefuse('late URL', this.shortLived.url);
  }

  /** False: the store took it. */
  private async mustRefuse(check: string, url: string): Promise<boolean> {
    const answer = await this.tried(check, () => ask(url, { method: 'GET' }));
    if (answer === undefined) return true;
    if (answer.status >= 400 && answer.status < 500) {
      this.ok(check, `refused (${answer.status})`);
      return true;
    }
    const seen = `the store answered ${answer.status} instead of refusing`;
    const advice = check === 'no signature' && this.verifies ? NOT_PUBLIC : NOT_VERIFIED;
    this.add({ check, outcome: 'failed', seen, advice, reason: 'public' });
    return false;
  }

  private async browsers(): Promise<void> {
    const upload = await this.tried('CORS', () => this.upload({ ...this.probe, ref: `${ulid()}.bin` }, 10));
    const download = await this.tried('CORS', () => this.download());
    if (upload === undefined || download === undefined) return;
    const verdicts = await this.tried('CORS', () => corsVerdicts({ upload, download, origins: this.check.origins }));
    for (const verdict of verdicts ?? []) this.add(verdict);
  }

  /** Also after a failure: nothing that was written stays. */
  private async cleaning(): Promise<void> {
    if (!this.written) return;
    const gone = await this.tried('DELETE', async () => {
      for (const name of this.names()) await this.store.remove(name);
      return (await this.store.head(this.probe)) === undefined;
    });
    if (gone === true) this.ok('DELETE', 'the object is gone');
    else if (gone === false) this.wrong('DELETE', 'the object is still there');
  }

  /** What may have been written. */
  protected names(): readonly ObjectName[] {
    return [this.probe];
  }

  /** Undefined after a fault, which is then a verdict. */
  protected async tried<T>(check: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      const fault = faultOf(error);
      if (fault === undefined) throw error;
      this.add(failedBy(check, fault, this.kind));
      return undefined;
    }
  }

  protected accepted(check: string, { status, code }: StoreAnswer, statuses: readonly number[]): boolean {
    if (statuses.includes(status)) return true;
    const reason = reasonOfAnswer(status, code, this.kind);
    const seen = `refused: ${status}${code === undefined ? '' : ` ${code}`}`;
    this.add({ check, outcome: 'failed', seen, reason, advice: adviceFor(reason, this.kind) });
    return false;
  }

  protected ok(check: string, seen: string): void {
    this.add({ check, outcome: 'ok', seen });
  }

  protected weak(check: string, seen: string): void {
    this.add({ check, outcome: 'weak', seen });
  }

  private wrong(check: string, seen: string): void {
    const advice = 'Does something stand between, such as a proxy or a CDN that changes or keeps bodies?';
    this.add({ check, outcome: 'failed', seen, reason: 'wrong', advice });
  }

  protected add(verdict: Verdict): void {
    this.verdicts.push(verdict);
    this.check.onVerdict(verdict);
  }
}
