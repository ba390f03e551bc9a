/** The texts of the web app, grouped by screen; those of the pages beside the list are in `strings-pages.ts`. */
import type { ContentType } from '../../protocol/item.js';
import type { Failure } from '../link/messages.js';

export const counted = (count: number, one: string): string =>
  `${count.toLocaleString()} ${one}${count === 1 ? '' : 's'}`;

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const;

/** A size for display: 1.4 MB. */
export function size(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** power;
  return `${value.toLocaleString(undefined, { maximumFractionDigits: power === 0 || value >= 100 ? 0 : 1 })} ${UNITS[power] ?? ''}`;
}

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto', style: 'short' });
const STEPS: readonly (readonly [Intl.RelativeTimeFormatUnit, number])[] = [
  ['minute', 60_000],
  ['hour', 3_600_000],
  ['day', 86_400_000],
];

const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const dayAndYear = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium' });

/** A time relative to `now`: just now, 5 min. ago, yesterday, 3 March. */
export function time(at: number, now: number): string {
  const ago = now - at;
  if (Math.abs(ago) < 60_000) return 'just now';
  const [unit, ms] = STEPS.findLast(([, length]) => Math.abs(ago) >= length) ?? ['minute', 60_000];
  if (Math.abs(ago) < 7 * 86_400_000) return relative.format(-Math.round(ago / ms), unit);
  return (new Date(at).getFullYear() === new Date(now).getFullYear() ? day : dayAndYear).format(at);
}

export const kit = {
  cancel: 'Cancel',
  close: 'Close',
  dismiss: 'Dismiss',
  hidden: 'Hidden',
  hide: 'Hide',
  show: 'Show',
  back: 'Back',
  copy: 'Copy',
  discard: 'Discard',
  name: 'Name',
  save: 'Save',
  tryAgain: 'Try again',
  copied: 'Copied',
  notCopied: 'Not copied: select it and copy it by hand',
};

/** Enrolment: claim, join, recover. */
export const begin = {
  deviceName: 'Name of this device',
  deviceNameHint: 'Your other devices show it.',
  browserOn: (browser: string, platform: string): string =>
    [browser, platform].filter(Boolean).join(' on ') || 'Browser',
  startOver: 'Start over',
  asking: 'Asking the server whether it is claimed…',
  noAnswer: 'The server does not answer',
  askAgain: 'Ask again',
  claim: {
    title: 'Claim this server',
    lead: 'Nobody has claimed this server yet. This browser becomes its first device, and you get twelve words.',
    paper:
      'The words are the only way back when all your devices are lost, so have pen and paper or a printer at hand.',
    hasToken: 'I was given a claim token',
    token: 'Claim token',
    tokenHint: 'From the operator of the server (BOOTSTRAP_TOKEN), or from the page shown when you signed up.',
    go: 'Show my twelve words',
  },
  phrase: {
    title: 'Write these twelve words down',
    lead: 'They are shown once and stored nowhere. Anyone who has them can read everything; without them and without a device nobody can, not even you.',
    list: 'Your twelve words',
    print: 'Print',
    written: 'I have written them down',
    paperTitle: 'Twelve words',
    paperServer: (server: string, date: string): string => `For ${server}, ${date}.`,
    paperUse:
      'They bring everything back when all devices are lost: open the address above and choose “Recover with twelve words”. Keep this paper with your important documents. Nobody who helps you needs these words.',
  },
  ask: {
    title: 'Two of the words, please',
    lead: 'To make sure that you wrote them down correctly.',
    word: (place: number): string => `Word ${place}`,
    wrong: (place: number): string => `That is not word ${place}. Compare it with your paper.`,
    again: 'Show the words again',
    go: 'Finish',
  },
  join: {
    title: 'Add this browser',
    lead: 'On a device that you already use, choose “Pair a device” (or run service-device pair). It shows six words.',
    words: 'Six words, or the link',
    count: (count: number): string => (count === 0 ? 'Capitals and hyphens do not matter.' : `${count} of 6 words`),
    misspelt: (words: readonly string[]): string => `Misspelt: ${words.join(', ')}`,
    elsewhere: (origin: string): string => `This link is for another server: ${origin}`,
    elsewhereWhy: 'The words are valid on that server only. Nothing was sent.',
    openThere: 'Open it there',
    go: 'Join',
    noDevice: 'No other device left?',
  },
  compare: {
    title: 'Compare both screens',
    lead: 'The other device must show these digits and this picture. If it does, choose “They match” there.',
    differ: 'If they differ, choose “They differ” there: somebody is intercepting the connection.',
    waiting: 'Waiting for the other device…',
  },
  recover: {
    title: 'Recover with twelve words',
    lead: 'The words that were shown when this server was claimed. They bring everything back, and this browser becomes a device.',
    words: 'Twelve words',
    count: (count: number): string => (count === 0 ? 'In their order.' : `${count} of 12 words`),
    go: 'Recover',
    join: 'Join with six words instead',
  },
  password: {
    title: 'Account password',
    lead: 'This account has a password, which new devices must give.',
    wrong: 'Wrong password.',
    go: 'Continue',
  },
  working: { claim: 'Preparing…', join: 'Looking for the other device…', recover: 'Recovering…', other: 'One moment…' },
  failed: 'That did not work',
  undecided: 'It is not known whether the request arrived. Trying again is safe: nothing is done twice.',
};

