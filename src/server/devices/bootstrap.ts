/** Bootstrap: the first device claims an empty tenant, once. */
import { createHash, timingSafeEqual } from 'node:crypto';
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import {
  certField,
  deviceReply,
  nameField,
  publicKeyField,
  type DeviceReply,
  type NewDevice,
} from '../../protocol/device-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesField, bytesWithin } from '../../protocol/item-codec.js';
import { KEY_BYTES, WRAPPED_MASTER_KEY_MAX, WRAPPED_MASTER_KEY_MIN } from '../../protocol/limits.js';
import type { BootstrapBody } from '../../protocol/requests.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { BootstrapStore } from './ports.js';
import type { TokenIssuer } from '../http/tokens.js';

/** What bootstrap is made of. */
export interface BootstrapOptions extends ChangeNotifier {
  readonly store: BootstrapStore;
  readonly clock: Clock;
  readonly issueToken: TokenIssuer;
  /** BOOTSTRAP_TOKEN; null: none is asked. In multi mode it is not looked at. */
  readonly bootstrapToken: string | null;
  /** Multi mode: the tenant's own claim token, from signup, decides, and nobody gets in without one. */
  readonly claimTokens: boolean;
  readonly maxDevices: number;
  /** Closes the tenant's sockets everywhere and forgets what is held of it. */
  readonly reset: (tenantId: string) => Promise<void>;
}

/** What a device gets when it has joined. */
export interface Claimed {
  readonly device: DeviceReply;
  readonly token: string;
  /** The very bytes that were sent, or null: the server keeps none. */
  readonly wrappedMasterKey: Uint8Array | null;
}

const sha256 = (value: string): Buffer => createHash('sha256').update(value, 'utf8').digest();

/** Claims of tenants by their first devices, and the operator's way back to an unclaimed one. */
export class Bootstrap {
  constructor(private readonly options: BootstrapOptions) {}

  /**
   * Claims the tenant for its first device. Throws `bootstrap_already_done`, and `forbidden` for a missing or wrong
   * claim token, which claims nothing.
   */
  async claim(tenantId: string, body: BootstrapBody): Promise<Claimed> {
    const { store, clock, issueToken, maxDevices } = this.options;
    const now = clock.now();
    const wrapped = body.wrappedMasterKey ?? null;
    const wrappedMasterKey =
      wrapped === null
        ? null
        : bytesWithin('wrappedMasterKey', wrapped, WRAPPED_MASTER_KEY_MIN, WRAPPED_MASTER_KEY_MAX);
    const recovery = body.recoveryPubkey ?? null;
    const device: NewDevice = {
      id: body.deviceId ?? ulid(now),
      name: nameField('name', body.name),
      glyph: body.glyph,
      pubkey: publicKeyField('pubkey', body.pubkey),
      cert: certField('deviceCert', body.deviceCert),
    };
    const claimToken = body.claimToken ?? null;
    // Strangers who knock at a claimed tenant do not get as far as its lock.
    if (await store.claimed(tenantId)) throw new ServiceError('bootstrap_already_done');
    const joined = await store.claim({
      tenantId,
      admitted: this.admits(claimToken),
      claimHash: claimToken === null ? null : sha256(claimToken),
      device,
      recoveryPubkey: recovery === null ? null : bytesField('recoveryPubkey', recovery, KEY_BYTES),
      maxDevices,
      now,
    });
    if (joined.verdict !== 'ok') throw new ServiceError(joined.verdict);
    await notifyChange(this.options, tenantId);
    const { token } = issueToken({ tenantId, deviceId: device.id, epoch: joined.epoch });
    return { device: deviceReply({ ...device, pairedAt: now }), token, wrappedMasterKey };
  }

  /**
   * Makes the tenant unclaimed again: devices, pairings, password and recovery key go, items stay.
   * Old tokens stay dead, also where a later device bears an old id. Throws `tenant_not_found`.
   */
  async restart(tenantId: string): Promise<{ ok: true }> {
    if (!(await this.options.store.restart(tenantId))) throw new ServiceError('tenant_not_found');
    // Done is done, as with every change: sockets that this left open close at the next comparison of heads.
    await notifyChange({ changed: this.options.reset, onFault: this.options.onFault }, tenantId);
    return { ok: true };
  }

  /** Has a device claimed the tenant? False also for an unknown one. */
  claimed(tenantId: string): Promise<boolean> {
    return this.options.store.claimed(tenantId);
  }

  /** Hashes are of one length, so comparing them in constant time tells nothing of the token. */
  private admits(claimToken: string | null): boolean {
    const { bootstrapToken, claimTokens } = this.options;
    // The token itself is compared under the tenant's lock, which spends it.
    if (claimTokens) return claimToken !== null;
    if (bootstrapToken === null) return true;
    return claimToken !== null && timingSafeEqual(sha256(claimToken), sha256(bootstrapToken));
  }
}
