/** The second factor of pairing and recovery (reference, Pairing, Account password). */

/** A password ticket whose signature is valid for the tenant and key it was presented with. */
export interface PasswordProof {
  /** Hexadecimal; names the ticket in the list of used ones. */
  readonly ticketId: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
  /** `password_set_at` of its password: a new password invalidates the ticket. */
  readonly setAt: number;
}
