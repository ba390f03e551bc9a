/** The second factor of pairing and recovery (reference, Pairing, Account password). */

/** A password ticket whose signature is valid for the tenant and the key that it was presented with. */
export interface PasswordProof {
  /** Hexadecimal; the ticket's key in the list of used tickets. */
  readonly ticketId: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
  /** `password_set_at` of its password: a new password invalidates the ticket. */
  readonly setAt: number;
}
