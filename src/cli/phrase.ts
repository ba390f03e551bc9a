/** Asking for the twelve words: without echo, validated, and never stored. */
import { masterKeyOfSeed, phraseSeed } from '../crypto/master-key.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { erasing, type Sodium } from '../crypto/sodium.js';
import { retryMistyped } from '../device/newcomer.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** Twelve words of eight letters at most, with white space. */
const INPUT_MAX = 1024;

/** The words are not those of a phrase, or not the wanted ones: the user is asked again. */
class WrongPhrase extends CommandError {}

interface PhraseRequest {
  readonly question: string;
  /** Reads standard input instead, for password managers. */
  readonly fromInput: boolean;
  /** The seed must give this master key. */
  readonly masterKey?: Uint8Array;
}

/**
 * The seed of the twelve words; the caller erases it. Throws `CommandError` without a terminal, or when they were wrong
 * three times. No message contains a word.
 */
export async function askSeed(sodium: Sodium, terminal: Terminal, request: PhraseRequest): Promise<Uint8Array> {
  const { question, fromInput, masterKey } = request;
  if (fromInput) return seedOf(sodium, (await terminal.readInput(INPUT_MAX)).toString('utf8'), masterKey);
  const attempt = async (): Promise<Uint8Array> =>
    seedOf(sodium, await terminal.ask(question, { hidden: true }), masterKey);
  return retryMistyped(terminal, attempt, (error) =>
    error instanceof WrongPhrase ? `${error.message} Try again.` : undefined,
  );
}

async function seedOf(sodium: Sodium, typed: string, masterKey: Uint8Array | undefined): Promise<Uint8Array> {
  const seed = await phraseSeed(sodium, typed).catch((error: unknown) => {
    if (!(error instanceof CryptoRefusal)) throw error;
    throw new WrongPhrase(EXIT.usage, `These are not twelve words of a phrase: ${error.message}.`);
  });
  try {
    if (masterKey === undefined) return seed;
    const derived = await masterKeyOfSeed(sodium, seed);
    if (erasing(sodium, derived, (own) => sodium.equal(own, masterKey))) return seed;
    throw new WrongPhrase(EXIT.failure, 'These are not the twelve words of this vault.');
  } catch (error) {
    sodium.memzero(seed);
    throw error;
  }
}
