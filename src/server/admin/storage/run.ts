/** The requests of a check, sent as a client would send them, and the checks common to all stores. */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ulid } from 'ulid';
import { MINUTE_MS } from '../../../protocol/clock.js';
import type { BlobName } from '../../../protocol/ids.js';
import type { DownloadGrant, ObjectStore, SignedRequest } from '../../blobs/ports.js';
import { connectionFault, faultOf, StoreFault } from '../../blobs/objects/fault.js';
import { cappedBody } from '../../../terminal/read-capped.js';
import { adviceFor, NotOk, reasonOfAnswer, weak, wrong, type Verdict } from './verdict.js';

/** Time limit of a request, ms. */
const ANSWER_MAX_MS = 15_000;
const BODY_MAX_BYTES = 1024 * 1024;

/** A store's answer. */
export type StoreAnswer = Awaited<ReturnType<typeof send>>;

/** Sends a request as a client would: redirects are not followed. Throws `StoreFault` if there is no answer. */
export async function send(url: string, init: Pick<RequestInit, 'method' | 'headers' | 'body'>) {
  const call = `${init.method} at the store`;
  const stop = new AbortController();
  // Not `AbortSignal.timeout`: its timer does not keep the process alive, which would end silently during the request.
  const timer = setTimeout(() => stop.abort(new DOMException('no answer in time', 'TimeoutError')), ANSWER_MAX_MS);
  try {
    const { method, headers, body } = init;
    const answer = await fetch(url, { method, headers, body, redirect: 'manual', signal: stop.signal });
    const text = await cappedBody(answer, BODY_MAX_BYTES);
    return { status: answer.status, headers: answer.headers, body: text, code: codeIn(text.toString('latin1')) };
  } catch (error) {
    // `fetch` throws a TypeError whose cause is the error of the connection.
    const cause: unknown = error instanceof TypeError ? error.cause : error;
    throw connectionFault(call, cause) ?? new StoreFault('unreachable', `${call}: no answer`);
  } finally {
    clearTimeout(timer);
  }
}

/** Error code of a refusal, from XML or from this server's JSON. */
const codeIn = (text: string): string | undefined =>
  (/<Code>([A-Za-z]{1,64})<\/Code>/.exec(text) ?? /"code":\s*"([a-z_]{1,64})"/.exec(text))?.[1];

/** A signed URL with the last character of its signature changed. */
const altered = (url: string): string =>
  url.replace(/((?:signature|sig)=[^&]*)([^&])(&|$)/i, (_, begin: string, last: string, end: string) => {
    return `${begin}${last === '0' ? '1' : '0'}${end}`;
  });

/** What is checked. */
export interface StoreCheck {
  readonly store: ObjectStore;
  /** Of CORS_ORIGINS, and of the web app. */
  readonly origins: readonly string[];
  /** Called with each verdict. */
  readonly onVerdict: (verdict: Verdict) => void;
}

/** Resolves with what was seen (undefined: no verdict), or throws `NotOk` or a fault. */
type Probe = () => Promise<string | undefined>;
/** Probes by the names of their checks, in order. */
export type Steps = Readonly<Record<string, Probe>>;

/** The checks of one kind of store, in addition to those common to all stores. */
interface Plan {
  /** Names of all checks; those that did not run are reported as skipped, in this order. */
  readonly checks: readonly string[];
  /** Prerequisites of all other checks, and writing the probe: the first that fails ends the run. */
  readonly opening: Steps;
  /** Other uploads, most of which must be refused. */
  readonly uploads: Steps;
}

/** Size of the probe. */
export const PROBE_BYTES = 100_000;
/** Checks of every store. */
export const COMMON = ['HEAD', 'signed GET', 'range', 'altered URL', 'no signature', 'late URL'] as const;
const UPLOAD_MS = 15 * MINUTE_MS;
const DOWNLOAD_MS = 5 * MINUTE_MS;
const SHORT_MS = 1_000;

const NOT_PUBLIC = 'The bucket must not be public: remove all public rights (allUsers, anonymous, public access).';
/** Permissions do not help in this case: the store accepts any signature. */
const NOT_VERIFIED =
  'The store does not check signatures and their time: turn that on there, or use another store. Anyone who knows a name has access.';

const lasting = (ms: number, now = Date.now()): DownloadGrant => ({ now, expiresAt: now + ms });

