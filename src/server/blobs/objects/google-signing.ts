/**
 * Signatures of URLs without a private key: Google's IAM signs each one for the server (`signBlob`). A call takes a
 * round trip and counts against a quota, so URLs are reused, concurrent calls bounded, and failing ones paused.
 */
import type { Storage } from '@google-cloud/storage';
import type { DownloadGrant, SignedDownload, SignedRequest } from '../ports.js';
import { inTime } from './bucket.js';
import { StoreFault } from './fault.js';

const UNDER_WAY_MAX = 16;
const WAITING_MAX = 500;
/** From this many failures in a row on, each failure pauses the calls for `PAUSE_MS`. */
const FAILURES_MAX = 5;
const PAUSE_MS = 5_000;

/** Bounds the calls of `signBlob`. */
export class Signing {
  private underWay = 0;
  private readonly waiting: (() => void)[] = [];
  private failures = 0;
  private pausedUntil = 0;
  /** That of the last failure. Google's library passes on only its message, by which the store recognizes it. */
  fault: StoreFault | undefined;

  /** `callMs`: time limit of a call; `faultOf`: turns an error of the library into a fault. */
  constructor(
    private readonly callMs: number,
    private readonly faultOf: (call: string, error: unknown) => StoreFault,
    private readonly now: () => number = Date.now,
  ) {}

  /** Routes the library's signatures through `run`; signing with a key makes no call and is left as it is. */
  take(auth: Storage['authClient']): void {
    const sign = auth.sign.bind(auth);
    auth.sign = async (data, endpoint) =>
      (await hasKey(auth)) ? sign(data, endpoint) : this.run(() => sign(data, endpoint));
  }

  /** Throws a `StoreFault`: the call's own, the last one while calls are paused, or `timeout` if too many wait. */
  async run(work: () => Promise<string>): Promise<string> {
    if (this.fault !== undefined && this.now() < this.pausedUntil) throw this.fault;
    if (this.waiting.length >= WAITING_MAX) throw new StoreFault('timeout', 'gcs signBlob: too many URLs wait');
    if (this.underWay >= UNDER_WAY_MAX) await new Promise<void>((resolve) => this.waiting.push(resolve));
    else this.underWay++;
    try {
      if (this.fault !== undefined && this.now() < this.pausedUntil) throw this.fault;
      const signature = await inTime('gcs signBlob', this.callMs, work);
      this.failures = 0;
      return signature;
    } catch (error) {
      throw error === this.fault ? error : this.failed(this.faultOf('gcs signBlob', error));
    } finally {
      const next = this.waiting.shift();
      if (next === undefined) this.underWay--;
      else next();
    }
  }

  private failed(fault: StoreFault): StoreFault {
    const denied = fault.reason === 'denied';
    this.fault = denied
      ? new StoreFault('denied', `${fault.message}; iam.serviceAccounts.signBlob is missing`, SIGN_BLOB)
      : fault;
    if (++this.failures >= FAILURES_MAX) this.pausedUntil = this.now() + PAUSE_MS;
    return this.fault;
  }
}

/** The permission for signing without a key, which the service account needs on itself. */
const SIGN_BLOB = 'iam.serviceAccounts.signBlob';

/** Whether the credentials have a private key. Throws if there are no credentials. */
export async function hasKey(auth: Storage['authClient']): Promise<boolean> {
  const client = await auth.getClient();
  return 'key' in client && typeof client.key === 'string';
}

/** A URL with less time left is not reused, ms: a client requests a new one when a minute is left. */
const LEFT_MIN_MS = 210_000;
const KEPT_MAX = 5_000;

/** Reusable download URLs: each serves any device of the blob's tenant until `LEFT_MIN_MS` before it expires. */
export class SignedUrls {
  private readonly kept = new Map<string, { readonly expiresAt: number; readonly request: Promise<SignedRequest> }>();

  /** An already signed URL of the object, or a new one; valid for no longer than requested. */
  async get(
    key: string,
    { now, expiresAt }: DownloadGrant,
    sign: () => Promise<SignedRequest>,
  ): Promise<SignedDownload> {
    const before = this.kept.get(key);
    const left = before === undefined || before.expiresAt > expiresAt ? 0 : before.expiresAt - now;
    const signed = before !== undefined && left >= LEFT_MIN_MS ? before : { expiresAt, request: sign() };
    // Re-inserted, so that the least recently used URL is evicted first.
    this.kept.delete(key);
    this.kept.set(key, signed);
    const [oldest] = this.kept.keys();
    if (this.kept.size > KEPT_MAX && oldest !== undefined) this.kept.delete(oldest);
    try {
      return { ...(await signed.request), expiresAt: signed.expiresAt };
    } catch (error) {
      if (this.kept.get(key) === signed) this.kept.delete(key);
      throw error;
    }
  }
}
