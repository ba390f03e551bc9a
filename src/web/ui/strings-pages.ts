/**
 * All texts of the pages beside the list, which are not part of the first view. The texts of the first view are in
 * `strings.ts`.
 */
import type { Imported } from '../link/messages.js';
import { counted, size } from './strings.js';

const entriesText = (count: number): string => (count === 1 ? '1 entry' : `${count.toLocaleString()} entries`);

const pair = {
  working: 'Preparing six words…',
  letting: 'Adding the device…',
  lead: 'On the new device, point the camera at the code or open this server’s address and type the words.',
  leadLocal: 'In another browser or a terminal on this computer, open the same address and type the words.',
  elsewhere: 'This address works on this computer only: no phone and no other computer can join at it.',
  elsewhereHow: 'How they can',
  qr: 'QR code of the link',
  words: 'Six words',
  copyLink: 'Copy link',
  left: (seconds: number): string =>
    `Valid for another ${Math.floor(seconds / 60)}:${`${seconds % 60}`.padStart(2, '0')}`,
  secret: 'Show these words to nobody else: with them one device can join.',
  compareTitle: 'The same on both screens?',
  wants: (name: string): string => `“${name}” wants to join. Its screen must show exactly this:`,
  match: 'They match',
  differ: 'They differ',
  joinedTitle: 'Paired',
  joined: (name: string): string =>
    `“${name}” has joined. It can read new items at once, and older ones as soon as their keys are added: leave this page open for a moment.`,
  sameName: 'Another of your devices has the same name. Give this one its own.',
  failedTitle: 'Not paired',
  differed: 'You said that they differ, so nothing was sent. If it happens again, do not trust this network or server.',
  withdrawn: 'The request is gone, so nothing was sent: pairing was stopped on the new device, or begun again here.',
  again: 'New words',
  done: 'Done',
};

const devices = {
  pair: 'Pair a device',
  empty: 'The list is shown when the server answers.',
  own: 'This device',
  online: 'Online',
  lastSeen: 'Last seen ',
  neverSeen: 'Not seen yet',
  paired: 'Paired ',
  menu: (name: string): string => `Actions for ${name}`,
  rename: 'Rename',
  revoke: 'Revoke',
  revokeTitle: (name: string): string => `Revoke “${name}”?`,
  revokeDoes: [
    'It is signed out at once and gets nothing new. Changes that it has not sent yet are lost.',
    'It keeps what it has read, and the key to all of it: no device can be made to forget.',
    'If it was stolen unlocked, change the passwords that are stored here. Somebody who has the device and controls the server could add it again: only a new vault with new words prevents that.',
  ],
  revoked: (count: number): string => `Revoked (${count})`,
  uncertified: 'Not certified',
  uncertifiedTitle: (name: string): string => `The server lists “${name}”, and none of your devices has approved it`,
  uncertifiedWhy: 'Nothing is written until you decide. If you do not know it, revoke it.',
  wasRevokedTitle: (name: string): string => `The server lists “${name}” again, which was revoked`,
  wasRevokedWhy: 'Nothing is written until you revoke it again. If it is yours, pair it anew after that.',
  isMine: 'It is mine',
  certifyTitle: (name: string): string => `Is “${name}” yours?`,
  certifyLead: 'Type the fingerprint that its own screen shows, under Settings, This device.',
  fingerprint: 'Fingerprint',
  certify: 'Certify',
  notIt: 'This is not the fingerprint of the device that the server lists. Do not certify it: revoke it.',
};

