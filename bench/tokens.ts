/** Tokens of the bench's devices, signed as the server under test signs. */
import { issueToken } from '../src/server/http/tokens.js';

/** TOKEN_SECRET of the server under test: nothing but the bench ever holds data under it. */
export const BENCH_TOKEN_SECRET = 'secret-of-the-bench-and-of-nothing-else';

const DAY_MS = 86_400_000;
const secret = Buffer.from(BENCH_TOKEN_SECRET, 'utf8');

/** A token good for a day, for a device at its first token epoch. */
export const benchToken = (tenantId: string, deviceId: string): string =>
  issueToken(secret, { tenantId, deviceId, epoch: 1, expiresAt: Date.now() + DAY_MS });
