/** The reference's notes on each error: what a client and an operator do, and the fields of `details`. */
import type { ErrorName } from '../protocol/errors.js';

/** Markdown by the catalogue's names: what a client, its user or the operator does. */
export const ERROR_NOTES: Readonly<Record<ErrorName, string>> = {
  validation:
    'Fix the request; repeated unchanged, it fails again. If `missingDevices` is present, read the device list and seal the item key for those too; if `serverTime` is, correct the clock by it and write again.',
  item_too_large: 'Upload the content as a blob.',
  unknown_type: 'Use one of the ten types of [Content types](content-types.md).',
  pair_expired: 'Start the pairing again with a new code.',
  webhook_invalid: 'For the payment provider: check the signing secret, and the clock of the server.',
  pair_invalid:
    'Check the six words. Otherwise start again with a new code: the session was rejected, ended, or taken by another device.',
  blob_not_found: 'Upload the blob first, then write the item.',
  no_blob: 'Sync: the item that named it was replaced or deleted. If it is your own upload: upload it again.',
  range_invalid: 'Request a range that exists: `Content-Range: bytes */<size>` gives the size.',
  no_token: 'Send `Authorization: Bearer <token>`.',
  bad_token: 'Re-authenticate. If that fails too, the server does not know this device: pair it again.',
  expired_token: 'Re-authenticate with the device’s key; nothing is lost.',
  payment_required: 'Pay; until then only status, `/me`, bootstrap, re-authentication and billing answer.',
  device_revoked: 'Stop. Another device revoked this one; only pairing or recovery brings it back, as a new device.',
  tenant_suspended: 'Keep the change and try again later; it works within 30 s of a payment.',
  forbidden:
    'Do not repeat it. For a challenge: request a new one. For recovery also: dial the server by its public host name, and check the words. For bootstrap: send the right claim token. For an admin call: send the operator’s token.',
  password_required: 'Send the password to `POST /api/password/verify` and send its ticket as `passwordTicket`.',
  password_invalid: 'Ask the user again. Attempts are limited by address.',
  url_invalid:
    'Request a new URL from the endpoint that returned this one; for a part of an upload, the state of the upload.',
  not_found: 'Check the path. Endpoints of a mode that the server does not run in do not exist either.',
  item_not_found: 'Drop the change: the item never existed, or was deleted more than 30 days ago.',
  bin_not_found: 'Read the bins again and choose another one.',
  tenant_not_found: 'Check the host name.',
  device_not_found: 'Read the device list again.',
  method_not_allowed: 'Use one of the methods that the header `Allow` lists.',
  bootstrap_already_done:
    'Join by pairing, or by recovery. If the claim was your own and its reply was lost: re-authenticate.',
  version_conflict:
    'Read the item as it is stored ([Reading items](http.md#reading-items)), decide, and write again with that version as `ifVersion` and a later `ts`. A deleted item does not come back: write a new one.',
  slug_taken: 'Choose another name.',
  conflict:
    'The message gives the reason: for a pairing code, generate another; for a bin with items, delete these first, each with its tag; for a bin id in use, choose another.',
  epoch_mismatch:
    'The history was replaced, as by a restored backup: catch up ([reset](sockets.md#reset)), base the change on what is stored now, and send it with that epoch.',
  upload_offset: 'Query the offset of the upload, and continue from there.',
  device_exists: 'Generate a new id. If the device is your own and the reply was lost: re-authenticate.',
  last_device: 'Pair another device first.',
  device_limit: 'Revoke a device that is no longer used.',
  blob_too_large: 'Only the operator can raise the limit: `MAX_BLOB_SIZE_MB`.',
  storage_cap_exceeded: 'Delete something; inline items free their bytes at once.',
  payload_too_large: 'Send less: split a batch, make the content a blob.',
  rate_limited: 'Wait as many seconds as `Retry-After` says, longer with each repetition.',
  internal: 'Try again later; tell the operator the `X-Request-Id`: the log has the cause under it.',
  storage_unavailable: 'Wait as `Retry-After` says and try again.',
  unavailable:
    'Wait as `Retry-After` says and try again. A write may be stored despite this error: repeated unchanged, it is not stored twice.',
};