const settings = {
  unknown: 'Not known until the server answers.',
  differ: 'The two are different.',
  device: {
    title: 'This device',
    server: 'Server',
    fingerprint: 'Fingerprint of this device',
    fingerprintHint: 'Another device asks for it before it certifies this one.',
    master: 'Fingerprint of your vault',
    masterHint: 'The same on all your devices. A device that shows another one is not in your vault.',
  },
  lock: {
    title: 'Lock',
    none: 'None',
    passphrase: 'Passphrase',
    passkey: 'Passkey',
    is: {
      none: 'Anyone who can use this browser on this computer can open everything.',
      passphrase: 'A passphrase opens this browser.',
      passkey: 'A passkey opens this browser.',
    },
    kind: 'How this browser is locked',
    noPasskey: 'This browser or address cannot use passkeys for unlocking.',
    after: 'Lock after',
    minutes: (count: number | null): string => (count === null ? 'Only at start' : counted(count, 'minute')),
    setPassphrase: 'Set a passphrase',
    changePassphrase: 'Change the passphrase',
    passphraseLead:
      'For this browser only. It is stored nowhere: without it this browser has to be paired again, and changes not sent yet are lost.',
    repeat: 'Once more',
    short: 'At least 8 characters.',
    set: 'Set',
    setPasskey: 'Lock with a passkey',
    passkeyLead:
      'Your phone, security key or this computer asks for your finger, face or PIN, and provides the key that opens this browser. Without the passkey this browser has to be paired again.',
    make: 'Make a passkey',
    offTitle: 'Remove the lock?',
    off: 'Remove it',
    changed: 'The lock was changed.',
    unsupported: 'This passkey cannot be used for unlocking. Use a passphrase.',
    cancelled: 'Cancelled before the passkey answered.',
  },
  password: {
    lead: 'Once a password is set, new devices need it in addition to the six or the twelve words.',
    exists: 'A password is set.',
    none: 'No password is set.',
    unknown: 'Whether one is set is not known until the server answers.',
    set: 'Set a password',
    change: 'Change',
    remove: 'Remove',
    current: 'Current password',
    fresh: 'New password',
    repeat: 'New password once more',
    done: 'The password is set.',
    removed: 'The password is removed.',
    removeLead: 'Then the words alone are enough to add a device.',
  },
  storage: {
    title: 'Storage',
    used: (used: number, cap: number): string => `${size(used)} of ${size(cap)} used`,
    usedOnly: (used: number): string => `${size(used)} used`,
    items: (count: number): string => counted(count, 'item'),
    label: 'Storage used',
  },
  foreign: {
    title: 'Import from another password manager',
    lead: 'Bring the export of Bitwarden, Chrome, Edge, Firefox or KeePass, or contacts as vCard.',
    open: 'Choose an export',
    dialogLead:
      'The file is read in this browser. You see what is in it before anything is added, and the server gets ciphertext only.',
    file: 'Exported file',
    read: 'Read the file',
    reading: 'Reading…',
    password: 'Password of this file',
    wrong: 'It does not open with this: another password or key file, or the file is damaged.',
    keyFile: 'Key file, if the database has one',
    how: 'What is taken, and what becomes of it',
    holds: (from: string, entries: number, items: number, bins: number): string =>
      items === 0
        ? `${from}: ${entriesText(entries)}, of which nothing can be imported.`
        : `${from}: ${entriesText(entries)}, which ${entries === 1 ? 'becomes' : 'become'} ${counted(items, 'item')} in ${counted(bins, 'bin')}.`,
    bins: (count: number): string => `Into ${counted(count, 'bin')}`,
    here: (count: number): string =>
      `${count.toLocaleString()} of them are here already. They stay as they are, unless the file has a newer state.`,
    withOriginal: (count: number): string =>
      `${entriesText(count)} with more than the fields here can hold: a note names it, and the original is kept beside it as a file.`,
    left: (count: number, why: string): string => `Left out: ${entriesText(count)} (${why}).`,
    mark: (count: number, mark: string): string => `Not imported: the mark “${mark}” (${entriesText(count)}).`,
    importAll: (count: number): string => `Import ${counted(count, 'item')}`,
    another: 'Another file',
    ended: 'The import has ended',
    deleteFile: 'The exported file is not encrypted: delete it now.',
  },
  archive: {
    title: 'Archive',
    lead: 'Everything in one file, including your files, which only your twelve words open. Readable without this service.',
    export: 'Export',
    import: 'Import',
    exportTitle: 'Export everything',
    exportLead: 'The words encrypt the file and are not stored. Leave this page open until it is done.',
    choose: 'Choose where to save',
    file: 'Archive file',
    importTitle: 'Import an archive',
    importLead:
      'Items that are here already stay as they are, unless the archive has a newer state. Nothing is deleted.',
    phraseOfFile: 'The twelve words it was made with',
    written: (bytes: number): string => `${size(bytes)} written…`,
    reading: 'Reading and checking the file, then writing…',
    exported: (bytes: number): string => `The archive is saved (${size(bytes)}).`,
    importing: (done: number, total: number): string =>
      `${done.toLocaleString()} of ${total.toLocaleString()} items. It continues when you close this window, as long as the browser is open.`,
    imported: (all: Imported): readonly string[] => {
      const rest = [
        ['Sent when the server accepts them', all.waiting],
        ['Newer here, left as they are', all.newer],
        ['Deleted here before, imported as new items', all.renamed],
        ['Files left out, since the archive has only their names', all.blobs],
        ['Refused by the server', all.refused],
      ] as const;
      return [
        ...(all.stopped ? ['Stopped. Import the same file again to continue.'] : []),
        `${counted(all.written, 'item')} and ${counted(all.bins, 'bin')} imported, ${all.same.toLocaleString()} here already.`,
        ...rest.flatMap(([what, items]) => (items > 0 ? [`${what}: ${items.toLocaleString()}.`] : [])),
      ];
    },
    stop: 'Stop',
    noFile: 'Choose a file.',
    words: 'Enter twelve words.',
    notThese: 'These are not the twelve words of this vault.',
  },
  repair: {
    title: 'Items that are not shown',
    none: 'All items received from the server are shown.',
    hidden: (count: number): string =>
      `${counted(count, 'item')} ${count === 1 ? 'is' : 'are'} not shown, because ${count === 1 ? 'it does' : 'they do'} not verify.`,
    which: 'Which and why',
    kept: 'Its last good state is kept.',
    resync: 'Read everything again',
    resyncLead: 'Reads all items from the server again and checks each one. Nothing is lost.',
    resynced: 'All items were read again.',
    more: (count: number): string => `and ${count.toLocaleString()} more`,
  },
  leave: {
    title: 'Sign out',
    lead: 'Revokes this device, and removes its keys and everything that is stored in this browser.',
    dialog: 'Sign out of this browser?',
    does: 'This device is revoked, and its keys and all its data are removed from this browser. Your other devices keep everything.',
    offline: 'The server cannot be reached. Everything is removed here now; revoke this device on another one later.',
    waiting: (count: number): string =>
      `${counted(count, 'change')} ${count === 1 ? 'is' : 'are'} not sent yet and will be lost.`,
    only: 'Is this your last device? Then have the twelve words at hand: nothing else restores access.',
    uploads: (count: number): string =>
      `${counted(count, 'file')} ${count === 1 ? 'is' : 'are'} not on the server yet and will be lost here.`,
    lose: 'I know that they are lost',
    forget: 'Remove from this browser',
  },
  about: {
    title: 'About',
    version: (page: string, server: string): string => `Page ${page}, server ${server}`,
    page: (page: string): string => `Page ${page}`,
  },
};

