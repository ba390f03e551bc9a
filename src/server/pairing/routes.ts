/**
 * Pairing (reference, Pairing, Pairing a new device). Each handler throws `validation` for its body, and whatever
 * `Pairing` throws (src/server/pairing/pairing.ts).
 */
import type { Paired, PairPending } from '../../protocol/replies.js';
import { fields } from '../http/request.js';
import type { Handler } from '../http/route.js';
import * as validators from '../http/validators.js';
import type { Pairing } from './pairing.js';

export interface PairingParts {
  readonly pairing: Pick<Pairing, 'init' | 'fetchEpk' | 'fetchNpk' | 'requests' | 'wrap'>;
}

const PENDING: PairPending = { status: 'pending' };

/** `POST /devices/pair-init`, step 1, by the existing device. */
export const initPairing: Handler<PairingParts> = (call, { pairing }) =>
  pairing.init(call.tenantId, call.deviceId, validators.validatePairInitBody(fields(call)));

/** `POST /devices/pair-fetch-epk`, step 2, by the new device. */
export const fetchEpk: Handler<PairingParts> = (call, { pairing }) =>
  pairing.fetchEpk(call.tenantId, validators.validatePairFetchEpkBody(fields(call)));

/**
 * `POST /devices/pair-fetch-npk`, step 3, by the new device. Held up to 25 s; the signal ends the wait when the client
 * disconnects or the server stops.
 */
export const fetchNpk: Handler<PairingParts, Paired<Uint8Array> | PairPending> = async (call, { pairing }) => {
  const body = validators.validatePairFetchNpkBody(fields(call));
  const gone = new AbortController();
  call.giveUp = PENDING;
  call.onEnd(() => gone.abort());
  const result = await pairing.fetchNpk(call.tenantId, body, gone.signal);
  if (result !== 'pending') return result;
  call.status = 202;
  return PENDING;
};

/** `GET /devices/pair-requests`: the content of the frames `pair_request`, for a device without a socket. */
export const pairRequests: Handler<PairingParts> = (call, { pairing }) =>
  pairing.requests(call.tenantId, call.deviceId);

/** `POST /devices/pair-wrap`, step 4, by the existing device. */
export const wrapKey: Handler<PairingParts> = (call, { pairing }) =>
  pairing.wrap(call.tenantId, call.deviceId, validators.validatePairWrapBody(fields(call)));
