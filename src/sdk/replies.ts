/** The replies of the endpoints as typed values (the reference, HTTP). */
import { ApiError, ProtocolError } from './errors.js';
import { toBase64Url } from '../protocol/base64.js';
import { BLOB_REF } from '../protocol/ids.js';
import { NAME_MAX } from '../protocol/limits.js';
import {
  array,
  binIdText,
  boolean,
  bytes,
  count,
  errorBody,
  field,
  malformed,
  matchingText,
  nullable,
  object,
  record,
  short,
  string,
  tokenText,
  ulidText,
  type Read,
  type Reader,
} from './reader.js';
import { epochText, itemChange, type Change } from './wire.js';

/** Maximum of devices, revoked ones included, and bins in a reply: far more than a user has, few enough for memory. */
const DEVICES_MAX = 10_000;
/** Most revoked devices that a stored list has besides those that the server lists. */
export const LEFT_OUT_MAX = 1_000;
const BINS_READ_MAX = 10_000;

/** Maximum length of an id that need not be a ULID. */
const ID_MAX = 256;

/** A reply whose body is not used. */
export const unread: Reader<void> = () => undefined;

/** Maximum length of a device's name or glyph, and of its key or certificate in bytes: as lists of them are stored. */
const DEVICE_TEXT_MAX = 4 * NAME_MAX;
const DEVICE_BYTES_MAX = 64;
const deviceText = matchingText(
  `must have at most ${DEVICE_TEXT_MAX} characters`,
  ({ length }) => length <= DEVICE_TEXT_MAX,
);
const deviceBytes = bytes(0, DEVICE_BYTES_MAX);

/** A device in the replies of bootstrap, pairing and recovery. */
const deviceFields = {
  id: ulidText,
  name: deviceText,
  glyph: deviceText,
  pubkey: deviceBytes,
  pairedAt: count,
} as const;
const device = object(deviceFields);

/** `cert` null: not certified. Times are ms. */
const entryFields = {
  ...deviceFields,
  cert: nullable(deviceBytes),
  revokedAt: nullable(count),
  lastSeenAt: nullable(count),
  online: boolean,
  current: boolean,
} as const;
const deviceEntry = object(entryFields);
const deviceEntries = field('devices', array(deviceEntry, DEVICES_MAX));
/** `GET /devices`. Throws `ProtocolError` for a device that is listed twice: one of its entries could hide the other. */
export const readDevices: typeof deviceEntries = (value, path) => {
  const devices = deviceEntries(value, path);
  if (new Set(devices.map(({ id }) => id)).size < devices.length) throw malformed('devices', 'name a device twice');
  return devices;
};
/** An entry of the device list, which is only a claim of the server. */
export type DeviceEntry = Read<typeof deviceEntry> & {
  /**
   * Of a device that the server lists as active after it was listed as revoked: when that was, ms. Set by `DeviceList`,
   * never by the server; stored with the list, so that the device stays uncertified in later runs.
   */
  readonly wasRevokedAt?: number | null;
  /** True: it had a valid certificate once. Set and stored as `wasRevokedAt` is. */
  readonly wasCertified?: boolean | null;
};

/** The entries of a list that was stored, to which `DeviceList` may have added revoked devices. */
export const readDeviceList = array(
  object({ ...entryFields, wasRevokedAt: nullable(count), wasCertified: nullable(boolean) }),
  DEVICES_MAX + LEFT_OUT_MAX,
);

/** The entries in the form that `readDeviceList` reads. */
export const devicesJson = (devices: readonly DeviceEntry[]) =>
  devices.map((device) => ({
    ...device,
    pubkey: toBase64Url(device.pubkey),
    cert: device.cert && toBase64Url(device.cert),
  }));

/** `POST /devices/bootstrap` and `POST /devices/recover`. */
export const readClaimed = object({ device, token: tokenText });

/** `POST /devices/pair-fetch-npk`, once the existing device has decided. */
export const readPaired = object({
  device,
  token: tokenText,
  wrappedMasterKey: bytes(),
  deviceCert: bytes(),
  confirmation: bytes(),
});

/** `POST /devices/pair-init`. */
export const readPairInit = object({ lookupId: string, code: string, expiresAt: count });
/** `POST /devices/pair-fetch-epk`. */
export const readPairEpk = object({ epk: bytes(), expiresAt: count, tenantId: short(ID_MAX) });

/** A `pair_request` frame. */
export const readPairRequest = object({
  code: string,
  deviceId: nullable(string),
  host: nullable(string),
  pubkey: bytes(),
  name: string,
  glyph: string,
  attestation: bytes(),
});
/** The request of a new device, in a frame and in `GET /devices/pair-requests`. */
export type PairRequest = Read<typeof readPairRequest>;
/** `GET /devices/pair-requests`. */
export const readPairRequests = field('requests', array(readPairRequest, DEVICES_MAX));

