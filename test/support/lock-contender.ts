/**
 * A process that wants a lock, for lock.test.ts: takes it once for each message, and says whether it was alone, or with
 * which code the lock was refused.
 */
import { mkdirSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { errorCode } from '../../src/protocol/error-code.js';
import { tryLock } from '../../src/files/lock.js';

const [folder = ''] = process.argv.slice(2);
const inside = join(folder, 'inside');

function critical(): string {
  try {
    mkdirSync(inside);
  } catch (error) {
    return errorCode(error) === 'EEXIST' ? 'two at once' : String(error);
  }
  // Long enough for another one to be there at the same time, were it let in.
  for (const end = performance.now() + 0.5; performance.now() < end;);
  rmdirSync(inside);
  return 'alone';
}

function once(): void {
  let attempt: ReturnType<typeof tryLock>;
  try {
    attempt = tryLock(join(folder, 'lock'));
  } catch (error) {
    process.send?.(errorCode(error));
    return;
  }
  if (!('lock' in attempt)) {
    setImmediate(once);
    return;
  }
  const found = critical();
  attempt.lock.release();
  process.send?.(found);
}

process.on('message', once);
process.send?.('ready');
