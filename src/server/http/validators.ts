/**
 * Request bodies and frames from unknown values, by validators that typia generates from src/protocol/requests.ts.
 * Each throws `validation` for the first thing that does not fit, with its path and a rule in plain words.
 * Keys are camelCase here: shape B bodies are renamed first (reference, HTTP, The two shapes). Unknown keys are left alone.
 */
import type typiaLibrary from 'typia';
import { invalid } from '../../protocol/errors.js';
import { BATCH_WRITES_MAX } from '../../protocol/limits.js';
import { toSnake } from '../../protocol/shape.js';
import type * as bodies from '../../protocol/requests.js';
import { pathOf, ruleOf } from './validator-words.js';

/** Its calls are replaced when the project is built: imported for them, the library would be loaded at every start, for nothing. */
declare const typia: typeof typiaLibrary;

/** What a generated check says of the first thing that does not fit. */
type Fault = Parameters<NonNullable<Parameters<typeof typia.createAssert>[0]>>[0];

/**
 * The refusal of a fault. Checks that throw stop there: one that collects every fault spends its time, and memory for
 * each, on whoever sends a map of 16,000 wrong ones (FAIR-41).
 */
const refusal = ({ path, expected, value }: Fault): Error => invalid(pathOf(path ?? ''), ruleOf(expected, value));
/** With paths as shape B spells them. */
const refusalB = ({ path, expected, value }: Fault): Error =>
  invalid(toSnake(pathOf(path ?? '')), ruleOf(expected, value));

/** A shape A item write. The codec then decodes its bytes (src/protocol/item-codec.ts). */
export const validateItemBodyA = typia.createAssert<bodies.ItemBodyA>(refusal);
/** A shape B item write, keys camelCase; its errors name the keys as shape B spells them. */
export const validateItemBodyB = typia.createAssert<bodies.ItemBodyB>(refusalB);
const validateBatch = typia.createAssert<bodies.BatchBody>(refusal);

/** A batch of writes; each entry is validated alone. Of a list of unknowns the generated check leaves out the size. */
export function validateBatchBody(input: unknown): bodies.BatchBody {
  const body = validateBatch(input);
  if (body.items.length === 0 || body.items.length > BATCH_WRITES_MAX) {
    throw invalid('items', `must be a list of 1 to ${BATCH_WRITES_MAX}`);
  }
  return body;
}

// Those without a word of their own take the body of the same name in src/protocol/requests.ts.

export const validateUploadBodyA = typia.createAssert<bodies.UploadBodyA>(refusal);
/** Keys camelCase; its errors name the keys as shape B spells them. */
export const validateUploadBodyB = typia.createAssert<bodies.UploadBodyB>(refusalB);
export const validateDeleteBody = typia.createAssert<bodies.DeleteBody>(refusal);
export const validateReconcileBody = typia.createAssert<bodies.ReconcileBody>(refusal);
export const validateBinCreateBody = typia.createAssert<bodies.BinCreateBody>(refusal);
export const validateBinPatchBody = typia.createAssert<bodies.BinPatchBody>(refusal);
export const validateBinDeleteBody = typia.createAssert<bodies.BinDeleteBody>(refusal);
export const validateBootstrapBody = typia.createAssert<bodies.BootstrapBody>(refusal);
export const validateDevicePatchBody = typia.createAssert<bodies.DevicePatchBody>(refusal);
export const validatePairInitBody = typia.createAssert<bodies.PairInitBody>(refusal);
export const validatePairFetchEpkBody = typia.createAssert<bodies.PairFetchEpkBody>(refusal);
export const validatePairFetchNpkBody = typia.createAssert<bodies.PairFetchNpkBody>(refusal);
export const validatePairWrapBody = typia.createAssert<bodies.PairWrapBody>(refusal);
export const validateReauthChallengeBody = typia.createAssert<bodies.ReauthChallengeBody>(refusal);
export const validateReauthBody = typia.createAssert<bodies.ReauthBody>(refusal);
export const validatePasswordSetBody = typia.createAssert<bodies.PasswordSetBody>(refusal);
export const validatePasswordRemoveBody = typia.createAssert<bodies.PasswordRemoveBody>(refusal);
export const validatePasswordVerifyBody = typia.createAssert<bodies.PasswordVerifyBody>(refusal);
export const validateRecoverBody = typia.createAssert<bodies.RecoverBody>(refusal);
export const validateSignupBody = typia.createAssert<bodies.SignupBody>(refusal);
/** A client's `hello`. Other frames carry nothing to check. */
export const validateHelloFrame = typia.createAssert<bodies.HelloFrame>(refusal);
