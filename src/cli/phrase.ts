/** Asking for the twelve words: unseen, checked, and never kept. */
import { masterKeyOfSeed, phraseSeed } from '../crypto/master-key.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** How the words are got. */
export interface PhraseRequest {
  readonly question: string;
  /** Read standard input instead of asking: for a password manager that pipes them. */
  readonly fromInput?: boolean;
  /** Throws `CommandError` for a seed that is not the one wanted; then it is asked again. */
  readonly check?: (seed: Uint8Array) => Promise<void>;
}

/** A typing error is likely in twelve unseen words. */
const TRIES = 3;
/** Twelve words of at most eight letters, and room for white space. */
const INPUT_MAX = 1024;

/**
 * The seed of the twelve words; the caller erases it. Throws `CommandError` where they cannot be asked for, or were
 * wrong each time. No message repeats a word.
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
    throw new CommandError(EXIT.usage, `These are not twelve words of a phrase: ${error.message}.`);
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
  const derived = await masterKeyOfSeed(sodium, seed);
  const own = sodium.equal(derived, masterKey);
  sodium.memzero(derived);
  if (!own) throw new CommandError(EXIT.failure, 'These are not the twelve words of this vault.');
}
