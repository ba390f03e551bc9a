/** Reads fields of a request that several routes have in common. */
import { invalid } from '../../protocol/errors.js';
import { isBinId, isUlid } from '../../protocol/ids.js';
import { camelKeys } from '../../protocol/shape.js';
import type { RequestContext } from './request.js';

/** The body with camelCase keys; shape B may use either spelling (reference, HTTP, The two shapes). */
export const fields = (ctx: RequestContext): Record<string, unknown> =>
  ctx.shape === 'b' ? camelKeys(ctx.body) : ctx.body;

/** The path's id as a ULID. Throws `validation`. */
export function ulidOf(ctx: RequestContext): string {
  if (!isUlid(ctx.id)) throw invalid('id', 'must be a ULID in upper case');
  return ctx.id;
}

/** The path's id as a bin id. Throws `validation`. */
export function binIdOf(ctx: RequestContext): string {
  if (!isBinId(ctx.id)) throw invalid('id', 'must be 1 to 64 of A-Z a-z 0-9 _ -');
  return ctx.id;
}

/** A query parameter that is a whole number from `min` up; undefined where it is not given. Throws `validation`. */
export function wholeNumber(ctx: RequestContext, name: string, min: number): number | undefined {
  const text = ctx.parameter(name);
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : NaN;
  if (!(value >= min)) throw invalid(name, `must be a whole number, at least ${min}`);
  return value;
}
