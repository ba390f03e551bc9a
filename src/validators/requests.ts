/**
 * Request bodies and frames from unknown values, by validators that typia generates from src/protocol/requests.ts.
 * Each throws `validation` for the first thing that does not fit, with its path and a rule in plain words.
 * Keys are camelCase here: shape B bodies are renamed first (contract 2). Unknown keys are left alone.
 */
import typia, { type IValidation } from 'typia';
import { invalid } from '../protocol/errors.js';
import { BATCH_WRITES_MAX } from '../protocol/limits.js';
import { toSnake } from '../protocol/shape.js';
import type * as bodies from '../protocol/requests.js';
import { pathOf, ruleOf } from './words.js';

type Validate<T> = (input: unknown) => IValidation<T>;

/** Turns a generated validator into one that throws. `spell` gives keys of paths the spelling of the wire. */
function throwing<T>(validate: Validate<T>, spell: (path: string) => string = (path) => path): (input: unknown) => T {
  return (input) => {
    const result = validate(input);
    if (result.success) return result.data;
    const [first] = result.errors;
    throw invalid(
      first === undefined ? 'body' : spell(pathOf(first.path)),
      ruleOf(first?.expected ?? '', first?.value),
    );
  };
}

/** A shape A item write. The codec then decodes its bytes (src/protocol/item-codec.ts). */
export const validateItemBodyA = throwing(typia.createValidate<bodies.ItemBodyA>());
/** A shape B item write, keys camelCase; its errors name the keys as shape B spells them. */
export const validateItemBodyB = throwing(typia.createValidate<bodies.ItemBodyB>(), toSnake);
const validateBatch = throwing(typia.createValidate<bodies.BatchBody>());

/** A batch of writes; each entry is validated alone. Of a list of unknowns the generated check leaves out the size. */
export function validateBatchBody(input: unknown): bodies.BatchBody {
  const body = validateBatch(input);
  if (body.items.length === 0 || body.items.length > BATCH_WRITES_MAX) {
    throw invalid('items', `must be a list of 1 to ${BATCH_WRITES_MAX}`);
  }
  return body;
}

// Those without a word of their own take the body of the same name in src/protocol/requests.ts.

export const validateUploadBodyA = throwing(typia.createValidate<bodies.UploadBodyA>());
/** Keys camelCase; its errors name the keys as shape B spells them. */
export const validateUploadBodyB = throwing(typia.createValidate<bodies.UploadBodyB>(), toSnake);
export const validateDeleteBody = throwing(typia.createValidate<bodies.DeleteBody>());
export const validateReconcileBody = throwing(typia.createValidate<bodies.ReconcileBody>());
export const validateBinCreateBody = throwing(typia.createValidate<bodies.BinCreateBody>());
export const validateBinPatchBody = throwing(typia.createValidate<bodies.BinPatchBody>());
export const validateBinDeleteBody = throwing(typia.createValidate<bodies.BinDeleteBody>());
export const validateBootstrapBody = throwing(typia.createValidate<bodies.BootstrapBody>());
export const validateDevicePatchBody = throwing(typia.createValidate<bodies.DevicePatchBody>());
export const validatePairInitBody = throwing(typia.createValidate<bodies.PairInitBody>());
export const validatePairFetchEpkBody = throwing(typia.createValidate<bodies.PairFetchEpkBody>());
export const validatePairFetchNpkBody = throwing(typia.createValidate<bodies.PairFetchNpkBody>());
export const validatePairWrapBody = throwing(typia.createValidate<bodies.PairWrapBody>());
export const validateReauthChallengeBody = throwing(typia.createValidate<bodies.ReauthChallengeBody>());
export const validateReauthBody = throwing(typia.createValidate<bodies.ReauthBody>());
export const validatePasswordSetBody = throwing(typia.createValidate<bodies.PasswordSetBody>());
export const validatePasswordRemoveBody = throwing(typia.createValidate<bodies.PasswordRemoveBody>());
export const validatePasswordVerifyBody = throwing(typia.createValidate<bodies.PasswordVerifyBody>());
export const validateRecoverBody = throwing(typia.createValidate<bodies.RecoverBody>());
export const validateSignupBody = throwing(typia.createValidate<bodies.SignupBody>());
/** A client's `hello`. Other frames carry nothing to check. */
export const validateHelloFrame = throwing(typia.createValidate<bodies.HelloFrame>());
