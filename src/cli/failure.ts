/** Errors of the client library as failures of a command: message, hint and exit code. */
import * as errors from '../sdk/errors.js';
import { networkReason } from '../sdk/node-certificate.js';
import { StoreError } from '../sdk/store/error.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { failureFrom, type Failure } from '../terminal/failure.js';
import { sanitizeText } from '../terminal/output.js';
import { EXIT, INTERRUPTED } from '../terminal/terminal.js';

const CERTIFY = 'Look at `service-device devices`; then `certify ID FINGERPRINT` or `revoke ID`.';
const REVOKE = 'Run `service-device revoke ID`.';
const GONE = 'Forget this profile (`service-device forget`); to come back, pair it again (`service-device join`).';

const PASSWORD_REQUIRED = {
  message: 'an account password is set, and none was given',
  hint: 'At a terminal you are asked for it; scripts give it with --password-file.',
} as const;

/** Refusals with a message, a hint or an exit code of their own. `message` absent: the server's; `exitCode`: `refused`. */
const API: Readonly<Record<string, Partial<Failure>>> = {
  device_revoked: { message: 'this device was revoked', hint: GONE },
  device_not_found: { exitCode: EXIT.notFound, message: 'the server does not know this device', hint: GONE },
  expired_token: { message: "this device's token has expired and could not be renewed" },
  bootstrap_already_done: {
    message: 'this server is already claimed',
    hint: 'Join it from one of its devices (`service-device join`), or come back with the twelve words (`service-device recover`).',
  },
  last_device: {
    message: 'the last device cannot be revoked',
    hint: 'To leave this machine only, use `service-device forget`; the twelve words bring you back.',
  },
  conflict: {
    hint: 'Another device was faster, or the name is taken. Look again (`service-device list`, `bins`) and repeat.',
  },
  bin_not_found: { exitCode: EXIT.notFound, message: 'there is no such bin', hint: 'See `service-device bins`.' },
  item_not_found: { exitCode: EXIT.notFound, message: 'there is no such item', hint: 'See `service-device list`.' },
  rate_limited: { exitCode: EXIT.unavailable, message: 'the server is rate-limiting requests' },
  password_required: PASSWORD_REQUIRED,
  password_invalid: {
    message: 'the account password is wrong',
    hint: 'Try again. If it is lost, the operator of the server can remove it (`service-admin password-reset`).',
  },
  storage_cap_exceeded: {
    message: 'the storage of this account is full',
    hint: 'Delete what is not needed (`service-device rm`; the space of files is freed overnight), or ask the operator for more.',
  },
  blob_too_large: {
    hint: 'The operator sets how large a file may be (MAX_BLOB_SIZE_MB). Divide it into parts (`split`), or ask for more.',
  },
  device_limit: { hint: 'Revoke a device that is no longer used (`service-device devices`).' },
  validation: { exitCode: EXIT.failure },
  item_too_large: { exitCode: EXIT.usage, message: 'the item is larger than 64 KB' },
  missing_token: {},
};

const PAIRING: Readonly<Partial<Record<errors.PairingFailure, Partial<Failure>>>> = {
  cancelled: { exitCode: EXIT.interrupted },
  withdrawn: { hint: 'The six words are used up: `service-device pair` shows new ones.' },
  unknown_code: {
    exitCode: EXIT.notFound,
    hint: 'Compare them with the other screen. Words work once and for five minutes: `service-device pair` shows new ones.',
  },
  expired: { hint: 'Start again with `service-device pair` on the other device.' },
  no_code: { exitCode: EXIT.unavailable, hint: 'Try again.' },
  bad_request: {
    exitCode: EXIT.untrusted,
    hint: 'Nothing was given to it. Start again; if it happens again, somebody may be in between.',
  },
  password_required: PASSWORD_REQUIRED,
};

/**
 * A `bad_request` with two possible reasons: the address was typed differently, or a server is in between. So the hint
 * says that the twelve words must not be typed at an address that the user does not know.
 */
const WRONG_HOST = {
  exitCode: EXIT.untrusted,
  message: 'the new device used another server address than this one',
  hint:
    'Nothing was given to it. Join with the address that `pair` shows. If you do not know the other address, somebody may ' +
    'be in between: never type the twelve words there. If it is yours as well, see "One address for all" in the reference.',
} as const;

/** The others end with `EXIT.failure`. */
const CLIENT: Readonly<Partial<Record<errors.ClientError['code'], Omit<Failure, 'code' | 'message'>>>> = {
  revoked: { exitCode: EXIT.refused, hint: GONE },
  reset: { exitCode: EXIT.refused, hint: "The server's history was replaced: run `service-device sync`, then repeat." },
  unknown_item: { exitCode: EXIT.notFound },
  damaged_item: {
    exitCode: EXIT.untrusted,
    hint: 'Run `service-device sync`: the item is read again from the server.',
  },
  cancelled: { exitCode: EXIT.interrupted },
  no_blob: { exitCode: EXIT.notFound },
  source_changed: { exitCode: EXIT.failure, hint: 'Run it again when nothing is writing to the file.' },
  deleted_item: { exitCode: EXIT.notFound },
  default_bin: { exitCode: EXIT.refused, hint: 'To empty it, delete or move its items.' },
  too_many: { exitCode: EXIT.refused, hint: 'Remove some and try again.' },
  unknown_device: { exitCode: EXIT.notFound, hint: 'See `service-device devices`.' },
  revoked_device: {
    exitCode: EXIT.refused,
    hint: 'Revoke it again (`service-device revoke`), then pair it anew if it is yours.',
  },
  fingerprint: { exitCode: EXIT.untrusted, hint: 'Read it again on that device: `service-device status`.' },
};