/** True if the store refused the request rather than failed. */
export const isRefusal = ({ status }: StoreAnswer): boolean => status >= 400 && status < 500;

/** A run of all checks of a store. A failure is a verdict, and the checks that depend on it are skipped. */
export class StoreRun {
  readonly body = new Uint8Array(randomBytes(PROBE_BYTES));
  private readonly verdicts: Verdict[] = [];
  private short: SignedRequest | undefined;
  private shortSince = 0;

  /** `names`: objects that may be written, the probe first; `origin`: see `ObjectStore`. */
  constructor(
    private readonly check: StoreCheck,
    private readonly names: readonly [BlobName, ...BlobName[]],
    private readonly origin = '',
  ) {}

  /** Runs all checks; those that cannot run after a failure are `skipped`. */
  async run({ checks, opening, uploads }: Plan): Promise<readonly Verdict[]> {
    if (await this.opened(opening)) {
      try {
        for (const [check, probe] of Object.entries(uploads)) await this.step(check, probe);
        await this.reading();
        await this.step('CORS', () => this.browsers());
      } finally {
        // Also after a failure: nothing that was written may remain.
        await this.step('DELETE', () => this.cleaning());
      }
    }
    for (const check of checks) {
      if (this.verdicts.some((verdict) => verdict.check.startsWith(check))) continue;
      this.add({ check, outcome: 'skipped', seen: 'not tried after the failure above' });
    }
    return this.verdicts;
  }

  /** Signs a URL that will have expired when it is tried at the end; the first step that needs credentials. */
  async sign(): Promise<SignedRequest> {
    this.short = await this.download(SHORT_MS);
    this.shortSince = Date.now();
    return this.short;
  }

  /** Signs an upload of this size. */
  upload(name: BlobName, size: number): Promise<SignedRequest> {
    const grant = { size, contentType: 'application/octet-stream', ...lasting(UPLOAD_MS) };
    return this.check.store.signUpload(name, grant, this.origin);
  }

  /** Returns the answer if its status is one of these; else throws `NotOk`. */
  accepted(answer: StoreAnswer, statuses: readonly number[]): StoreAnswer {
    const { status, code } = answer;
    if (statuses.includes(status)) return answer;
    const reason = reasonOfAnswer(status, code, this.check.store.kind);
    const seen = `refused: ${status}${code === undefined ? '' : ` ${code}`}`;
    throw new NotOk({ outcome: 'failed', seen, reason, advice: adviceFor(reason, this.check.store.kind) });
  }

  private download(ms = DOWNLOAD_MS): Promise<SignedRequest> {
    return this.check.store.signDownload(this.names[0], lasting(ms), this.origin);
  }

  private async opened(opening: Steps): Promise<boolean> {
    for (const [check, probe] of Object.entries(opening)) if (!(await this.step(check, probe))) return false;
    return true;
  }

  /** Runs a check; false if it failed. */
  private async step(check: string, probe: Probe): Promise<boolean> {
    try {
      const seen = await probe();
      if (seen !== undefined) this.add({ check, outcome: 'ok', seen });
      return true;
    } catch (error) {
      if (error instanceof NotOk) {
        this.add({ check, ...error.verdict });
        return error.verdict.outcome !== 'failed';
      }
      const fault = faultOf(error);
      if (fault === undefined) throw error;
      const { message: seen, reason } = fault;
      this.add({ check, outcome: 'failed', seen, reason, advice: adviceFor(reason, this.check.store.kind) });
      return false;
    }
  }

  private async reading(): Promise<void> {
    await this.step('HEAD', async () => {
      const found = await this.check.store.head(this.names[0]);
      if (found?.size === PROBE_BYTES) return 'the size is as declared';
      return wrong(found === undefined ? 'the upload is not there' : `${found.size} bytes`);
    });
    let signed: SignedRequest | undefined;
    await this.step('signed GET', async () => {
      signed = await this.download();
      const { body } = this.accepted(await send(signed.url, { method: 'GET' }), [200]);
      return body.equals(this.body) ? 'the same bytes came back' : wrong('other bytes came back');
    });
    if (signed === undefined) return;
    const { url } = signed;
    await this.step('range', async () => {
      const part = await send(url, { method: 'GET', headers: { range: 'bytes=50000-50009' } });
      const { status, body } = this.accepted(part, [200, 206]);
      if (status === 206 && body.equals(this.body.slice(50_000, 50_010))) return 'ten bytes from the middle';
      return weak('ranges are not served: an interrupted download starts again');
    });
    await this.refused('altered URL', altered(url), NOT_VERIFIED);
    const unverified = this.verdicts.at(-1)?.reason === 'public';
    await this.refused('no signature', url.replace(/\?.*$/s, ''), unverified ? NOT_VERIFIED : NOT_PUBLIC);
    await sleep(Math.max(0, this.shortSince + 2 * SHORT_MS - Date.now()));
    await this.refused('late URL', this.short?.url ?? '', NOT_VERIFIED);
  }

