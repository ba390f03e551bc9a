/**
 * The account password (reference, Pairing). Each handler throws `validation` for its body, and whatever `Passwords` throws
 * (src/account/password.ts).
 */
import type { Ok, PasswordExists, PasswordTicketReply } from '../../protocol/replies.js';
import {
  validatePasswordRemoveBody,
  validatePasswordSetBody,
  validatePasswordVerifyBody,
} from '../../validators/requests.js';
import type { Handler } from '../route.js';
import { fields } from './fields.js';

/** `GET /password/exists`. */
export const passwordExists: Handler<PasswordExists> = (call, { passwords }) => passwords.exists(call.tenantId);

/**
 * `POST /password/set`. Limited like verify, by device (RATE-14): a stolen device's token is no way round that limit.
 */
export const setPassword: Handler<Ok> = async (call, { passwords, addressLimits }) => {
  const body = validatePasswordSetBody(fields(call));
  await addressLimits.take('password', `${call.tenantId}/${call.deviceId}`);
  return passwords.set(call.tenantId, body, call.deviceId);
};

/** `DELETE /password`. It takes from the same limit as `set`: each call is a guess (RATE-14). */
export const removePassword: Handler<Ok> = async (call, { passwords, addressLimits }) => {
  const body = validatePasswordRemoveBody(fields(call));
  await addressLimits.take('password', `${call.tenantId}/${call.deviceId}`);
  return passwords.remove(call.tenantId, body, call.deviceId);
};

/** `POST /password/verify`, a ticket for the right password. */
export const verifyPassword: Handler<PasswordTicketReply> = (call, { passwords }) =>
  passwords.verify(call.tenantId, validatePasswordVerifyBody(fields(call)));
