/**
 * Pairing (reference, Pairing, Pairing a new device). Each handler throws `validation` for its body, and whatever
 * `Pairing` throws (src/server/pairing/pairing.ts).
 */
import type * as replies from '../../protocol/replies.js';
import {
  validatePairFetchEpkBody,
  validatePairFetchNpkBody,
  validatePairInitBody,
  validatePairWrapBody,
} from '../http/validators.js';
import type { Handler } from '../http/route.js';
import { fields } from '../http/fields.js';
import type { Pairing } from './pairing.js';

/** What the handlers need. */
export interface PairingParts {
  readonly pairing: Pick<Pairing, 'init' | 'fetchEpk' | 'fetchNpk' | 'requests' | 'wrap'>;
}

type Raw = Uint8Array;

const PENDING: replies.PairPending = { status: 'pending' };

/** `POST /devices/pair-init`, step 1, by the existing device. */
export const initPairing: Handler<PairingParts, replies.PairStarted> = (call, { pairing }) =>
  pairing.init(call.tenantId, call.deviceId, validatePairInitBody(fields(call)));

/** `POST /devices/pair-fetch-epk`, step 2, by the new device. */
export const fetchEpk: Handler<PairingParts, replies.PairEpk<Raw>> = (call, { pairing }) =>
  pairing.fetchEpk(call.tenantId, validatePairFetchEpkBody(fields(call)));

/**
 * `POST /devices/pair-fetch-npk`, step 3, by the new device. Held up to 25 s; the signal ends the wait when the client
 * goes away or the server stops.
 */
export const fetchNpk: Handler<PairingParts, replies.Paired<Raw> | replies.PairPending> = async (call, { pairing }) => {
  const body = validatePairFetchNpkBody(fields(call));
  const gone = new AbortController();
  call.giveUp = PENDING;
  call.onEnd(() => gone.abort());
  const result = await pairing.fetchNpk(call.tenantId, body, gone.signal);
  if (result !== 'pending') return result;
  call.status = 202;
  return PENDING;
};

/** `GET /devices/pair-requests`: what the frame `pair_request` says, for a device without a socket. */
export const pairRequests: Handler<PairingParts, replies.PairRequestList<Raw>> = (call, { pairing }) =>
  pairing.requests(call.tenantId, call.deviceId);

/** `POST /devices/pair-wrap`, step 4, by the existing device. */
export const wrapKey: Handler<PairingParts, replies.Ok> = (call, { pairing }) =>
  pairing.wrap(call.tenantId, call.deviceId, validatePairWrapBody(fields(call)));
