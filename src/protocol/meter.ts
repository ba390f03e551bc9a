/** The metrics that the server's parts report; without METRICS_PORT there is no implementation. */

/** Each call is cheap and made once per batch, page or refusal, never per item or socket. */
export interface Meter {
  /** A batch of changes was answered `waitMs` after its oldest change arrived; it spent `commitMs` in the database. */
  committed(changes: number, commitMs: number, waitMs: number): void;
  /** Frames of this instance's changes were written to sockets `ms` after the oldest change arrived. */
  pushed(ms: number): void;
  /** A page of a replay, a gap or a listing was read. */
  read(rows: number): void;
  /** Notifications of changed tenants, to or from other instances. */
  notified(direction: 'sent' | 'received', tenants: number): void;
  /** A request was refused, with a code of the catalogue as shape A spells it. */
  refused(code: string): void;
  /** An upgrade was refused with a time to reconnect. */
  turnedAway(why: 'drain' | 'admission'): void;
}