const trust = {
  title: 'What this page can promise',
  can: 'What it can',
  canItems: [
    'Everything you add is encrypted in this browser before it is sent. The server gets ciphertext, and neither your words nor your keys.',
    'Each item is checked when it comes back: an item that was altered, or that none of your devices wrote, is not shown.',
    'The page loads nothing from elsewhere, and its rules let it talk to this server only, and to the bucket where this server keeps files.',
  ],
  cannot: 'What no web page can',
  cannotItems: [
    'The server that keeps your ciphertext also serves this page. If it is taken over, it can serve another page that sends your keys away; you would not see it.',
    'A browser extension that may read this page can read everything you see.',
    'A program that runs under your account on this computer can use the data of an unlocked browser.',
  ],
  stored: 'What is stored here',
  storedItems: [
    'Items as the server has them: encrypted. They open with your device’s key.',
    'The device’s key: encrypted. Without a lock, under a key that scripts can use but not read: this protects a copy of the files, but not against people at this computer.',
    'With a lock, under your passphrase or passkey: a locked browser cannot be read without it.',
    'Two things are stored unencrypted: a file until it is on the server, and data shared into the app until you add it.',
  ],
  check: 'How to check',
  checkLead:
    'From a computer that you trust, with a copy of the program that you built or got elsewhere, compare the files that the server serves with those of the program:',
  checkWhen:
    'It compares every file of the page. A server could serve a different page to your browser only: this check finds changes that affect everyone, not one that targets you alone.',
  native:
    'Where that is not enough, use service-device: a program on your computer that is not loaded from the server at each start.',
  version: (version: string): string => `This page is version ${version}.`,
  copy: 'Copy command',
};

/** A revoked device. */
const revoked = {
  title: 'This device was revoked',
  what: 'Another of your devices revoked it. Nothing is received or sent any more, including changes not sent yet. Items stored here can still be read.',
  may: 'Data stored here can still be exported. Files that are only on the server cannot.',
  exportFirst: 'Export an archive',
  back: 'To use this browser again, forget it here, then pair it or recover.',
};

export const pagesText = { pair, devices, settings, trust, revoked };
