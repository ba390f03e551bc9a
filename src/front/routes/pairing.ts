/** Pairing (contract 9, steps 1 to 4). */
import {
  validatePairFetchEpkBody,
  validatePairFetchNpkBody,
  validatePairInitBody,
  validatePairWrapBody,
} from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { fields } from './fields.js';

const PENDING = { status: 'pending' } as const;

export const initPairing: Handler = (call, { pairing }) =>
  pairing.init(call.tenantId, call.deviceId, validatePairInitBody(fields(call)));

export const fetchEpk: Handler = (call, { pairing }) =>
  pairing.fetchEpk(call.tenantId, validatePairFetchEpkBody(fields(call)));

/** Held up to 25 s. The signal ends the wait when the client goes away or the server stops. */
export const fetchNpk: Handler = async (call, { pairing }) => {
  const body = validatePairFetchNpkBody(fields(call));
  const gone = new AbortController();
  call.giveUp = PENDING;
  call.onEnd(() => gone.abort());
  const result = await pairing.fetchNpk(call.tenantId, body, gone.signal);
  if (result !== 'pending') return result;
  call.status = 202;
  return PENDING;
};

export const pairRequests: Handler = (call, { pairing }) => pairing.requests(call.tenantId, call.deviceId);

export const wrapKey: Handler = (call, { pairing }) =>
  pairing.wrap(call.tenantId, call.deviceId, validatePairWrapBody(fields(call)));
