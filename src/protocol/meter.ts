/** What parts tell of their work while it happens. A port: with METRICS_PORT unset nobody listens. */

/** Each call is cheap, and is made once a batch, page or refusal, never once an item or socket. */
export interface Meter {
  /** A batch of changes was answered: `waitMs` after its oldest change came in, of which `commitMs` in the database. */
  committed(changes: number, commitMs: number, waitMs: number): void;
  /** Frames of changes that were made here were handed to sockets, `ms` after the oldest of them came in. */
  pushed(ms: number): void;
  /** A page of a replay, a gap or a listing was read. */
  read(rows: number): void;
  /** Notifications of tenants that changed, to or from other instances. */
  notified(direction: 'sent' | 'received', tenants: number): void;
  /** A request was refused, with a code of the catalogue as shape A spells it. */
  refused(code: string): void;
}
