/**
 * Bins (reference, HTTP, Bins). Each handler throws `validation` for its id and body, and whatever `Bins` throws
 * (src/bins/bins.ts).
 */
import type { BinList, BinReply, Ok } from '../../protocol/replies.js';
import { validateBinCreateBody, validateBinDeleteBody, validateBinPatchBody } from '../../validators/requests.js';
import type { Handler } from '../route.js';
import { binIdOf, fields } from './fields.js';

/** `GET /bins`. */
export const listBins: Handler<BinList<Uint8Array>> = (call, { bins }) => bins.list(call.tenantId);

/** `POST /bins`. */
export const createBin: Handler<BinReply<Uint8Array>> = (call, { bins }) =>
  bins.create(call.tenantId, validateBinCreateBody(fields(call)), call.deviceId);

/** `PATCH /bins/:id`. */
export const patchBin: Handler<BinReply<Uint8Array>> = (call, { bins }) =>
  bins.patch(call.tenantId, binIdOf(call), validateBinPatchBody(fields(call)), call.deviceId);

/** `DELETE /bins/:id`. */
export const deleteBin: Handler<Ok> = (call, { bins }) =>
  bins.remove(call.tenantId, binIdOf(call), validateBinDeleteBody(fields(call)), call.deviceId);