/** The picture beside the digits. */
export const picture = {
  digits: (digits: string): string => `Digits ${Array.from(digits).join(' ')}`,
  of: (things: readonly string[]): string => `Picture: ${things.join(', ')}`,
};

export const bins = {
  create: 'New bin',
  edit: 'Edit bin',
  emoji: 'Emoji',
  emojiHint: 'Optional',
  make: 'Create',
  remove: 'Remove bin',
  removeTitle: (name: string): string => `Remove “${name}”?`,
  removeItems: (count: number): string =>
    count === 0
      ? 'There is nothing in it.'
      : `${counted(count, 'item')} in it ${count === 1 ? 'is' : 'are'} deleted on all devices. This cannot be undone.`,
  /** `waiting`: changes that the server does not have yet. */
  removing: (waiting: number): string =>
    `${waiting === 0 ? 'Removing it' : `${counted(waiting, 'change')} to be sent`}… It continues when you close this.`,
  noName: 'A bin needs a name.',
  noEmoji: 'One emoji, please.',
};

export const lock = {
  title: 'Locked',
  passphrase: 'Passphrase',
  open: 'Unlock',
  usePasskey: 'Unlock with passkey',
  wrong: 'Wrong passphrase.',
  cancelled: 'The passkey did not answer. Try again.',
  unsupported: 'This passkey cannot be used for unlocking in this browser.',
  shared: (count: number): string =>
    `Stored here unencrypted: ${counted(count, 'thing')} shared meanwhile. After unlocking you decide.`,
  lost: 'I cannot unlock it',
  forgetTitle: 'Forget this browser?',
  forget: 'Forget this browser',
  forgetLead:
    'Its keys and all its data are removed, and changes not sent yet are lost. Then pair it again from another device, or recover with the twelve words.',
  forgetRevoke: 'The server still lists it: revoke it on another device.',
};

export const unable = {
  insecureTitle: 'This address needs https',
  insecure: 'Browsers allow the encryption that this page needs on https addresses only.',
  shortest: 'The shortest way, on the server’s machine, with Caddy:',
  stopped: 'If Caddy already runs there as a service, stop it first: sudo systemctl disable --now caddy',
  certificate:
    'The certificate is Caddy’s own. Each device has to trust it once. This command offers it for download while it runs;',
  certificateThen: 'then open this on the device, install it, and stop the command:',
  certificateQr: 'QR code of the certificate’s address',
  phones:
    'iPhone: then Settings, General, About, Certificate Trust Settings. Android: Settings, Security, Install a CA certificate.',
  proxied:
    'Another program already answers on port 80: give that proxy a certificate, as deploy/README.md of the server shows.',
  then: 'Then open',
  here: 'On the server’s machine itself, http://localhost works without https.',
  oldTitle: 'This browser is too old',
  old: 'It lacks features that this page needs:',
  oldWhat: 'A current Firefox, Chrome, Edge or Safari has them.',
  parts: {
    insecure: 'a secure address (https)',
    wasm: 'WebAssembly',
    workers: 'background workers',
    storage: 'a database (IndexedDB); a private window may lack it',
    locks: 'locks between tabs (Web Locks)',
    channels: 'messages between tabs (BroadcastChannel)',
    crypto: 'encryption (WebCrypto)',
    streams: 'streams',
  },
  failedTitle: 'This browser’s store cannot be used',
  part: 'This part of the page could not be loaded. Offline, only parts that were loaded before are there.',
  store: {
    full: 'The disk, or this page’s part of it, is full. Nothing is lost. Free some space, then try again.',
    unsupported: 'The browser allows this page no storage: use a window that is not private.',
    io: 'The browser could not read or write its store. Restart the browser; if that does not help, check the disk.',
    read_only: 'The browser does not let this page write. Check the disk and the settings of this site.',
    newer_format:
      'A newer version of this page wrote the store. Reload the page; if that does not help, the server is older now.',
    closed: 'The store was removed or updated by another window. Reload the page.',
    locked: 'Another window or program uses the store. Close other windows of this page, then try again.',
    damaged: 'The store is damaged. Forget this browser and pair it again; everything that was sent is on the server.',
    other_owner: 'The store belongs to another device. Forget this browser and pair it again.',
  } as Readonly<Record<string, string>>,
  reload: 'Reload the page',
};

