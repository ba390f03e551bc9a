/** Tokens of the bench's devices, signed as by the server under test. */
import { issueToken } from '../src/server/http/tokens.js';

/** TOKEN_SECRET of the server under test; protects only data of the bench. */
export const BENCH_TOKEN_SECRET = 'secret-of-the-bench-and-of-nothing-else';

const DAY_MS = 86_400_000;
const secret = Buffer.from(BENCH_TOKEN_SECRET, 'utf8');

/** A token for a device at its first token epoch, valid for a day. */
export const benchToken = (tenantId: string, deviceId: string): string =>
  issueToken(secret, { tenantId, deviceId, epoch: 1, expiresAt: Date.now() + DAY_MS });
