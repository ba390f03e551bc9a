/** Bins (contract 6). */
import { validateBinCreateBody, validateBinDeleteBody, validateBinPatchBody } from '../../validators/requests.js';
import type { Handler } from '../router.js';
import { binIdOf, fields } from './fields.js';

export const listBins: Handler = (call, { bins }) => bins.list(call.tenantId);

export const createBin: Handler = (call, { bins }) => bins.create(call.tenantId, validateBinCreateBody(fields(call)));

export const patchBin: Handler = (call, { bins }) =>
  bins.patch(call.tenantId, binIdOf(call), validateBinPatchBody(fields(call)));

export const deleteBin: Handler = (call, { bins }) =>
  bins.remove(call.tenantId, binIdOf(call), validateBinDeleteBody(fields(call)));
