/**
 * Signed one-use tickets. Issuing costs no statement; a use is written down where every instance
 * sees it. A socket ticket is spent when it is redeemed, a password ticket by the statement that it opens.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../../protocol/clock.js';
import { PASSWORD_TICKET_MS, WS_TICKET_MS } from '../../protocol/limits.js';
import type { PasswordProof } from '../../protocol/password-proof.js';
import type { TicketStore } from './ports.js';
import { FieldReader, FieldWriter, KIND, openText, sealText } from '../http/signed.js';

/** A ticket as its holder gets it. */
export interface Ticket {
  readonly ticket: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** What tickets are made of; `secret` is the key of their MAC, TOKEN_SECRET's bytes. */
export interface TicketsOptions {
  readonly secret: Uint8Array;
  readonly clock: Clock;
  readonly store: TicketStore;
}

/** Whose socket a ticket opens. */
export interface SocketRight {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly epoch: number;
  /** When the token ends that the ticket was asked for with, ms: the socket ends with it, as if opened by it. */
  readonly tokenExpiresAt: number;
}

/** Whom a password ticket is for. */
export interface PasswordScope {
  readonly tenantId: string;
  /** The key that the ticket is bound to; null: any. */
  readonly pubkey: Uint8Array | null;
}

const ID_BYTES = 16;
const NO_KEY = new Uint8Array(0);

const keyHash = (pubkey: Uint8Array): Buffer => createHash('sha256').update(pubkey).digest();

/** Issues tickets and reads them, for sockets and for the password. */
export class Tickets {
  constructor(private readonly options: TicketsOptions) {}

  /** A ticket for `/ws?ticket=`: 60 seconds, one use. */
  issueSocket(right: SocketRight): Ticket {
    const { secret, clock } = this.options;
    const expiresAt = clock.now() + WS_TICKET_MS;
    const body = new FieldWriter(KIND.socketTicket)
      .bytes(randomBytes(ID_BYTES))
      .number(expiresAt)
      .text(right.tenantId)
      .text(right.deviceId)
      .number(right.epoch)
      .number(right.tokenExpiresAt)
      .done();
    return { ticket: sealText(secret, body), expiresAt };
  }

  /** The device whose socket may open, for the first caller on any instance; else undefined. */
  async redeemSocket(ticket: string, tenantId: string): Promise<Omit<SocketRight, 'tenantId'> | undefined> {
    const body = this.open(ticket, KIND.socketTicket);
    if (body === undefined) return undefined;
    const fields = new FieldReader(body);
    const id = fields.bytes().toString('hex');
    const expiresAt = fields.number();
    if (fields.text() !== tenantId || expiresAt <= this.options.clock.now()) return undefined;
    const right = { deviceId: fields.text(), epoch: fields.number(), tokenExpiresAt: fields.number() };
    return (await this.options.store.spend(id, expiresAt)) ? right : undefined;
  }

  /** A ticket that the password was shown: 10 minutes, one use. `setAt`: when that password was set. */
  issuePassword(scope: PasswordScope & { readonly setAt: number }): Ticket {
    const { secret, clock } = this.options;
    const expiresAt = clock.now() + PASSWORD_TICKET_MS;
    const body = new FieldWriter(KIND.passwordTicket)
      .bytes(randomBytes(ID_BYTES))
      .number(expiresAt)
      .text(scope.tenantId)
      .bytes(scope.pubkey === null ? NO_KEY : keyHash(scope.pubkey))
      .number(scope.setAt)
      .done();
    return { ticket: sealText(secret, body), expiresAt };
  }

  /** What a ticket proves to this tenant for this key; undefined for one that is altered, late or another's. */
  passwordProof(ticket: string, scope: { tenantId: string; pubkey: Uint8Array }): PasswordProof | undefined {
    const body = this.open(ticket, KIND.passwordTicket);
    if (body === undefined) return undefined;
    const fields = new FieldReader(body);
    const ticketId = fields.bytes().toString('hex');
    const expiresAt = fields.number();
    if (fields.text() !== scope.tenantId || expiresAt <= this.options.clock.now()) return undefined;
    const bound = fields.bytes();
    if (bound.length > 0 && !timingSafeEqual(bound, keyHash(scope.pubkey))) return undefined;
    return { ticketId, expiresAt, setAt: fields.number() };
  }

  private open(ticket: string, kind: number): Buffer | undefined {
    const body = openText(this.options.secret, ticket);
    return body !== undefined && FieldReader.kindOf(body) === kind ? body : undefined;
  }
}
