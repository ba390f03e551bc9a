/**
 * All texts of the pages beside the list, which are not part of the first view. The texts of the first view are in
 * `strings.ts`.
 */
import type { Imported } from '../link/messages.js';
import { text } from './strings.js';

const { counted, size } = text;

const pair = {
  title: 'Pair a device',
  working: 'Drawing six words…',
  letting: 'Letting it in…',
  lead: 'On the new device, point the camera at the code or open this server’s address and type the words.',
  qr: 'QR code of the link',
  words: 'Six words',
  copyLink: 'Copy link',
  left: (ms: number): string =>
    `Good for another ${Math.floor(ms / 60_000)}:${`${Math.floor((ms % 60_000) / 1000)}`.padStart(2, '0')}`,
  secret: 'Show these words to nobody else: they let one device in.',
  compareTitle: 'The same on both screens?',
  wants: (name: string): string => `“${name}” wants to join. Its screen must show exactly this:`,
  match: 'They match',
  differ: 'They differ',
  joinedTitle: 'Paired',
  joined: (name: string): string =>
    `“${name}” is in. It reads new things at once; older ones as soon as their keys are added, so leave this open a moment.`,
  failedTitle: 'Not paired',
  differed:
    'You said that they differ, so nothing was handed over. If it happens again, do not trust this network or server.',
  again: 'New words',
  done: 'Done',
};

const devices = {
  title: 'Devices',
  pair: 'Pair a device',
  empty: 'The list comes when the server answers.',
  own: 'This device',
  online: 'Online',
  lastSeen: 'Last seen ',
  neverSeen: 'Not seen yet',
  paired: 'Paired ',
  menu: (name: string): string => `What to do with ${name}`,
  rename: 'Rename',
  name: 'Name',
  save: 'Save',
  revoke: 'Revoke',
  revokeTitle: (name: string): string => `Revoke “${name}”?`,
  revokeNow: 'It is signed out at once and gets nothing new. What it has not sent yet is lost.',
  revokeKept: 'What it has read it keeps, and the key to all of it: nobody can make a device forget.',
  revokeStolen:
    'If it was stolen unlocked, change the passwords that are stored here. Whoever has it and the server could let it in again: only new words, with everything written anew under them, end that.',
  revoked: (count: number): string => `Revoked (${count})`,
  uncertified: 'Not certified',
  uncertifiedTitle: (name: string): string => `The server lists “${name}”, and none of your devices has let it in`,
  uncertifiedWhy: 'Nothing is written until you decide. If you do not know it, revoke it.',
  isMine: 'It is mine',
  certifyTitle: (name: string): string => `Is “${name}” yours?`,
  certifyLead: 'Type the fingerprint that its own screen shows, under Settings, This device.',
  fingerprint: 'Fingerprint',
  certify: 'Certify',
  notIt: 'This is not the fingerprint of the device that the server lists. Do not certify it: revoke it.',
};

