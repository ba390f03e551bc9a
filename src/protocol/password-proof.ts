/** The second factor of pairing and recovery, as far as both know of it (reference, Pairing, Account password). */

/** A password ticket whose signature holds for the tenant and key it was shown with, and what spending it takes. */
export interface PasswordProof {
  /** Hexadecimal; names the ticket in the list of spent ones. */
  readonly ticketId: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
  /** `password_set_at` of the password that was shown: a ticket dies with its password. */
  readonly setAt: number;
}
