/** The account password (contract 9). */
import { validatePasswordSetBody, validatePasswordVerifyBody } from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { fields } from './fields.js';

export const passwordExists: Handler = (call, { passwords }) => passwords.exists(call.tenantId);

/** Limited like verify, by device: a stolen device's token is no way round that limit. */
export const setPassword: Handler = async (call, { passwords, addressLimits }) => {
  const body = validatePasswordSetBody(fields(call));
  await addressLimits.take('password', `${call.tenantId}/${call.deviceId}`);
  return passwords.set(call.tenantId, body, call.deviceId);
};

export const verifyPassword: Handler = (call, { passwords }) =>
  passwords.verify(call.tenantId, validatePasswordVerifyBody(fields(call)));
