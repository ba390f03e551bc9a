/**
 * Devices, bootstrap, re-authentication, recovery, socket tickets and the account password (reference, Pairing). Each
 * handler throws `validation` for its id and body, and whatever its service throws.
 */
import type * as replies from '../../protocol/replies.js';
import {
  validateBootstrapBody,
  validateDevicePatchBody,
  validatePasswordRemoveBody,
  validatePasswordSetBody,
  validatePasswordVerifyBody,
  validateReauthBody,
  validateReauthChallengeBody,
  validateRecoverBody,
} from '../http/validators.js';
import type { Handler } from '../http/route.js';
import { hostName } from '../http/query.js';
import { fields, ulidOf } from '../http/fields.js';
import type { AddressLimits } from '../http/address-limits.js';
import type { Bootstrap } from './bootstrap.js';
import type { Devices } from './devices.js';
import type { Passwords } from './password.js';
import type { Reauthentication } from './reauth.js';
import type { Recovery } from './recovery.js';
import type { Tickets } from './tickets.js';

/** What the handlers need. */
export interface DeviceParts {
  readonly devices: Pick<Devices, 'list' | 'patch' | 'revoke'>;
  readonly bootstrap: Pick<Bootstrap, 'claim' | 'restart' | 'claimed'>;
  readonly reauth: Pick<Reauthentication, 'challenge' | 'answer'>;
  readonly recovery: Pick<Recovery, 'challenge' | 'recover'>;
  readonly tickets: Pick<Tickets, 'issueSocket'>;
  readonly passwords: Pick<Passwords, 'exists' | 'set' | 'remove' | 'verify'>;
  readonly addressLimits: Pick<AddressLimits, 'take'>;
}

type Raw = Uint8Array;

/** `GET /devices`. */
export const listDevices: Handler<DeviceParts, replies.DeviceList<Raw>> = (call, { devices }) =>
  devices.list(call.tenantId, call.deviceId);

/** `PATCH /devices/:id`. */
export const patchDevice: Handler<DeviceParts, replies.KnownDeviceReply<Raw>> = (call, { devices }) =>
  devices.patch(call.tenantId, ulidOf(call), validateDevicePatchBody(fields(call)), call.deviceId);

/** `POST /devices/:id/revoke`. */
export const revokeDevice: Handler<DeviceParts, replies.KnownDeviceReply<Raw>> = (call, { devices }) =>
  devices.revoke(call.tenantId, ulidOf(call), call.deviceId);

/** `POST /devices/bootstrap`: exactly one call wins. */
export const claim: Handler<DeviceParts, replies.Claimed<Raw>> = (call, { bootstrap }) =>
  bootstrap.claim(call.tenantId, validateBootstrapBody(fields(call)));

/** `POST /devices/bootstrap/restart`, for the operator. */
export const restartBootstrap: Handler<DeviceParts, replies.Ok> = (call, { bootstrap }) =>
  bootstrap.restart(call.tenantId);

/** `POST /devices/reauth/challenge`. */
export const challengeReauth: Handler<DeviceParts, replies.ReauthChallengeReply<Raw>> = (call, { reauth }) =>
  reauth.challenge(call.tenantId, validateReauthChallengeBody(fields(call)));

/** `POST /devices/reauth`. */
export const answerReauth: Handler<DeviceParts, replies.TokenReply> = (call, { reauth }) =>
  reauth.answer(call.tenantId, validateReauthBody(fields(call)));

/** `POST /devices/recover/challenge`. */
export const challengeRecovery: Handler<DeviceParts, replies.RecoveryChallengeReply<Raw>> = (call, { recovery }) =>
  recovery.challenge(call.tenantId);

/** `POST /devices/recover`. */
export const recover: Handler<DeviceParts, replies.Recovered<Raw>> = (call, { recovery }) =>
  recovery.recover(call.tenantId, validateRecoverBody(fields(call)), hostName(call.host));

/** `POST /ws-ticket`: a right of one minute and one use, so that no token has to stand in a URL. */
export const issueTicket: Handler<DeviceParts, replies.TicketReply> = (call, { tickets }) =>
  tickets.issueSocket({
    tenantId: call.tenantId,
    deviceId: call.deviceId,
    epoch: call.claims.epoch,
    tokenExpiresAt: call.claims.expiresAt,
  });

/** `GET /password/exists`. */
export const passwordExists: Handler<DeviceParts, replies.PasswordExists> = (call, { passwords }) =>
  passwords.exists(call.tenantId);

/**
 * `POST /password/set`. Limited like verify, by device (RATE-14): a stolen device's token is no way round that limit.
 */
export const setPassword: Handler<DeviceParts, replies.Ok> = async (call, { passwords, addressLimits }) => {
  const body = validatePasswordSetBody(fields(call));
  await addressLimits.take('password', `${call.tenantId}/${call.deviceId}`);
  return passwords.set(call.tenantId, body, call.deviceId);
};

/** `DELETE /password`. It takes from the same limit as `set`: each call is a guess (RATE-14). */
export const removePassword: Handler<DeviceParts, replies.Ok> = async (call, { passwords, addressLimits }) => {
  const body = validatePasswordRemoveBody(fields(call));
  await addressLimits.take('password', `${call.tenantId}/${call.deviceId}`);
  return passwords.remove(call.tenantId, body, call.deviceId);
};

/** `POST /password/verify`, a ticket for the right password. */
export const verifyPassword: Handler<DeviceParts, replies.PasswordTicketReply> = (call, { passwords }) =>
  passwords.verify(call.tenantId, validatePasswordVerifyBody(fields(call)));