/** The frame around the screens: side bar, status line, shortcuts. */
export const frame = {
  menu: 'Menu',
  all: 'Everything',
  bins: 'Bins',
  binMenu: (name: string): string => `Edit ${name}`,
  devices: 'Devices',
  settings: 'Settings',
  trust: 'Trust',
  lock: 'Lock now',
  skip: 'To the list',
  here: 'Everything is here',
  catchingUp: 'Catching up…',
  connecting: 'Connecting…',
  offline: 'Offline',
  offlineWaiting: (count: number, since: string): string =>
    `Offline: ${counted(count, 'change')} ${count === 1 ? 'waits' : 'wait'}, since ${since}`,
  sending: (count: number): string => `Sending ${counted(count, 'change')}…`,
  connect: 'Connect now',
  halted: 'Stopped',
  reload: 'Reload',
  engineGone: 'The background process of this page has stopped',
  engineGoneHow: 'Nothing that was stored is lost. Reload the page to continue.',
  sharedWaiting: (count: number): string =>
    `${counted(count, 'shared thing')} can be added once this device is set up.`,
};

/** The list and its rows. */
export const list = {
  label: 'Items',
  search: 'Search',
  searchIn: (bin: string): string => `Search ${bin}`,
  clear: 'Clear the search',
  kindsLabel: 'Kinds',
  allKinds: 'All',
  kind: {
    password: 'Password',
    link: 'Link',
    text: 'Text',
    code: 'Code',
    image: 'Picture',
    file: 'File',
    audio: 'Audio',
    video: 'Video',
    contact: 'Contact',
    location: 'Location',
  },
  kinds: (type: ContentType): string => `${list.kind[type]}${type === 'code' || type === 'audio' ? '' : 's'}`,
  found: (count: number): string => counted(count, 'item'),
  noneTitle: 'Nothing here yet',
  none: 'Type or paste something, or drop files anywhere. It appears on all your devices.',
  notFoundTitle: 'Nothing found',
  notFound: 'No item matches. The secrets of passwords are not searched.',
  showAll: 'Show everything',
  pending: 'Not sent yet',
  copySecret: 'Copy password',
  open: 'Open link',
  download: 'Download',
  edit: 'Edit',
  move: 'Move…',
  moveTitle: 'Move to',
  remove: 'Delete',
  more: (title: string): string => `More for ${title}`,
  removed: (seconds: number): string => `Deleted in ${seconds} s`,
  undo: 'Undo',
  moved: (bin: string): string => `Moved to ${bin}`,
  defaultBin: 'Inbox',
  namelessBin: 'Bin without a name',
  cleared: 'The clipboard was cleared',
  secretCopied: (seconds: number): string =>
    `Copied. The clipboard is cleared ${seconds > 0 ? `in ${seconds} s` : 'when you use this page again'}.`,
  clearNow: 'Clear now',
  notCopied: (failure: Failure): string => `Not copied: ${problem(failure)}`,
};

/** The composer. */
export const put = {
  label: 'Put something',
  placeholder: 'Put anything here',
  put: 'Put',
  files: 'Choose files',
  camera: 'Take a picture',
  kind: (kind: string): string => `Kind: ${kind}`,
  into: (bin: string): string => `Into ${bin}`,
  details: 'Fields',
  plain: 'Back to the text',
  drop: 'Drop to put here',
  dropInto: (bin: string): string => `Drop to put into ${bin}`,
};

