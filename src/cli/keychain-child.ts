/** The child process that calls the system's keychain (see `keychain.ts`): one request on standard input, one answer. */
import { text } from 'node:stream/consumers';
import { asError } from '../protocol/error-code.js';
import { PROGRAM_NAME } from './context.js';
import type { KeychainAnswer, KeychainRequest } from './keychain.js';

async function answer({ op, account, secret }: KeychainRequest): Promise<KeychainAnswer> {
  const { AsyncEntry } = await import('@napi-rs/keyring');
  // On Linux the library falls back on the kernel's key ring, which is emptied by a restart: the device would be lost.
  // Only the secret service is persistent.
  const entry = new AsyncEntry(PROGRAM_NAME, account, { linux: { store: 'secret-service' } });
  if (op === 'set') await entry.setPassword(secret ?? '');
  if (op === 'delete') await entry.deletePassword();
  return { secret: op === 'get' ? ((await entry.getPassword()) ?? null) : null, failure: '' };
}

const reply = await text(process.stdin)
  .then((request) => answer(JSON.parse(request) as KeychainRequest))
  .catch((error: unknown): KeychainAnswer => ({ secret: null, failure: asError(error).message || 'unknown' }));
process.stdout.write(JSON.stringify(reply));
