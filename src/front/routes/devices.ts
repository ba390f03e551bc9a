/** Devices, bootstrap, re-authentication, recovery and socket tickets (contract 4 and 9). */
import {
  validateBootstrapBody,
  validateDevicePatchBody,
  validateReauthBody,
  validateReauthChallengeBody,
  validateRecoverBody,
} from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { hostName } from '../request.js';
import { fields, ulidOf } from './fields.js';

export const listDevices: Handler = (call, { devices }) => devices.list(call.tenantId, call.deviceId);

export const patchDevice: Handler = (call, { devices }) =>
  devices.patch(call.tenantId, ulidOf(call), validateDevicePatchBody(fields(call)));

export const revokeDevice: Handler = (call, { devices }) => devices.revoke(call.tenantId, ulidOf(call), call.deviceId);

export const claim: Handler = (call, { bootstrap }) =>
  bootstrap.claim(call.tenantId, validateBootstrapBody(fields(call)));

export const restartBootstrap: Handler = (call, { bootstrap }) => bootstrap.restart(call.tenantId);

export const challengeReauth: Handler = (call, { reauth }) =>
  reauth.challenge(call.tenantId, validateReauthChallengeBody(fields(call)));

export const answerReauth: Handler = (call, { reauth }) =>
  reauth.answer(call.tenantId, validateReauthBody(fields(call)));

export const challengeRecovery: Handler = (call, { recovery }) => recovery.challenge(call.tenantId);

export const recover: Handler = (call, { recovery }) =>
  recovery.recover(call.tenantId, validateRecoverBody(fields(call)), hostName(call.host));

/** `POST /ws-ticket`: a right of one minute and one use, so that no token has to stand in a URL. */
export const issueTicket: Handler = (call, { tickets }) =>
  tickets.issueSocket({
    tenantId: call.tenantId,
    deviceId: call.deviceId,
    epoch: call.claims.epoch,
    tokenExpiresAt: call.claims.expiresAt,
  });