/** The fields of the kinds. */
export const fields = {
  labels: {
    service: 'For',
    user: 'User',
    secret: 'Password',
    url: 'Address',
    title: 'Title',
    desc: 'Description',
    text: 'Text',
    label: 'Name',
    lang: 'Language',
    name: 'Name',
    role: 'Role',
    email: 'E-mail',
    phone: 'Phone',
    addr: 'Postal address',
    lat: 'Latitude',
    lng: 'Longitude',
    coordinates: 'Coordinates',
  } as Readonly<Record<string, string>>,
  missing: 'This field is required.',
  notNumber: 'This is not a number.',
  notAddress: 'This is not an address.',
  bothNumbers: 'Give both latitude and longitude, or neither.',
  latRange: 'From -90 to 90.',
  lngRange: 'From -180 to 180.',
  noPlace: 'A name, an address, or latitude and longitude.',
};

export const item = {
  label: 'Item',
  choose: 'No item selected',
  chooseHow: 'The item that you select in the list is shown here.',
  discardTitle: 'Discard what you typed?',
  downloading: 'Preparing the download…',
  tooLarge: 'Reload the page first: only then can this browser save so large a file.',
};

/** Uploads of files. */
export const uploads = {
  title: 'Uploads',
  waiting: 'Waiting',
  later: 'Not sent yet; it is tried again by itself.',
  continues: (percent: number): string => `Continues at ${percent} %`,
  sent: (done: string, size: string): string => `${done} of ${size}`,
  speed: (perSecond: string): string => `, ${perSecond}/s`,
  progress: (name: string): string => `${name}: upload`,
  cancel: (name: string): string => `Cancel ${name}`,
  summary: (count: number): string => `Uploading ${counted(count, 'file')}`,
};

/** The notices above the list. */
export const notices = {
  label: 'Notices',
  rejected: (title: string): string => `The server refused “${title}”`,
  untagged_delete: (title: string): string => `“${title}” was deleted, but none of your devices signed that`,
  repaired_store: 'Data stored in this browser was damaged and has been repaired',
  missing: (title: string): string => `“${title}” is missing on the server`,
  reset: 'The server was restored to an older state',
  same_name: 'Another of your devices has the same name',
  problem: 'Something went wrong',
  update: 'A new version is ready',
  nameless: 'An item',
  overwrite: 'Write it anyway',
  asCopy: 'Keep as a copy',
  uncertified: (count: number): string =>
    count === 1
      ? 'A device was added that none of yours has approved'
      : `${count} devices were added that none of yours has approved`,
  uncertifiedText: 'Nothing is sent until you decide: approve it if it is yours, revoke it if not.',
  toDevices: 'Show devices',
  shared: (count: number): string => `${counted(count, 'thing')} shared into this app`,
  sharedWhy: 'Was it you? Other web pages can send such things too.',
  sharedPut: 'Put into the inbox',
  /** By `ShareRefusal`. */
  notShared: {
    empty: 'Nothing was shared: the other app sent no text, address or file',
    too_large: 'Too much was shared at once: share fewer or smaller files',
    full: 'There is no room for what was shared: add or discard the items above, then share it again',
    unreadable: 'What was shared could not be read: share it again',
    foreign: 'Another website tried to share something into this app. It was refused',
  },
  orphaned: (count: number): string => `The server lost ${counted(count, 'item')} that this device still has`,
  orphanedText: 'It was restored to an older state. Write them again, or discard them.',
  republish: 'Write again',
  discardTitle: 'Discard these items?',
  discardText:
    'They are removed from this device too; other devices keep them until you decide there. This cannot be undone.',
  hidden: (count: number): string => `${counted(count, 'item')} cannot be shown`,
  hiddenText: 'They do not verify: they were altered on the server or on the way, or written by a newer version.',
  hiddenShow: 'Details',
};

export const keys = {
  title: 'Keyboard shortcuts',
  rows: [
    ['/', 'Search'],
    ['n', 'Put something new'],
    ['j k', 'Down and up in the list'],
    ['Enter', 'Open'],
    ['c', 'Copy'],
    ['o', 'Open link'],
    ['e', 'Edit'],
    ['m', 'Move'],
    ['Del', 'Delete'],
    ['Esc', 'Back'],
    ['Ctrl Enter', 'Put what is typed'],
    ['?', 'This list'],
  ] as readonly (readonly [string, string])[],
};

const tampered =
  'A key did not match, so nothing was sent. Use new words; if it happens again, do not trust this network or server.';

