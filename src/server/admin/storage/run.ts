/** What the checks of all stores have in common: reading, what must be refused, browsers, and leaving nothing behind. */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ulid } from 'ulid';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest } from '../../blobs/ports.js';
import { faultOf } from '../../blobs/objects/fault.js';
import { altered, ask, type StoreAnswer } from './requests.js';
import { adviceFor, NotOk, reasonOfAnswer, weak, wrong, type Verdict } from './verdict.js';

/** What is checked. */
export interface StoreCheck {
  readonly store: ObjectStore;
  /** Of CORS_ORIGINS. */
  readonly origins: readonly string[];
  /** Told of each verdict when it stands. */
  readonly onVerdict: (verdict: Verdict) => void;
}

/** A check by its name: what it saw, where all is well (undefined: nothing is said of that). Throws `NotOk` and faults. */
export type Step = readonly [check: string, probe: () => Promise<string | undefined>];

/** What a kind of store adds to the checks that all have in common. */
export interface Plan {
  /** All checks, in the order in which those that were not made are told. */
  readonly checks: readonly string[];
  /** What has to be there before anything else: the first that fails ends it. */
  readonly opening: readonly Step[];
  /** Brings `body` into the store under `probe`. Where it fails, nothing else is tried. */
  readonly writing: Step;
  /** What must not be taken beside it. */
  readonly uploads: readonly Step[];
}

/** Bytes of the blob that is written and read. */
export const PROBE_BYTES = 100_000;
/** Checks of every store. */
export const COMMON = ['HEAD', 'signed GET', 'range', 'altered URL', 'no signature', 'late URL'] as const;
const UPLOAD_MS = 15 * 60_000;
const DOWNLOAD_MS = 5 * 60_000;
const SHORT_MS = 1_000;

const NOT_PUBLIC =
  'The bucket must not be public: take away every right of everybody (allUsers, anonymous, public access).';
/** Rights are of no use there: whatever the request shows is believed. */
const NOT_VERIFIED =
  'The store does not check signatures and their time: turn that on there, or take another store. Whoever knows a name gets in.';

const lasting = (ms: number, now = Date.now()): DownloadGrant => ({ now, expiresAt: now + ms });

/** True where a request was refused as one that must not work. */
export const isRefusal = ({ status }: StoreAnswer): boolean => status >= 400 && status < 500;

/** One check, step by step. A step that fails is a verdict, and what builds on it is left out. */
export class StoreRun {
  readonly body = new Uint8Array(randomBytes(PROBE_BYTES));
  private readonly verdicts: Verdict[] = [];
  private readonly store: ObjectStore;
  private short: SignedRequest | undefined;
  private shortSince = 0;
  private verifies = true;

  /** `names`: what may be written, the blob that is read first; `origin`: see `ObjectStore`. */
  constructor(
    private readonly check: StoreCheck,
    private readonly names: readonly [ObjectName, ...ObjectName[]],
    private readonly origin = '',
  ) {
    this.store = check.store;
  }

  /** Goes through all steps; what can no longer be told after a failure is `skipped`. */
  async run({ checks, opening, writing, uploads }: Plan): Promise<readonly Verdict[]> {
    if ((await this.inTurn(opening)) && (await this.step(writing))) {
      try {
        for (const step of uploads) await this.step(step);
        await this.reading();
        await this.step(['CORS', () => this.browsers()]);
      } finally {
        // Also after a failure: nothing that was written stays.
        await this.step(['DELETE', () => this.cleaning()]);
      }
    }
    for (const check of checks) {
      if (this.verdicts.some((verdict) => verdict.check.startsWith(check))) continue;
      this.add({ check, outcome: 'skipped', seen: 'not tried after the failure above' });
    }
    return this.verdicts;
  }

  /** Signs the URL that is to be late at the end; the first thing that needs credentials. */
  async sign(): Promise<SignedRequest> {
    this.short = await this.download(SHORT_MS);
    this.shortSince = Date.now();
    return this.short;
  }

  /** A signed upload of so many bytes. */
  upload(name: ObjectName, size: number): Promise<SignedRequest> {
    const grant = { size, contentType: 'application/octet-stream', ...lasting(UPLOAD_MS) };
    return this.store.signUpload(name, grant, this.origin);
  }

  /** The answer, where its status is one of these. Throws `NotOk`. */
  accepted(answer: StoreAnswer, statuses: readonly number[]): StoreAnswer {
    const { status, code } = answer;
    if (statuses.includes(status)) return answer;
    const reason = reasonOfAnswer(status, code, this.store.kind);
    const seen = `refused: ${status}${code === undefined ? '' : ` ${code}`}`;
    throw new NotOk({ outcome: 'failed', seen, reason, advice: adviceFor(reason, this.store.kind) });
  }

  private download(ms = DOWNLOAD_MS): Promise<SignedRequest> {
    return this.store.signDownload(this.names[0], lasting(ms), this.origin);
  }

  private async inTurn(steps: readonly Step[]): Promise<boolean> {
    for (const step of steps) if (!(await this.step(step))) return false;
    return true;
  }

