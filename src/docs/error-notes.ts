/** What the reference adds to the catalogue of errors: what to do about each, and the fields of `details`. */
import type { ErrorName } from '../protocol/errors.js';

interface ErrorNote {
  readonly remedy: string;
  /** The fields of `details`. */
  readonly details: string;
}

/**
 * Markdown by the catalogue's names: what a client, its user or the operator does, and the fields of `details` if any.
 */
export const ERROR_NOTES: Readonly<Record<ErrorName, string | ErrorNote>> = {
  validation: {
    remedy:
      'Mend the request; sent again as it is, it fails again. Where `missingDevices` is there, read the device list and seal the item key for those too.',
    details:
      '`path` (the field, as the shape spells it; `body` for the whole, `framing`, `content-type`, `query` or a parameter’s name for the rest), `rule` (what it must be). For an item whose keys leave out devices also `missingDevices`, their ids',
  },
  item_too_large: { remedy: 'Upload the content as a blob.', details: '`path`' },
  unknown_type: {
    remedy: 'Use one of the ten types of [Content types](content-types.md).',
    details: '`path`',
  },
  pair_expired: 'Begin the pairing again with a new code.',
  webhook_invalid: 'For the payment provider: check the signing secret, and the clock of the server.',
  pair_invalid:
    'Check the six words. Else begin again with a new code: the session was rejected, ended, or taken by another device.',
  blob_not_found: {
    remedy: 'Upload the blob first, then write the item.',
    details: '`path`, where the name could never have been handed out',
  },
  no_blob: 'Sync: the item that named it was replaced or deleted. If it is your own upload: upload it anew.',
  range_invalid: 'Ask for a part of what is there: `Content-Range: bytes */<size>` says how much that is.',
  no_token: 'Send `Authorization: Bearer <token>`.',
  bad_token: 'Re-authenticate. Where that fails too the server does not know this device: pair it again.',
  expired_token: 'Re-authenticate with the device’s key; nothing is lost.',
  payment_required: 'Pay; until then only status, `/me`, bootstrap, re-authentication and billing answer.',
  device_revoked:
    'Stop. This device was taken out by another one; only pairing or recovery brings it back, as a new device.',
  tenant_suspended: 'Keep the change and try again later; it works within 30 s of a payment.',
  forbidden:
    'Do not repeat it. For a challenge: ask for a new one. For bootstrap: give the right claim token. For an admin call: give the operator’s token.',
  password_required: 'Show the password to `POST /api/password/verify` and send its ticket as `passwordTicket`.',
  password_invalid: 'Ask the user again. Attempts are limited by address.',
  url_invalid: 'Ask for a new URL.',
  not_found: 'Check the path. Endpoints of a mode that the server does not run in are not there either.',
  item_not_found: 'Drop the change: the item never was, or was deleted more than 30 days ago.',
  bin_not_found: { remedy: 'Read the bins again and choose another one.', details: '`binId`' },
  tenant_not_found: 'Check the host name.',
  device_not_found: 'Read the device list again.',
  method_not_allowed: 'Use one of the methods that the header `Allow` lists.',
  bootstrap_already_done:
    'Join by pairing, or by recovery. If the claim was your own and its reply was lost: re-authenticate.',
  version_conflict: {
    remedy:
      'Read the item as it is stored, decide, and write again with that version as `ifVersion` and a later `ts`. A deleted item does not come back: write a new one.',
    details:
      '`version` (what is stored; 0 where there is nothing), `ts` (of what is stored; null where it is not known any more)',
  },
  slug_taken: 'Choose another name.',
  conflict:
    'The message says what stands against it: for a pairing code, draw another; for a bin with items, delete them or use `force`; for a bin id in use, choose another.',
  device_exists: 'Draw a new id. If the device is your own and the reply was lost: re-authenticate.',
  last_device: 'Pair another device first.',
  device_limit: 'Revoke a device that is not used any more.',
  blob_too_large: {
    remedy: 'There is no way around it but the operator: `MAX_BLOB_SIZE_MB`.',
    details: '`maxBytes`, the largest blob',
  },
  storage_cap_exceeded: 'Delete something; inline items free their bytes at once.',
  payload_too_large: {
    remedy: 'Send less: split a batch, make the content a blob.',
    details: '`maxBytes`, what the endpoint takes',
  },
  rate_limited: 'Wait as many seconds as `Retry-After` says, longer with each repetition.',
  internal: 'Try again later; tell the operator the `X-Request-Id`: the log has the cause under it.',
  storage_unavailable: 'Wait as `Retry-After` says and try again.',
  unavailable:
    'Wait as `Retry-After` says and try again. A write may be stored although this came: sent again as it is, it is not stored twice.',
};