/** Markdown by the catalogue's names: the fields of `details`, where an error has it. */
export const ERROR_DETAILS: Readonly<Partial<Record<ErrorName, string>>> = {
  validation:
    '`path` (the field, as the shape spells it: names with dots between them, an entry of a list as in `items[0]`, a device’s key by the device’s id, as in `payloadEnc.keys.<id>` or `wrapped.<id>`; `body` for the whole, `framing`, `content-type`, `query` or a parameter’s name for the rest), `rule` (what it must be). For an item whose keys leave out devices also `missingDevices`, their ids; for one whose `ts` is too far ahead `serverTime`, the server’s clock in milliseconds',
  item_too_large: '`path`',
  unknown_type: '`path`',
  blob_not_found: '`path`, if the name can never have been issued',
  bin_not_found: '`binId`',
  version_conflict:
    '`version` (the stored one; 0 if there is none), `ts` (the stored one; null if it is no longer known)',
  blob_too_large: '`maxBytes`, the largest blob',
  payload_too_large: '`maxBytes`, the most that the endpoint accepts',
};

/** Markdown by the catalogue's names: what an operator on call checks and does. */
export const OPERATOR_NOTES: Readonly<Record<ErrorName, string>> = {
  validation:
    'Nothing at night: a client sends invalid requests, and none of them was stored. Many at once after an update of a client are that client’s fault; send its author the `message`, which names the field.',
  item_too_large: 'Nothing: the limit is part of the protocol and has no variable. The client has to upload a blob.',
  unknown_type: 'Nothing: a client knows a type that this version does not. Update the server during the day.',
  pair_expired:
    'Nothing for one. If every pairing ends like this, compare the clocks: `date -u` on each instance and on the database’s machine must agree to the second.',
  pair_invalid:
    'Nothing for one: somebody typed a wrong word. Many from one address are somebody guessing, whom `RATE_PAIR_PER_MIN` limits; the proxy’s access log has the address.',
  blob_not_found:
    'One: nothing. Many: uploads do not arrive. Run `service-admin check-storage`; it says which step fails and what to do.',
  webhook_invalid:
    'Compare `PAYMENT_WEBHOOK_SECRET` with what the provider shows for this endpoint, and the server’s clock with `date -u`. The provider sends the event again for days: nothing is lost while you look.',
  no_token: 'Nothing: a client asked without a token. If all clients do, a proxy removes the header `Authorization`.',
  bad_token:
    'Few: nothing, such clients renew their tokens. All devices at once: `TOKEN_SECRET` has changed, or differs between instances. Restore the old one and restart; otherwise each device proves its key again automatically, and nothing is lost.',
  expired_token:
    'Nothing: clients renew it. If fresh tokens are refused like this, the clock of an instance is wrong: `date -u` on each.',
  payment_required:
    'Check the tenant: `service-admin tenants list`. If it was paid and the event did not arrive, check the provider’s list of failed webhooks and send it again; until then `service-admin tenants activate SLUG` gives the tenant access.',
  device_revoked: 'Nothing: a device was revoked by its owner. You cannot and should not undo it.',
  tenant_suspended:
    'You, or an overdue payment, caused this: `service-admin tenants list` has the state, `service-admin tenants activate SLUG` ends it. Reads continue meanwhile.',
  forbidden:
    'For the admin endpoints: the caller’s token is not `ADMIN_TOKEN`, or none is set. Many from one address: somebody is trying to get in; as long as they get this error, nothing is exposed. For recovery: the client dialled a name that is neither that of `PUBLIC_URL` nor `DOMAIN`, or none is set and a proxy passes on another `Host`; the log names both hosts.',
  password_required:
    'Nothing: the tenant has an account password. If it is permanently lost: `service-admin password-reset`, once you are sure who is asking.',
  password_invalid:
    'Nothing for one. Many: somebody is guessing; `RATE_PAIR_PER_MIN` limits each address. `service-admin password-reset` only for an owner whom you know.',
  url_invalid:
    'Few: an old address. All uploads or downloads: `BLOB_URL_SECRET` differs between instances, a proxy changes path or query, or a clock is wrong. `service-admin check-storage` tells these apart.',
  not_found:
    'Nothing for one. If a whole part is missing: the endpoint belongs to a mode that is off (`TENANT_MODE`, `PAYMENT_BILLING_ENABLED`, `WEB_APP`), or a proxy sends a path elsewhere.',
  no_blob:
    'One: the item was deleted in the meantime. Many: files are gone from the store. Run `service-admin verify`, which names what is missing, and do not run `purge` before you know why; see [Operating](operating.md#a-blob-store-that-does-not-do-what-it-should).',
  item_not_found: 'Nothing. If it affects everything after a restore: it was written after the backup was made.',
  bin_not_found: 'Nothing: another device deleted the bin.',
  tenant_not_found:
    'The host of the request belongs to no tenant. One: a wrong address. All: the proxy passes on another `Host`, or `BASE_DOMAIN` changed. Compare `curl -s https://HOST/api/service/status` from outside with the same through `http://127.0.0.1:8080` on the machine.',
  device_not_found: 'Nothing. After a restore: a device that joined after the backup was made has to pair again.',
  method_not_allowed: 'Nothing, unless a proxy or a firewall changes methods (some refuse `PATCH` and `DELETE`).',
  bootstrap_already_done:
    'Nothing if the server is yours already. If you never claimed it: somebody else did. Take it offline, run `service-admin bootstrap-restart`, set `BOOTSTRAP_TOKEN`, and only then open it again.',
  version_conflict: 'Nothing: two devices changed one item, and both know.',
  slug_taken: 'Nothing: the name is in use; that of a tenant, as `service-admin tenants list` shows.',
  conflict: 'Nothing: the message tells the client the reason.',
  epoch_mismatch: 'Nothing: devices find out that a backup was restored, and catch up.',
  upload_offset: 'Nothing: a client was cut off, and continues.',
  device_exists: 'Nothing: the reply of an earlier attempt was lost.',
  last_device: 'Nothing. To delete a whole tenant: `service-admin tenants delete SLUG`.',
  device_limit: 'Nothing at night. `MAX_DEVICES` is the limit; the owner can revoke devices that are not used.',
  blob_too_large: 'Nothing at night. `MAX_BLOB_SIZE_MB` is the limit, and a proxy may have a smaller one.',
  storage_cap_exceeded:
    'The tenant is full: `service-admin tenants list` has the size, `STORAGE_CAP_BYTES` the limit. Deleting is always possible. If the size looks wrong, `service-admin verify` compares it with the rows.',
  payload_too_large: 'Nothing: the client sends more than the endpoint accepts.',
  range_invalid: 'Nothing: a client has an older copy of a blob.',
  rate_limited:
    'Clients wait and continue automatically. All clients at once: behind a proxy that is not in `TRUSTED_PROXIES` all clients share one address. One address only: do nothing; that is what the limit is for.',
  internal:
    'A fault of the server. Find its cause: the reply’s `X-Request-Id` is in the log (`journalctl -u service | grep ID`, `docker compose logs server | grep ID`). If it began with an update, go back to the previous version, unless `service-admin migrate --dry-run` says that the schema has moved on. The client’s data is unchanged.',
  storage_unavailable:
    'The blob store is unavailable; items without files still work. 1. `service-admin check-storage` says which: `unreachable`, `denied`, `clock`, `bucket`. 2. With a bucket check the provider’s status page, and whether credentials have expired. 3. With the local store: `df -h` and the permissions of `DATA_DIR/blobs`; uploads leave a twentieth of the disk free (at most 1 GiB). Nothing that was accepted is lost; clients try again.',
  unavailable:
    '1. `curl -s https://HOST/api/service/status`: `"database":"down"` means the database, anything else means load. 2. Database: is it running, is its disk full (`df -h`), does it accept connections? Do not restart the servers for it: they recover automatically when it answers. 3. Load: check `service_pending_changes` and `nodejs_eventloop_lag_p99_seconds`; more `INSTANCES` help the second only. Requests answered with 200 are on disk; clients repeat those that were refused like this. See the alert [Requests are refused](alert-refusals.md).',
};