  /** Checks that a request is refused; `advice` is for a store that answers it. */
  private async refused(check: string, url: string, advice: string): Promise<void> {
    await this.step(check, async () => {
      const answer = await send(url, { method: 'GET' });
      if (isRefusal(answer)) return `refused (${answer.status})`;
      const seen = `the store answered ${answer.status} instead of refusing`;
      throw new NotOk({ outcome: 'failed', seen, advice, reason: 'public' });
    });
  }

  /** One verdict for each origin. */
  private async browsers(): Promise<undefined> {
    const upload = await this.upload({ ...this.names[0], ref: `${ulid()}.bin` }, 10);
    const download = await this.download();
    const { origins } = this.check;
    if (origins.length === 0)
      throw new NotOk({ outcome: 'skipped', seen: 'neither CORS_ORIGINS nor the address of a web app is set' });
    const verdicts: Verdict[] = [];
    for (const origin of origins)
      verdicts.push(await corsVerdict(origin === '*' ? ANY_ORIGIN : origin, upload, download));
    for (const verdict of verdicts) this.add(verdict);
  }

  private async cleaning(): Promise<string> {
    for (const name of this.names) await this.check.store.remove(name);
    const found = await this.check.store.head(this.names[0]);
    return found === undefined ? 'the object is gone' : wrong('the object is still there');
  }

  private add(verdict: Verdict): void {
    this.verdicts.push(verdict);
    this.check.onVerdict(verdict);
  }
}

/** An origin that no rule names: it passes only if every origin is allowed. */
const ANY_ORIGIN = 'https://origin.example';

/** Headers that a browser sets itself, without a preflight for them. */
const OWN: ReadonlySet<string> = new Set(['content-length', 'host']);

const listOf = (text: string | null): string[] => (text ?? '').split(',').map((part) => part.trim().toLowerCase());

async function corsVerdict(origin: string, upload: SignedRequest, download: SignedRequest): Promise<Verdict> {
  const needed = Object.keys(upload.headers).filter((name) => !OWN.has(name));
  const headers = {
    origin,
    'access-control-request-method': 'PUT',
    'access-control-request-headers': [...needed].sort().join(','),
  };
  const preflight = await send(upload.url, { method: 'OPTIONS', headers });
  const answer = await send(download.url, { method: 'GET', headers: { origin } });
  const missing = missingUpload(preflight, origin, needed);
  if (!allows(answer, origin)) missing.push('downloads of this origin');
  const check = `CORS ${origin}`;
  if (missing.length === 0) return { check, outcome: 'ok', seen: 'browsers may upload and download' };
  const advice =
    `Give the bucket a CORS rule: origin ${origin}, methods GET, HEAD and PUT, headers ${needed.join(', ')} and range, ` +
    'exposing etag, content-length and content-range.';
  return { check, outcome: 'failed', seen: `the bucket does not allow ${missing.join(', ')}`, reason: 'cors', advice };
}

/** True if a browser accepts the answer for this origin. */
const allows = ({ headers }: StoreAnswer, origin: string): boolean =>
  ['*', origin].includes(headers.get('access-control-allow-origin') ?? '');

/** The parts of an upload that a preflight does not allow. */
function missingUpload(preflight: StoreAnswer, origin: string, needed: readonly string[]): string[] {
  if (preflight.status >= 300 || !allows(preflight, origin)) return ['uploads of this origin'];
  const methods = listOf(preflight.headers.get('access-control-allow-methods'));
  const named = listOf(preflight.headers.get('access-control-allow-headers'));
  const headers = needed.filter((name) => !named.includes(name) && !named.includes('*'));
  const method = methods.includes('put') || methods.includes('*') ? [] : ['the method PUT'];
  return [...method, ...headers.map((name) => `the header ${name}`)];
}