/** `POST /devices/reauth/challenge`. */
export const readReauthChallenge = object({ challengeId: short(ID_MAX), challenge: bytes() });
/** `POST /devices/reauth`. `expiresAt` in ms. */
export const readToken = object({ token: tokenText, expiresAt: count });
/** `POST /devices/recover/challenge`. */
export const readRecoverChallenge = object({ challengeId: short(ID_MAX), challenge: bytes(), tenantId: short(ID_MAX) });
/** `POST /ws-ticket` and `POST /password/verify`. */
export const readTicket = field('ticket', tokenText);
/** `GET /password/exists`. */
export const readExists = field('exists', boolean);

/** `GET /service/status`. A server whose database is down answers 503 instead, which is an `ApiError`. */
export const readStatus = object({
  version: string,
  mode: string,
  claimed: boolean,
  tenantId: short(ID_MAX),
  epoch: nullable(string),
  database: string,
});
/** `GET /me`. */
export const readMe = object({
  device: object({ id: ulidText, name: string, glyph: string, pairedAt: count }),
  server: object({
    version: string,
    region: string,
    storageUsedBytes: count,
    storageCapBytes: count,
    itemCount: count,
    deviceCount: count,
    devicesOnline: count,
    /** Head, version sum of the live items at the head, and epoch; null where a server does not report them. */
    headVersion: nullable(count),
    versionSum: nullable(count),
    epoch: nullable(epochText),
  }),
});
/** This device and the figures of its server; sizes in bytes. */
export type Me = Read<typeof readMe>;

const bin = object({
  id: binIdText,
  slug: string,
  meta: nullable(bytes()),
  createdAt: count,
  updatedAt: count,
  itemCount: nullable(count),
});
/** A bin; the server cannot read `meta`. */
export type BinRow = Read<typeof bin>;
/** `POST /bins`, `PATCH /bins/:id`. */
export const readBin = field('bin', bin);
/** `GET /bins`. */
export const readBins = field('bins', array(bin, BINS_READ_MAX));

/** An accepted item write. */
export const readStored = object({ id: ulidText, version: count });
/** An item's id and the version it has now. */
export type Stored = Read<typeof readStored>;

/** Maximum length of a URL: object stores use about 1,000 characters. */
const URL_MAX = 8_192;

const blobRef = matchingText("must be a blob's name", (value) => BLOB_REF.test(value));

const uploadPart = object({ from: count, size: count, url: short(URL_MAX), headers: nullable(record) });
/** A part of an upload, `size` bytes from `from` on, and the URL to send it to. */
export type UploadPart = Read<typeof uploadPart>;

/** Maximum of parts in a reply; our server names up to 16. */
const PARTS_MAX = 64;

/** `POST /uploads`, `POST /uploads/:ref`. */
export const readUpload = object({
  blobRef,
  size: count,
  offset: count,
  expiresAt: count,
  parts: array(uploadPart, PARTS_MAX),
});
/** The state of an upload: the server has the bytes before `offset`, and expects these parts next. */
export type UploadState = Read<typeof readUpload>;

/** `GET /blobs/:ref/url`. */
export const readDownloadUrl = object({ url: short(URL_MAX), expiresAt: count, size: nullable(count) });
/** The URL of a blob, its expiry (ms), and the blob's size in bytes; null: not reported. */
export type DownloadUrl = Read<typeof readDownloadUrl>;

const batchResult = object({ id: nullable(string), version: nullable(count), error: nullable(errorBody) });
const readResults = field('results', array(batchResult));

/** The results of a batch, in the order of its writes: the version, or the refusal. */
export const readBatch: Reader<(Stored | ApiError)[]> = (value, path) =>
  readResults(value, path).map(({ id, version, error }, at) =>
    error === null
      ? { id: ulidText(id, `results[${at}].id`), version: count(version, `results[${at}].version`) }
      : new ApiError({ code: error.code, status: 0, message: error.message, details: error.details ?? {} }),
  );

/** `GET /items`. */
export const readPage = object({
  items: array<Change>((row) => itemChange(row, 'type')),
  nextSince: count,
  hasMore: boolean,
  epoch: epochText,
  /** It starts at 0, because the epoch or cursor of the request is of another history. */
  reset: (value, path): boolean => nullable(boolean)(value, path) === true,
});
type Page = Read<typeof readPage>;

/**
 * Checks a page: versions rise above `since`, and the next page starts at the last row. The head is always the version
 * of some item, so this holds for the last page too. Throws `ProtocolError` `bad_listing`: otherwise a server could
 * move a cursor past changes that it did not send, or never end a listing.
 */
export function expectPage(page: Page, since: number): Page {
  let last = page.reset ? 0 : since;
  for (const { version } of page.items) {
    if (version <= last) throw new ProtocolError('the rows of a listing do not rise', { code: 'bad_listing' });
    last = version;
  }
  if (page.nextSince !== last || (page.hasMore && page.items.length === 0))
    throw new ProtocolError('a listing ends elsewhere than its last row', { code: 'bad_listing' });
  return page;
}
