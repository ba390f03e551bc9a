/** Asking for the twelve words: without echo, validated, and never stored. */
import { masterKeyOfSeed, phraseSeed } from '../crypto/master-key.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { erasing, type Sodium } from '../crypto/sodium.js';
import { CommandError, EXIT, type Terminal, usageError } from '../terminal/terminal.js';

interface PhraseRequest {
  readonly question: string;
  /** Reads standard input instead, for password managers. */
  readonly fromInput?: boolean;
  /** Throws `CommandError` for the wrong seed; the user is asked again. */
  readonly check?: (seed: Uint8Array) => Promise<void>;
}

const TRIES = 3;
/** Twelve words of eight letters at most, with white space. */
const INPUT_MAX = 1024;

/**
 * The seed of the twelve words; the caller erases it. Throws `CommandError` without a terminal, or when they were wrong
 * three times. No message contains a word.
 */
export async function askSeed(sodium: Sodium, terminal: Terminal, request: PhraseRequest): Promise<Uint8Array> {
  for (let tries = 1; ; tries++) {
    const typed =
      request.fromInput === true
        ? (await terminal.readInput(INPUT_MAX)).toString('utf8')
        : await terminal.ask(request.question, { hidden: true });
    try {
      return await seedOf(sodium, typed, request);
    } catch (error) {
      if (!(error instanceof CommandError) || request.fromInput === true || tries >= TRIES) throw error;
      terminal.note(`${error.message} Try again.`);
    }
  }
}

async function seedOf(sodium: Sodium, typed: string, { check }: PhraseRequest): Promise<Uint8Array> {
  let seed: Uint8Array;
  try {
    seed = await phraseSeed(sodium, typed);
  } catch (error) {
    if (!(error instanceof CryptoRefusal)) throw error;
    throw usageError(`These are not twelve words of a phrase: ${error.message}.`);
  }
  try {
    await check?.(seed);
    return seed;
  } catch (error) {
    sodium.memzero(seed);
    throw error;
  }
}

/** Throws `CommandError` unless the seed gives this master key. */
export async function expectOwnSeed(sodium: Sodium, seed: Uint8Array, masterKey: Uint8Array): Promise<void> {
  const own = erasing(sodium, await masterKeyOfSeed(sodium, seed), (derived) => sodium.equal(derived, masterKey));
  if (!own) throw new CommandError(EXIT.failure, 'These are not the twelve words of this vault.');
}
