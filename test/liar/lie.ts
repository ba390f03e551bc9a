/** What a lie is: data for the tests that play it and for the table of the reference. */
import type { Stage } from './stage.js';

/** The section of the reference's page that lists a lie. */
export type Family =
  | 'items'
  | 'stream'
  | 'writes'
  | 'devices'
  | 'pairing'
  | 'challenge'
  | 'bins'
  | 'transport'
  | 'blobs';

export interface Told {
  /** `LIAR-NN`; the rule of the same number says the same. */
  readonly id: string;
  readonly family: Family;
  /** What the server does, as the second half of a sentence that begins with "The server". */
  readonly does: string;
  readonly notices: string;
  /**
   * How it is reported: `event`, `event reason`, `problem Class code` for a failure in the background, and
   * `throws Class code` for the error with which a call rejects. Empty: it has no effect, so nothing is reported.
   */
  readonly named: readonly string[];
  /** What the lie still costs its victim. */
  readonly costs: string;
}

/** A lie, and how it is played against a device. */
export interface Lie extends Told {
  /** Sets the liar's hooks and provokes the lie. Afterwards the victim must have reported each of `named`. */
  readonly play: (stage: Stage) => Promise<void>;
}

/** A lie that no client can detect. */
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
