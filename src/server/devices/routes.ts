/**
 * Devices, bootstrap, re-authentication, recovery, socket tickets, the account password, status and identity (reference,
 * Pairing; HTTP, Status and identity); the routes are in src/server/app/route-table.ts. Each handler throws `validation`
 * for its id and body, and what its service throws.
 */
import { ServiceError } from '../../protocol/errors.js';
import type { Me, StatusDown, StatusUp } from '../../protocol/replies.js';
import type { AddressLimits } from '../http/address-limits.js';
import { describe, errorFields } from '../http/fail.js';
import { fields, ulidOf } from '../http/request.js';
import type { HttpConfig, Log } from '../http/ports.js';
import { hostName } from '../http/query.js';
import type { Handler } from '../http/route.js';
import * as validators from '../http/validators.js';
import type { Passwords, Reauthentication, Tickets } from './credentials.js';
import type { Devices } from './devices.js';
import type { Bootstrap, Recovery } from './enrolment.js';
import type { AccountStore } from './store.js';

export interface DeviceParts {
  readonly version: string;
  readonly config: Pick<HttpConfig, 'tenantMode' | 'region' | 'storageCapBytes'>;
  readonly log: Log;
  readonly epoch: () => string;
  /** Which devices have an open socket, on any instance. */
  readonly presence: { online(tenantId: string): Promise<ReadonlySet<string>> };
  readonly identities: Pick<AccountStore, 'identity'>;
  readonly devices: Pick<Devices, 'list' | 'patch' | 'revoke'>;
  readonly bootstrap: Pick<Bootstrap, 'claim' | 'isRight' | 'restart' | 'claimed'>;
  readonly reauth: Pick<Reauthentication, 'challenge' | 'answer'>;
  readonly recovery: Pick<Recovery, 'challenge' | 'recover'>;
  readonly tickets: Pick<Tickets, 'issueSocket'>;
  readonly passwords: Pick<Passwords, 'exists' | 'set' | 'remove' | 'verify'>;
  readonly addressLimits: Pick<AddressLimits, 'guess'>;
  /** By the device in place of the address: these statements do not wait behind those for clients without a token. */
  readonly deviceLimits: Pick<AddressLimits, 'take'>;
}

/** `GET /service/status`. While the database is down, it is a refusal that still reports what is known. */
export const serviceStatus: Handler<DeviceParts, StatusUp | StatusDown> = async (
  call,
  { bootstrap, config, version, epoch, log },
) => {
  const { tenantId, requestId } = call;
  const about = { version, mode: config.tenantMode };
  try {
    const claimed = await bootstrap.claimed(tenantId);
    return { ok: true, ...about, claimed, tenantId, epoch: epoch(), database: 'up' };
  } catch (error) {
    if (!(error instanceof ServiceError) || error.error !== 'unavailable') throw error;
    log.warn({ requestId, cause: describe(error) }, 'the database is down');
    call.status = 503;
    const refusal = errorFields(error, call.shape);
    return { ok: false, ...about, claimed: null, tenantId, epoch: epoch(), database: 'down', error: refusal };
  }
};

export const me: Handler<DeviceParts, Me> = async (call, { identities, presence, config, version, epoch }) => {
  const { tenantId, deviceId } = call;
  const [found, online] = await Promise.all([identities.identity(tenantId, deviceId), presence.online(tenantId)]);
  // The device was deleted after its token had been checked.
  if (found === undefined) throw new ServiceError('bad_token');
  const { id, name, glyph, pairedAt, headVersion, versionSum, storageUsedBytes, itemCount, deviceCount } = found;
  const { region, storageCapBytes } = config;
  const figures = { itemCount, deviceCount, devicesOnline: online.size };
  const history = { headVersion, versionSum, epoch: epoch(), tenantId };
  const server = { version, region, storageUsedBytes, storageCapBytes, ...figures, ...history };
  // Clients read the history at either level.
  return { device: { id, name, glyph, pairedAt }, server, ...history };
};

export const listDevices: Handler<DeviceParts> = (call, { devices }) => devices.list(call.tenantId, call.deviceId);

export const patchDevice: Handler<DeviceParts> = (call, { devices }) =>
  devices.patch(call.tenantId, ulidOf(call), validators.validateDevicePatchBody(fields(call)), call.deviceId);

export const revokeDevice: Handler<DeviceParts> = (call, { devices }) =>
  devices.revoke(call.tenantId, ulidOf(call), call.deviceId);

/** `POST /devices/bootstrap`: exactly one call succeeds. Wrong BOOTSTRAP_TOKENs count as guesses, like wrong ADMIN_TOKENs. */
export const claim: Handler<DeviceParts> = async (call, { bootstrap, addressLimits }) => {
  const body = validators.validateBootstrapBody(fields(call));
  const isRight = bootstrap.isRight(body);
  if (isRight !== undefined) await addressLimits.guess(call.address, isRight);
  return bootstrap.claim(call.tenantId, body);
};

export const restartBootstrap: Handler<DeviceParts> = (call, { bootstrap }) => bootstrap.restart(call.tenantId);

export const challengeReauth: Handler<DeviceParts> = (call, { reauth }) =>
  reauth.challenge(call.tenantId, validators.validateReauthChallengeBody(fields(call)));

export const answerReauth: Handler<DeviceParts> = (call, { reauth }) =>
  reauth.answer(call.tenantId, validators.validateReauthBody(fields(call)));

export const challengeRecovery: Handler<DeviceParts> = (call, { recovery }) => recovery.challenge(call.tenantId);

export const recover: Handler<DeviceParts> = (call, { recovery }) =>
  recovery.recover(call.tenantId, validators.validateRecoverBody(fields(call)), hostName(call.host));

/** `POST /ws-ticket`: a ticket for one minute and one use, so that no token has to be put into a URL. */
export const issueTicket: Handler<DeviceParts> = ({ sender }, { tickets }) => tickets.issueSocket(sender.claims);

export const passwordExists: Handler<DeviceParts> = (call, { passwords }) => passwords.exists(call.tenantId);

/** `POST /password/set`. Limited per device, or a stolen token could guess the old password without limit (RATE-14). */
export const setPassword: Handler<DeviceParts> = async (call, { passwords, deviceLimits }) => {
  const body = validators.validatePasswordSetBody(fields(call));
  await deviceLimits.take('password', call.owner);
  return passwords.set(call.tenantId, body, call.deviceId);
};

/** `DELETE /password`. It takes from the limit of `set`: each call is a guess (RATE-14). */
export const removePassword: Handler<DeviceParts> = async (call, { passwords, deviceLimits }) => {
  const body = validators.validatePasswordRemoveBody(fields(call));
  await deviceLimits.take('password', call.owner);
  return passwords.remove(call.tenantId, body, call.deviceId);
};

export const verifyPassword: Handler<DeviceParts> = (call, { passwords }) =>
  passwords.verify(call.tenantId, validators.validatePasswordVerifyBody(fields(call)));