const settings = {
  title: 'Settings',
  device: {
    title: 'This device',
    server: 'Server',
    fingerprint: 'Fingerprint of this device',
    fingerprintHint: 'Another device asks for it when it has to vouch for this one.',
    master: 'Fingerprint of your vault',
    masterHint: 'The same on all your devices. If one shows another, it is not in your vault.',
  },
  lock: {
    title: 'Lock',
    none: 'None',
    passphrase: 'Passphrase',
    passkey: 'Passkey',
    is: {
      none: 'Whoever can use this browser on this computer can open everything.',
      passphrase: 'A passphrase opens this browser.',
      passkey: 'A passkey opens this browser.',
    },
    kind: 'How this browser is locked',
    noPasskey: 'This browser or address cannot use passkeys that give a secret.',
    after: 'Lock after',
    minutes: (count: number | null): string => (count === null ? 'Only at start' : counted(count, 'minute')),
    now: 'Lock now',
    setPassphrase: 'Set a passphrase',
    passphraseLead:
      'For this browser only. It is kept nowhere: without it this browser has to be paired again, and what it has not sent yet is lost.',
    repeat: 'Once more',
    short: 'At least 8 characters.',
    differ: 'The two are not the same.',
    set: 'Set',
    setPasskey: 'Lock with a passkey',
    passkeyLead:
      'Your phone, security key or this computer asks for your finger, face or PIN, and gives the key that opens this browser. Without the passkey this browser has to be paired again.',
    make: 'Make a passkey',
    offTitle: 'Take the lock off?',
    off: 'Take it off',
    changed: 'The lock is changed.',
    unsupported: 'This passkey cannot give a secret. Use a passphrase.',
    cancelled: 'That was ended before the passkey answered.',
  },
  password: {
    title: 'Account password',
    lead: 'New devices have to know it, beside the six or the twelve words.',
    unknown: 'Whether one is set is known when the server answers.',
    exists: 'A password is set.',
    none: 'No password is set.',
    set: 'Set a password',
    change: 'Change',
    remove: 'Remove',
    current: 'Password as it is now',
    fresh: 'New password',
    repeat: 'New password once more',
    differ: 'The two are not the same.',
    done: 'The password is set.',
    removed: 'The password is removed.',
    removeLead: 'Then the words alone let a device in.',
  },
  storage: {
    title: 'Storage',
    used: (used: number, cap: number): string => `${size(used)} of ${size(cap)} used`,
    usedOnly: (used: number): string => `${size(used)} used`,
    items: (count: number): string => counted(count, 'item'),
    label: 'Storage used',
    unknown: 'How much is used is known when the server answers.',
  },
  archive: {
    title: 'Archive',
    lead: 'Everything in one file that only your twelve words open, with all files. Readable without this service.',
    export: 'Export',
    import: 'Import',
    exportTitle: 'Export everything',
    exportLead: 'The words encrypt the file. They are not kept. Leave this page open until it is done.',
    phrase: 'Your twelve words',
    choose: 'Choose where to save',
    file: 'Archive file',
    importTitle: 'Import an archive',
    importLead: 'What is here already stays as it is, but for what is newer in the archive; nothing is deleted.',
    phraseOfFile: 'The twelve words it was made with',
    written: (bytes: number): string => `${size(bytes)} written…`,
    reading: 'Reading and checking the file, then writing…',
    exported: (bytes: number): string => `The archive is saved (${size(bytes)}).`,
    importing: (done: number, total: number): string =>
      `${done.toLocaleString()} of ${total.toLocaleString()} items. It goes on when this window is closed, as long as this browser is open.`,
    imported: ({
      written,
      bins,
      same,
      newer,
      blobs,
      renamed,
      waiting,
      refused,
      stopped,
    }: Imported): readonly string[] => [
      ...(stopped ? ['Stopped. The same file goes on from here.'] : []),
      `${counted(written, 'item')} and ${counted(bins, 'bin')} brought in, ${same.toLocaleString()} here already.`,
      ...(
        [
          ['Sent when the server takes them', waiting],
          ['Changed here later, left as they are', newer],
          ['Deleted here before, so here as new items', renamed],
          ['Files left out, since the archive has nothing but their names', blobs],
          ['Refused by the server', refused],
        ] as const
      ).flatMap(([what, items]) => (items > 0 ? [`${what}: ${items.toLocaleString()}.`] : [])),
    ],
    stop: 'Stop',
    noFile: 'Choose a file.',
    words: 'That needs twelve words.',
    notThese: 'These are not the twelve words of this vault.',
  },
  repair: {
    title: 'What is not shown',
    none: 'Everything that came from the server is shown.',
    hidden: (count: number): string =>
      `${counted(count, 'item')} ${count === 1 ? 'is' : 'are'} not shown, because ${count === 1 ? 'it does' : 'they do'} not verify.`,
    which: 'Which and why',
    kept: 'Its last good state is kept.',
    orphans: (count: number): string =>
      `The server was restored to an older state and does not know ${counted(count, 'item')} that this device has.`,
    republish: 'Write them again',
    discard: 'Drop them',
    discardTitle: 'Drop what the server lost?',
    discardLead: 'They are removed from this device. Other devices that have them keep them until they decide.',
    resync: 'Read everything again',
    resyncLead: 'Reads all items anew from the server and checks each one. Nothing of yours is lost.',
    resynced: 'Everything was read again.',
    more: (count: number): string => `and ${count.toLocaleString()} more`,
  },
  leave: {
    title: 'Sign out',
    lead: 'Revokes this device, and removes its keys and everything that is stored in this browser.',
    dialog: 'Sign out of this browser?',
    does: 'This device is revoked, and its keys and all it has stored here are removed. Your other devices keep everything.',
    offline: 'The server cannot be reached. Everything is removed here now; revoke this device on another one later.',
    waiting: (count: number): string =>
      `${counted(count, 'change')} ${count === 1 ? 'is' : 'are'} not with the server yet and will be lost.`,
    only: 'Is this your last device? Then have the twelve words at hand: nothing else brings you back.',
    lose: 'I know that they are lost',
    go: 'Sign out',
    forget: 'Remove from this browser',
  },
  about: {
    title: 'About',
    version: (page: string, server: string): string => `Page ${page}, server ${server}`,
    page: (page: string): string => `Page ${page}`,
    trust: 'What this page can promise',
  },
};

const trust = {
  title: 'What this page can promise',
  can: 'What it can',
  canItems: [
    'What you put is encrypted in this browser before it is sent. The server gets ciphertext, and neither your words nor your keys.',
    'Each item is checked when it comes back: one that was changed, or that none of your devices wrote, is not shown.',
    'The page loads nothing from elsewhere, and its rules let it talk to this server only, and to the bucket where this server keeps files.',
  ],
  cannot: 'What no web page can',
  cannotItems: [
    'The server that keeps your ciphertext also serves this page. If it is taken over, it can serve another page that sends your keys away; you would not see it.',
    'An extension of this browser that may read this page reads what you read.',
    'A program that runs as you on this computer can use what an unlocked browser has.',
  ],
  stored: 'What is stored here',
  storedItems: [
    'Items as the server has them: encrypted. They open with your device’s key.',
    'The device’s key: encrypted. Without a lock, under a key that scripts can use but not read, which keeps it from a copy of the files rather than from people at this computer.',
    'With a lock, under your passphrase or passkey: a locked browser cannot be read without it.',
    'Two things wait unencrypted: a file until it is with the server, and what is shared into the app until you put it.',
  ],
  check: 'How to check',
  checkLead:
    'From a computer that you trust, with a copy of the program that you built or got elsewhere, compare what the server serves with what it should:',
  checkWhen:
    'It looks at every file of the page. A server could show you one page and your browser another, so this finds a change for all, and not one for you alone.',
  native:
    'Where that is not enough, use service-device: a program on your computer that does not come anew from the server at each start.',
  version: (version: string): string => `This page is version ${version}.`,
  copy: 'Copy command',
};

/** A revoked device. */
const revoked = {
  title: 'This device was revoked',
  what: 'Another of your devices took it out. Nothing new comes, and nothing goes out any more, also what was not sent yet. What is here can still be read.',
  may: 'What is stored here can still be saved. Files that lie on the server only are out of reach.',
  exportFirst: 'Export an archive',
  back: 'To take part again, forget this browser, then pair it or recover.',
  forget: 'Forget this browser',
};

export const pagesText = { pair, devices, settings, trust, revoked };
