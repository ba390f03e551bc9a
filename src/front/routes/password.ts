/** The account password (contract 9). */
import { validatePasswordSetBody, validatePasswordVerifyBody } from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { fields } from './fields.js';

export const passwordExists: Handler = (call, { passwords }) => passwords.exists(call.tenantId);

export const setPassword: Handler = (call, { passwords }) =>
  passwords.set(call.tenantId, validatePasswordSetBody(fields(call)));

export const verifyPassword: Handler = (call, { passwords }) =>
  passwords.verify(call.tenantId, validatePasswordVerifyBody(fields(call)));