export const failureOf = (thrown: unknown): Failure =>
  failureFrom(thrown, ofClient, '; `service-device status` shows the folder');

function ofClient(error: Error): Failure | undefined {
  if (error instanceof errors.QueuedError)
    return { exitCode: EXIT.unavailable, code: 'queued', message: error.message };
  if (error instanceof errors.ApiError) return ofApi(error);
  if (error instanceof errors.NetworkError) return ofNetwork(error);
  if (error instanceof errors.PairingError) {
    const { code, message, cause } = error;
    const known = cause instanceof CryptoRefusal && cause.reason === 'wrong_host' ? WRONG_HOST : PAIRING[code];
    return { exitCode: EXIT.refused, message, ...known, code: `pairing_${code}` };
  }
  if (error instanceof errors.UncertifiedDeviceError)
    return {
      exitCode: EXIT.untrusted,
      code: error.code,
      message: sanitizeText(error.message),
      hint: error.devices.every(({ wasRevoked }) => wasRevoked) ? REVOKE : CERTIFY,
    };
  if (error instanceof errors.ClientError)
    return { exitCode: EXIT.failure, ...CLIENT[error.code], code: error.code, message: error.message };
  if (error instanceof CryptoRefusal) return ofCrypto(error);
  if (error instanceof StoreError) {
    const exitCode = error.code === 'locked' ? EXIT.unavailable : EXIT.failure;
    return { exitCode, code: `store_${error.code}`, message: error.message };
  }
  if (error instanceof errors.ProtocolError)
    return {
      exitCode: EXIT.failure,
      code: 'bad_answer',
      message: `the server's answer is not one of this service: ${sanitizeText(error.message)}`,
      hint: 'Is the address right? A newer or older server, or a proxy in between, answers like this too.',
    };
  return undefined;
}

function ofApi(error: errors.ApiError): Failure {
  // The code comes from the server: `constructor` must not match a property that every object inherits.
  const known = Object.hasOwn(API, error.code) ? API[error.code] : undefined;
  const request = error.requestId === null ? '' : ` (request ${sanitizeText(error.requestId)})`;
  const message =
    known?.message ?? (sanitizeText(error.message.replace(`${error.code}: `, '')) || 'the server refused');
  const code = /^[a-z0-9_]{1,64}$/.test(error.code) ? error.code : 'refused';
  if (error.code === 'rate_limited' && error.retryAfter !== null)
    return { exitCode: EXIT.unavailable, code, message, hint: `Try again in ${error.retryAfter} s.` };
  if (known !== undefined) return { exitCode: EXIT.refused, ...known, code, message };
  const transient: boolean = errors.isTransient(error);
  if (transient)
    return { exitCode: EXIT.unavailable, code, message: `the server is in trouble: ${message}${request}`, hint: LATER };
  const exitCode = error.status === 404 ? EXIT.notFound : error.status === 400 ? EXIT.failure : EXIT.refused;
  return { exitCode, code, message: `${message}${request}` };
}

const LATER = 'Try again later; `service-device doctor` says more.';
/** Doctor checks the server of an existing device; during a claim or a join only the address can be checked. */
const UNREACHABLE = `Check the address, and whether the server runs. ${LATER}`;

const STORE_UNREACHABLE = `If the server itself answers, its operator sets that address (PUBLIC_URL, S3_PUBLIC_ENDPOINT). ${LATER}`;

function ofNetwork(error: errors.NetworkError): Failure {
  if (error.code === 'aborted') return INTERRUPTED;
  const cause = networkReason(error);
  const { store } = error;
  const what = store === undefined ? 'the server' : `${sanitizeText(store)}, which the server names for files,`;
  const message = `${what} cannot be reached${cause === '' ? '' : ` (${cause})`}`;
  const hint = store === undefined ? UNREACHABLE : STORE_UNREACHABLE;
  return { exitCode: EXIT.unavailable, code: error.code, message, hint };
}

const COMPARE_WORDS = 'Compare the words, and their order, with the other screen or your paper.';

function ofCrypto(error: CryptoRefusal): Failure {
  const typed = error.reason === 'bad_words' || error.reason === 'empty_password' || error.reason === 'too_large';
  const hint = error.reason === 'bad_words' ? COMPARE_WORDS : undefined;
  return {
    exitCode: typed ? EXIT.usage : EXIT.untrusted,
    code: error.reason,
    message: sanitizeText(error.message),
    hint: typed ? hint : 'Something does not verify, so nothing was done. `service-device doctor` says more.',
  };
}