/** Messages by the code of a `Failure`. For a code that is not here, the failure's own message is shown. */
const PROBLEMS: Readonly<Record<string, string>> = {
  // Errors of the server.
  unauthorized: 'The server does not know this device any more.',
  device_revoked: 'This device was revoked.',
  forbidden: 'The server does not allow that: the token or the words are wrong.',
  bootstrap_already_done: 'This server was claimed meanwhile. Join it with six words from one of its devices.',
  device_limit: 'The server allows no more devices. Revoke one that you no longer use.',
  last_device: 'This is the last device, so it cannot be revoked. Pair another one first.',
  device_not_found: 'The server does not know that device any more.',
  tenant_suspended: 'The account is suspended: you can read, but not write.',
  payment_required: 'The account is inactive until it is paid.',
  tenant_not_found: 'No account belongs to this address.',
  rate_limited: 'Too many attempts. Wait a minute, then try again.',
  internal: 'Something failed. Try again.',
  unavailable: 'The server is busy or its database is down. Try again in a moment.',
  storage_unavailable: 'The server’s storage for files is out of reach. Try again in a moment.',
  password_invalid: 'Wrong account password.',
  password_required: 'This account has a password, which is required.',
  conflict: 'Another device changed it meanwhile.',
  bin_not_found: 'The bin is gone.',
  item_not_found: 'The item is gone.',
  unknown_item: 'The item is gone.',
  deleted_item: 'The item was deleted.',
  default_bin: 'This bin cannot be removed. Its items can.',
  damaged_item: 'Its stored copy is damaged. Choose Settings, Read everything again, to restore it.',
  blob_not_found: 'The file is not on the server (any more).',
  blob_too_large: 'The file is larger than the server accepts.',
  storage_cap_exceeded: 'The storage on the server is full. Delete something, or ask its operator for more.',
  item_too_large: 'This is too long for an item. Add it as a file.',
  too_large: 'This is too long for an item. Add it as a file.',
  bad_payload: 'Its fields do not match its kind.',
  source_changed: 'The file was changed while it was sent. Add it again.',
  reset: 'The server was restored meanwhile. Check the item, and make the change again.',
  // Network.
  network: 'The server cannot be reached. Check the connection, then try again.',
  timeout: 'The server did not answer in time. Try again.',
  aborted: 'That was stopped.',
  engine_lost: 'The tab that did this was closed. Check whether it was done, and repeat it if not.',
  // Pairing and words.
  bad_words: 'These words are not valid: one is misspelt, missing, or in the wrong place. Check each one.',
  unknown_code: 'No device shows these words. They are valid for five minutes and one attempt: use new ones.',
  expired: 'The five minutes are over. Use new words.',
  rejected: 'The other device refused. Use new words.',
  cancelled: 'That was stopped.',
  no_code: 'The server could not provide words. Try again in a moment.',
  bad_request:
    'The request of the new device is not valid. Use new words; if it happens again, do not trust this network.',
  wrong_host: 'The new device used another address of the server than this one. Use the same on both.',
  known_device: 'That device is here already.',
  empty_password: 'Enter the account password.',
  ...Object.fromEntries(
    ['low_order', 'wrong_device', 'bad_attestation', 'bad_confirmation', 'bad_cert', 'bad_wrap'].map((code) => [
      code,
      tampered,
    ]),
  ),
  bad_challenge: 'The server sent a request that no honest server sends. It was not answered.',
  bad_identity: 'The passphrase or passkey does not open this browser.',
  fingerprint: 'This is the fingerprint of another device.',
  uncertified_device: 'The server lists a device that none of yours has approved. Decide about it under Devices.',
  // Archives.
  not_archive: 'This file is no archive of this service.',
  unsupported: 'This version cannot read it.',
  wrong_words: 'These are not the words that the archive was made with, or its start is damaged.',
  damaged: 'The archive is damaged. Nothing was imported. Try another copy.',
  truncated: 'The archive is incomplete. Nothing was imported. Try another copy.',
  bad_record: 'The archive has a record that no export writes. Nothing was imported.',
  // The local store.
  full: 'The disk, or the space that the browser allows for this page, is full.',
};

/** An error message for the user. */
export function problem({ code, message }: Failure): string {
  // A server may send any code, including `constructor`.
  const known = Object.hasOwn(PROBLEMS, code) ? PROBLEMS[code] : undefined;
  return known ?? (message || 'Something went wrong.');
}

/**
 * Characters that change the direction of a text, by which a file name can fake its extension; invisible control
 * characters; and halves of surrogate pairs, of which no URL can be made.
 */
const UNSAFE = /[\p{Cs}\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/gu;
/** A text written by others, with its `UNSAFE` characters replaced. */
export const safeText = (value: string): string => value.replace(UNSAFE, '\ufffd');
