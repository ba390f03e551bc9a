/** Results of the checks of a store, in words for an operator. */
import { MINUTE_MS } from '../../../protocol/clock.js';
import { reasonOfS3Code, type FaultReason } from '../../blobs/objects/fault.js';

/** `weak`: it works, but the store lacks ranges, or does not enforce a limit, which only the server then enforces. */
export type Outcome = 'ok' | 'weak' | 'failed' | 'skipped';

/** One line of the result. */
export interface Verdict {
  /** Such as `signed PUT`. */
  readonly check: string;
  readonly outcome: Outcome;
  /** What was seen. */
  readonly seen: string;
  /** What to do about it. */
  readonly advice?: string;
  /** Of a failure, for scripts and for the exit code. */
  readonly reason?: FaultReason | 'cors' | 'public' | 'wrong';
}

type StoreKind = 'local' | 'gcs' | 's3';

const CREDENTIALS: Readonly<Record<StoreKind, string>> = {
  local: 'Run this as the user of the server, with its environment.',
  gcs: 'Set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account that exists and may use the bucket, or give the machine one (workload identity).',
  s3: 'Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or give the machine a role) as the store issued them.',
};

const RIGHTS: Readonly<Record<StoreKind, string>> = {
  local: 'The folder and its files have to belong to the user of the server.',
  gcs: 'Give the service account the role Storage Object User (roles/storage.objectUser) on this bucket; without a key file also Service Account Token Creator (roles/iam.serviceAccountTokenCreator) on itself, for iam.serviceAccounts.signBlob.',
  s3: 'The key needs s3:PutObject, s3:GetObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListMultipartUploadParts on the objects and s3:ListBucket on the bucket.',
};

/** What to do about a fault of the store. */
export function adviceFor(reason: FaultReason, kind: StoreKind): string {
  const variables = kind === 'gcs' ? 'GCS' : 'S3';
  const away = `Is the address right (${variables}_ENDPOINT), the store up, and the network open (DNS, firewall, TLS)?`;
  const advice: Readonly<Record<FaultReason, string>> = {
    credentials: CREDENTIALS[kind],
    denied: RIGHTS[kind],
    bucket: `Create the bucket, or correct ${variables}_BUCKET: the store does not know it.`,
    region: 'Set S3_REGION to the region of the bucket.',
    clock: 'Set the clock of this machine (NTP): signatures carry the time.',
    unreachable: away,
    timeout: away,
    broken: 'The store reported an internal error: try again, then check its status.',
    refused: 'The store does not accept this request; is it a store of this kind, and is its version recent?',
  };
  return advice[reason];
}

/** Thrown by a check whose outcome is not `ok`. */
export class NotOk extends Error {
  constructor(readonly verdict: Omit<Verdict, 'check'>) {
    super(verdict.seen);
  }
}

/** Ends a check as `weak`. */
export function weak(seen: string): never {
  throw new NotOk({ outcome: 'weak', seen });
}

/** Ends a check as failed: the store returned something other than what was written. */
export function wrong(seen: string): never {
  const advice = 'Is there something in between, such as a proxy or a CDN that changes or keeps bodies?';
  throw new NotOk({ outcome: 'failed', seen, reason: 'wrong', advice });
}

/** Why a store refused a signed request. Google answers an expired URL with the code that S3 has for expired credentials. */
export function reasonOfAnswer(status: number, code: string | undefined, kind: StoreKind): FaultReason {
  if (kind === 'gcs' && code === 'ExpiredToken') return 'clock';
  const known = code === undefined ? undefined : reasonOfS3Code(code);
  if (known !== undefined) return known;
  // The secret is the only credential of this server's own URLs.
  if (status === 401 || (kind === 'local' && status === 403)) return 'credentials';
  if (status === 403) return 'denied';
  return status >= 500 ? 'broken' : 'refused';
}

const SECOND_MS = 1000;

/** `2 h 5 min`, `40 s`. */
export function spanOf(ms: number): string {
  const whole = Math.abs(ms);
  if (whole < MINUTE_MS) return `${Math.round(whole / SECOND_MS)} s`;
  const minutes = Math.round(whole / MINUTE_MS);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
