/** What a lie is: data for the tests that play it and for the table of the reference. */
import type { Stage } from './stage.js';

/** Where in the reference's table a lie stands. */
export type Family =
  'items' | 'stream' | 'writes' | 'devices' | 'pairing' | 'challenge' | 'bins' | 'transport' | 'blobs';

export interface Told {
  /** `LIAR-NN`; the rule of the same number says the same. */
  readonly id: string;
  readonly family: Family;
  /** What the server does, as the second half of a sentence that begins with "The server". */
  readonly does: string;
  readonly notices: string;
  /**
   * How it is named, exactly: `event`, `event reason`, `problem Class code` for what fails in the background, and
   * `throws Class code` for what a call ends with. Empty: it has no effect, so there is nothing to tell.
   */
  readonly named: readonly string[];
  /** What the lie costs its victim all the same. */
  readonly costs: string;
}

/** A lie, and how it is played against a device. */
export interface Lie extends Told {
  /** Arms the liar and brings the lie about. What the victim tells is compared with `named` after it. */
  readonly play: (stage: Stage) => Promise<void>;
}

/** What no client can find out. */
export interface Undetectable {
  readonly does: string;
  readonly why: string;
  readonly limits: string;
}

/** An error as the catalogue names it. */
export function nameOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code, reason, cause } = error as Error & { code?: unknown; reason?: unknown };
  const within = cause instanceof Error && cause.name === 'CryptoRefusal' ? `: ${nameOf(cause)}` : '';
  const mark = typeof reason === 'string' ? ` ${reason}` : typeof code === 'string' ? ` ${code}` : '';
  return `${error.name}${mark}${within}`;
}
