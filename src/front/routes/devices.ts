/**
 * Devices, bootstrap, re-authentication, recovery and socket tickets (reference, Pairing). Each handler throws
 * `validation` for its id and body, and whatever its service throws (src/account).
 */
import type * as replies from '../../protocol/replies.js';
import {
  validateBootstrapBody,
  validateDevicePatchBody,
  validateReauthBody,
  validateReauthChallengeBody,
  validateRecoverBody,
} from '../../validators/requests.js';
import type { Handler } from '../route.js';
import { hostName } from '../query.js';
import { fields, ulidOf } from './fields.js';

type Raw = Uint8Array;

/** `GET /devices`. */
export const listDevices: Handler<replies.DeviceList<Raw>> = (call, { devices }) =>
  devices.list(call.tenantId, call.deviceId);

/** `PATCH /devices/:id`. */
export const patchDevice: Handler<replies.KnownDeviceReply<Raw>> = (call, { devices }) =>
  devices.patch(call.tenantId, ulidOf(call), validateDevicePatchBody(fields(call)), call.deviceId);

/** `POST /devices/:id/revoke`. */
export const revokeDevice: Handler<replies.KnownDeviceReply<Raw>> = (call, { devices }) =>
  devices.revoke(call.tenantId, ulidOf(call), call.deviceId);

/** `POST /devices/bootstrap`: exactly one call wins. */
export const claim: Handler<replies.Claimed<Raw>> = (call, { bootstrap }) =>
  bootstrap.claim(call.tenantId, validateBootstrapBody(fields(call)));

/** `POST /devices/bootstrap/restart`, for the operator. */
export const restartBootstrap: Handler<replies.Ok> = (call, { bootstrap }) => bootstrap.restart(call.tenantId);

/** `POST /devices/reauth/challenge`. */
export const challengeReauth: Handler<replies.ReauthChallengeReply<Raw>> = (call, { reauth }) =>
  reauth.challenge(call.tenantId, validateReauthChallengeBody(fields(call)));

/** `POST /devices/reauth`. */
export const answerReauth: Handler<replies.TokenReply> = (call, { reauth }) =>
  reauth.answer(call.tenantId, validateReauthBody(fields(call)));

/** `POST /devices/recover/challenge`. */
export const challengeRecovery: Handler<replies.RecoveryChallengeReply<Raw>> = (call, { recovery }) =>
  recovery.challenge(call.tenantId);

/** `POST /devices/recover`. */
export const recover: Handler<replies.Recovered<Raw>> = (call, { recovery }) =>
  recovery.recover(call.tenantId, validateRecoverBody(fields(call)), hostName(call.host));

/** `POST /ws-ticket`: a right of one minute and one use, so that no token has to stand in a URL. */
export const issueTicket: Handler<replies.TicketReply> = (call, { tickets }) =>
  tickets.issueSocket({
    tenantId: call.tenantId,
    deviceId: call.deviceId,
    epoch: call.claims.epoch,
    tokenExpiresAt: call.claims.expiresAt,
  });
