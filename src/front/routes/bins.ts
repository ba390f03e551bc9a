/**
 * Bins (contract 6). Each handler throws `validation` for its id and body, and whatever `Bins` throws
 * (src/bins/bins.ts).
 */
import { validateBinCreateBody, validateBinDeleteBody, validateBinPatchBody } from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { binIdOf, fields } from './fields.js';

/** `GET /bins`. */
export const listBins: Handler = (call, { bins }) => bins.list(call.tenantId);

/** `POST /bins`. */
export const createBin: Handler = (call, { bins }) =>
  bins.create(call.tenantId, validateBinCreateBody(fields(call)), call.deviceId);

/** `PATCH /bins/:id`. */
export const patchBin: Handler = (call, { bins }) =>
  bins.patch(call.tenantId, binIdOf(call), validateBinPatchBody(fields(call)), call.deviceId);

/** `DELETE /bins/:id`. */
export const deleteBin: Handler = (call, { bins }) =>
  bins.remove(call.tenantId, binIdOf(call), validateBinDeleteBody(fields(call)), call.deviceId);