  /** Makes a check; false where it failed. */
  private async step([check, probe]: Step): Promise<boolean> {
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
      this.add({ check, outcome: 'failed', seen, reason, advice: adviceFor(reason, this.store.kind) });
      return false;
    }
  }

  private async reading(): Promise<void> {
    await this.step(['HEAD', () => this.heading()]);
    let signed: SignedRequest | undefined;
    await this.step([
      'signed GET',
      async () => {
        signed = await this.download();
        const { body } = this.accepted(await ask(signed.url, { method: 'GET' }), [200]);
        return body.equals(this.body) ? 'the same bytes came back' : wrong('other bytes came back');
      },
    ]);
    if (signed === undefined) return;
    const { url } = signed;
    await this.step(['range', () => this.ranging(url)]);
    await this.step(['altered URL', () => this.mustRefuse('altered URL', altered(url))]);
    await this.step(['no signature', () => this.mustRefuse('no signature', url.replace(/\?.*$/s, ''))]);
    await sleep(Math.max(0, this.shortSince + 2 * SHORT_MS - Date.now()));
    await this.step(['late URL', () => this.mustRefuse('late URL', this.short?.url ?? '')]);
  }

  private async heading(): Promise<string> {
    const found = await this.store.head(this.names[0]);
    if (found?.size === PROBE_BYTES) return 'the size is the one declared';
    return wrong(found === undefined ? 'the upload is not there' : `${found.size} bytes`);
  }

  private async ranging(url: string): Promise<string> {
    const part = await ask(url, { method: 'GET', headers: { range: 'bytes=50000-50009' } });
    const { status, body } = this.accepted(part, [200, 206]);
    if (status === 206 && body.equals(this.body.slice(50_000, 50_010))) return 'ten bytes of the middle';
    return weak('ranges are not served: a download that breaks off begins anew');
  }

  /** What must not work. */
  private async mustRefuse(check: string, url: string): Promise<string> {
    const answer = await ask(url, { method: 'GET' });
    if (isRefusal(answer)) return `refused (${answer.status})`;
    const advice = check === 'no signature' && this.verifies ? NOT_PUBLIC : NOT_VERIFIED;
    if (check === 'altered URL') this.verifies = false;
    const seen = `the store answered ${answer.status} instead of refusing`;
    throw new NotOk({ outcome: 'failed', seen, advice, reason: 'public' });
  }

  private async browsers(): Promise<undefined> {
    const upload = await this.upload({ ...this.names[0], ref: `${ulid()}.bin` }, 10);
    const download = await this.download();
    const verdicts = await corsVerdicts({ upload, download, origins: this.check.origins });
    for (const verdict of verdicts) this.add(verdict);
  }

  private async cleaning(): Promise<string> {
    for (const name of this.names) await this.store.remove(name);
    const found = await this.store.head(this.names[0]);
    return found === undefined ? 'the object is gone' : wrong('the object is still there');
  }

  private add(verdict: Verdict): void {
    this.verdicts.push(verdict);
    this.check.onVerdict(verdict);
  }
}

/** URLs as a client gets them. */
interface CorsCheck {
  readonly upload: SignedRequest;
  readonly download: SignedRequest;
  readonly origins: readonly string[];
}

/** An origin of nobody's: it passes where every origin does. */
const ANYBODY = 'https://origin.example';

/** A browser sets these itself and does not ask about them. */
const OWN: ReadonlySet<string> = new Set(['content-length', 'host']);

const listOf = (text: string | null): string[] => (text ?? '').split(',').map((part) => part.trim().toLowerCase());

/** One verdict for each origin. Rejects with a fault where the store does not answer. */
async function corsVerdicts({ upload, download, origins }: CorsCheck): Promise<readonly Verdict[]> {
  if (origins.length === 0) {
    return [{ check: 'CORS', outcome: 'skipped', seen: 'CORS_ORIGINS is empty: no browser calls from elsewhere' }];
  }
  const verdicts: Verdict[] = [];
  for (const origin of origins.map((name) => (name === '*' ? ANYBODY : name))) {
    verdicts.push(await verdictFor(origin, { upload, download }));
  }
  return verdicts;
}

async function verdictFor(origin: string, { upload, download }: Omit<CorsCheck, 'origins'>): Promise<Verdict> {
  const needed = Object.keys(upload.headers).filter((name) => !OWN.has(name));
  const headers = {
    origin,
    'access-control-request-method': 'PUT',
    'access-control-request-headers': [...needed].sort().join(','),
  };
  const preflight = await ask(upload.url, { method: 'OPTIONS', headers });
  const answer = await ask(download.url, { method: 'GET', headers: { origin } });
  const missing = [...missingBefore(preflight, { origin, needed }), ...missingIn(answer, origin)];
  const check = `CORS ${origin}`;
  if (missing.length === 0) return { check, outcome: 'ok', seen: 'browsers may upload and download' };
  const advice =
    `Give the bucket a CORS rule: origin ${origin}, methods GET, HEAD and PUT, headers ${needed.join(', ')} and range, ` +
    'exposing etag, content-length and content-range.';
  return { check, outcome: 'failed', seen: `the bucket does not allow ${missing.join(', ')}`, reason: 'cors', advice };
}

/** The origin of an answer, as browsers compare it. */
const allows = ({ headers }: StoreAnswer, origin: string): boolean =>
  ['*', origin].includes(headers.get('access-control-allow-origin') ?? '');

function missingBefore(
  answer: StoreAnswer,
  { origin, needed }: { origin: string; needed: readonly string[] },
): string[] {
  if (answer.status >= 300 || !allows(answer, origin)) return ['uploads of this origin'];
  const methods = listOf(answer.headers.get('access-control-allow-methods'));
  const named = listOf(answer.headers.get('access-control-allow-headers'));
  const headers = needed.filter((name) => !named.includes(name) && !named.includes('*'));
  const method = methods.includes('put') || methods.includes('*') ? [] : ['the method PUT'];
  return [...method, ...headers.map((name) => `the header ${name}`)];
}

const missingIn = (answer: StoreAnswer, origin: string): string[] =>
  allows(answer, origin) ? [] : ['downloads of this origin'];
