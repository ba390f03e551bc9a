/** What several routes read the same way out of a request. */
import { invalid } from '../../protocol/errors.js';
import { isBinId, isUlid } from '../../protocol/ids.js';
import { camelKeys } from '../../protocol/shape.js';
import type { Call } from './request.js';

/** The body with camelCase keys; in B either spelling is read (reference, HTTP, The two shapes). */
export const fields = (call: Call): Record<string, unknown> => (call.shape === 'b' ? camelKeys(call.body) : call.body);

/** The path's id as a ULID. Throws `validation`. */
export function ulidOf(call: Call): string {
  if (!isUlid(call.id)) throw invalid('id', 'must be a ULID in upper case');
  return call.id;
}

/** The path's id as a bin id. Throws `validation`. */
export function binIdOf(call: Call): string {
  if (!isBinId(call.id)) throw invalid('id', 'must be 1 to 64 of A-Z a-z 0-9 _ -');
  return call.id;
}

/** A query parameter that is a whole number from `min` up; undefined where it is not given. Throws `validation`. */
export function wholeNumber(call: Call, name: string, min: number): number | undefined {
  const text = call.parameter(name);
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : NaN;
  if (!(value >= min)) throw invalid(name, `must be a whole number, at least ${min}`);
  return value;
}
