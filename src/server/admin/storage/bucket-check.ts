/** The checks of a bucket with real requests: those of clients, by signed URLs, and those of the server. */
import { MINUTE_MS } from '../../../protocol/clock.js';
import type { BlobName } from '../../../protocol/ids.js';
import { partSizeOf, type ObjectStore, type SignedRequest } from '../../blobs/ports.js';
import {
  COMMON,
  isRefusal,
  PROBE_BYTES,
  send,
  StoreRun,
  type Steps,
  type StoreAnswer,
  type StoreCheck,
} from './run.js';
import { adviceFor, NotOk, spanOf, weak, wrong, type Verdict } from './verdict.js';

/** The largest ULID: no tenant has it, so no tenant's blobs lie under it. */
const LAST_ULID = '7ZZZZZZZZZZZZZZZZZZZZZZZZZ';
/** Fixed names: the next check removes what an interrupted one left behind. */
const PROBE: BlobName = { tenantId: LAST_ULID, ref: `${LAST_ULID}.bin` };
/** For uploads that must be refused, and for the upload in parts. */
const SECOND: BlobName = { tenantId: LAST_ULID, ref: `${LAST_ULID.slice(0, -1)}Y.bin` };
/** A larger clock difference shortens the life of each URL; from about 15 minutes on, stores refuse requests. */
const SKEW_MAX_MS = MINUTE_MS;

const CHECKS = ['credentials', 'endpoint', 'clock', 'list', 'signed PUT', 'parts', 'once only', 'exact size'] as const;

/** Checks the store's bucket. Does not reject on faults of the store: they become verdicts. */
export function checkBucket(check: StoreCheck): Promise<readonly Verdict[]> {
  const run = new StoreRun(check, [PROBE, SECOND]);
  const { body } = run;
  let upload: SignedRequest | undefined;
  return run.run({
    checks: [...CHECKS, ...COMMON, 'CORS', 'DELETE'],
    opening: {
      ...prerequisites(run, check.store),
      'signed PUT': async () => {
        upload = await run.upload(PROBE, PROBE_BYTES);
        run.accepted(await put(upload, body), [200, 201, 204]);
        return `${PROBE_BYTES} bytes were uploaded`;
      },
    },
    uploads: {
      parts: () => uploadInParts(check.store),
      'once only': async () => {
        const answer = await put(upload ?? (await run.upload(PROBE, PROBE_BYTES)), body);
        if (isRefusal(answer)) return `a second upload over the first is refused (${answer.status})`;
        return weak('a second upload replaces the first: the store does not honour if-none-match');
      },
      'exact size': async () => {
        const { url, headers } = await run.upload(SECOND, 10);
        const declared = { ...headers, ...('content-length' in headers ? { 'content-length': '11' } : {}) };
        const answer = await put({ url, headers: declared }, body.slice(0, 11));
        if (isRefusal(answer)) return `a longer upload than declared is refused (${answer.status})`;
        return weak('a longer upload than declared is accepted: the server detects it when an item names it');
      },
    },
  });
}

/** Begins an upload in parts and aborts it: no other check needs the permissions for that. */
async function uploadInParts(store: ObjectStore): Promise<string> {
  const start = { size: partSizeOf(0) + 1, contentType: 'application/octet-stream' };
  const session = await store.begin(SECOND, start);
  if (session === undefined) throw new Error('an upload of two parts has no session');
  const upload = { ...SECOND, ...start, session, kept: 0 };
  try {
    const kept = await store.offsetOf(upload);
    return kept === 0 ? 'an upload in parts begins, and its offset can be read' : wrong('a begun upload is missing');
  } finally {
    await store.abort(upload);
  }
}

const put = ({ url, headers }: SignedRequest, body: Uint8Array<ArrayBuffer>): Promise<StoreAnswer> =>
  send(url, { method: 'PUT', headers, body });

/** Credentials, endpoint, clock, permission to list; clears what an interrupted check left behind. */
function prerequisites(run: StoreRun, store: ObjectStore): Steps {
  let origin = '';
  let answer: StoreAnswer | undefined;
  return {
    credentials: async () => {
      origin = new URL((await run.sign()).url).origin;
      return 'they are available and can sign';
    },
    endpoint: async () => {
      answer = await send(`${origin}/`, { method: 'GET' });
      return `${origin} answers`;
    },
    clock: async () => clockDifference(store, Date.parse(answer?.headers.get('date') ?? '')),
    list: async () => {
      const listing = store.list()[Symbol.asyncIterator]();
      await listing.next();
      await listing.return?.();
      return 'the bucket exists and can be listed';
    },
    DELETE: async () => {
      for (const name of [PROBE, SECOND]) await store.remove(name);
      return undefined;
    },
  };
}

function clockDifference({ kind }: ObjectStore, theirs: number): string {
  if (Number.isNaN(theirs)) throw new NotOk({ outcome: 'skipped', seen: 'the store does not report its time' });
  const ahead = Date.now() - theirs;
  if (Math.abs(ahead) <= SKEW_MAX_MS) return 'the same as that of the store, to the minute';
  const seen = `this machine is ${spanOf(ahead)} ${ahead > 0 ? 'ahead of' : 'behind'} the store`;
  throw new NotOk({ outcome: 'failed', seen, reason: 'clock', advice: adviceFor('clock', kind) });
}
