/**
 * Bins (reference, HTTP, Bins); the routes are in src/server/app/route-table.ts. Each handler throws `validation` for its
 * id and body, and whatever `Bins` throws.
 */
import { binIdOf, fields } from '../http/request.js';
import type { Handler } from '../http/route.js';
import { validateBinCreateBody, validateBinDeleteBody, validateBinPatchBody } from '../http/validators.js';
import type { Bins } from './bins.js';

export interface BinParts {
  readonly bins: Pick<Bins, 'list' | 'create' | 'patch' | 'remove'>;
}

export const listBins: Handler<BinParts> = (call, { bins }) => bins.list(call.tenantId);

export const createBin: Handler<BinParts> = (call, { bins }) =>
  bins.create(call.tenantId, validateBinCreateBody(fields(call)), call.deviceId);

export const patchBin: Handler<BinParts> = (call, { bins }) =>
  bins.patch(call.tenantId, binIdOf(call), validateBinPatchBody(fields(call)), call.deviceId);

export const deleteBin: Handler<BinParts> = (call, { bins }) =>
  bins.remove(call.tenantId, binIdOf(call), validateBinDeleteBody(fields(call)), call.deviceId);
