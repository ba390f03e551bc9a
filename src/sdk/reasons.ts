/**
 * Every reason for which this library refuses or hides something, with one sentence for people on what it means and
 * one on what to do. The command line and the reference show these; programs match on the reason itself.
 */
import type { QuarantineReason } from './store/store.js';

/** Why an item that is here is not shown. */
export type HiddenReason =
  | QuarantineReason
  /** It was deleted by somebody who did not prove to hold the master key. */
  | 'untagged_delete';

/** One reason, in plain words. */
export interface Reason {
  /** `item`: it is quarantined, and told as event `quarantined` (or `untagged_delete`). Else: what was refused. */
  readonly about: 'item' | 'write' | 'pairing' | 'recovery' | 'input';
  readonly meaning: string;
  readonly whatToDo: string;
}

const OTHER_DEVICE =
  'Look at the item on the device that wrote it and save it there again. If nobody of yours wrote it, delete it.';
const SUSPECT_SERVER =
  'Compare with another device. The last good state is kept: save it again, and ask whoever runs the server why.';
const START_AGAIN = 'Start the pairing again with new words. If it happens twice, do not trust this network or server.';

/** All reasons. The type makes it complete: a reason without a sentence does not compile. */
export const REASONS: Readonly<Record<HiddenReason, Reason>> = {
  no_sig: {
    about: 'item',
    meaning: 'The item bears no authentication tag, so nobody can tell who wrote it or whether it was altered.',
    whatToDo: 'Save it again with a client that signs its items, or delete it.',
  },
  bad_sig: {
    about: 'item',
    meaning: 'The authentication tag does not fit: the item was altered, relabelled, or not written by your devices.',
    whatToDo: SUSPECT_SERVER,
  },
  no_key: {
    about: 'item',
    meaning: 'The item holds no key that this device can open.',
    whatToDo: 'Open another of your devices and leave it connected: it adds the missing key within some minutes.',
  },
  bad_ct: {
    about: 'item',
    meaning: 'The content does not decrypt with the keys that the item holds.',
    whatToDo: OTHER_DEVICE,
  },
  bad_payload: {
    about: 'item',
    meaning: 'The content decrypts, but is not of the form that items have.',
    whatToDo: OTHER_DEVICE,
  },
  bad_row: {
    about: 'item',
    meaning: 'The server sent something in the place of this item that is no item.',
    whatToDo: 'Read everything again (resync). If it stays, the server is faulty: the last good state is kept here.',
  },
  rolled_back: {
    about: 'item',
    meaning: 'The server gave an older state of the item as if it were new.',
    whatToDo: SUSPECT_SERVER,
  },
  resurrected: {
    about: 'item',
    meaning: 'The server brought back an item that was deleted.',
    whatToDo: 'Delete it again if it should be gone, and ask whoever runs the server why it came back.',
  },
  untagged_delete: {
    about: 'item',
    meaning: 'The item was deleted by somebody who did not prove to be one of your devices.',
    whatToDo: 'Ask yourself whether you deleted it. If not, the last content is kept here: save it as a new item.',
  },
  uncertified_device: {
    about: 'write',
    meaning: 'The server lists a device that none of your devices has vouched for, so nothing is sealed for it.',
    whatToDo: 'If it is yours, compare its fingerprint with the one on its screen and certify it; else revoke it.',
  },
  too_large: {
    about: 'write',
    meaning: 'The content is larger than an inline item may be (64 KB of ciphertext).',
    whatToDo: 'Make it shorter, or store it as a file.',
  },
  bad_length: {
    about: 'input',
    meaning: 'A key, nonce or tag has a length that no honest program sends.',
    whatToDo: 'Try again. If it stays, the other side is faulty or hostile.',
  },
  low_order: {
    about: 'pairing',
    meaning: 'The other side sent a public key that would make the shared secret known to everybody.',
    whatToDo: START_AGAIN,
  },
  bad_words: {
    about: 'input',
    meaning: 'These words are not a phrase or a code: one is misspelt, missing, or in another place.',
    whatToDo: 'Check each word against the paper or the other screen, and type them again.',
  },
  empty_password: {
    about: 'input',
    meaning: 'The password is empty.',
    whatToDo: 'Give the account password.',
  },
  wrong_host: {
    about: 'pairing',
    meaning: 'The new device dialled another server address than this device did.',
    whatToDo: 'Use the same server address on both devices, and start the pairing again.',
  },
  known_device: {
    about: 'pairing',
    meaning: 'The device that asks to join has the id of a device that is here already.',
    whatToDo: START_AGAIN,
  },
  wrong_device: {
    about: 'pairing',
    meaning: 'The server answered for another device than this one.',
    whatToDo: START_AGAIN,
  },
  bad_attestation: {
    about: 'pairing',
    meaning: 'The device that asks to join does not know the words, or a key was swapped on the way.',
    whatToDo: START_AGAIN,
  },
  bad_confirmation: {
    about: 'pairing',
    meaning: 'The answer does not come from the device that shows the words.',
    whatToDo: START_AGAIN,
  },
  bad_cert: {
    about: 'pairing',
    meaning: 'The certificate for this device does not fit the master key that came with it.',
    whatToDo: START_AGAIN,
  },
  bad_wrap: {
    about: 'pairing',
    meaning: 'The master key that arrived was not sealed for this device.',
    whatToDo: START_AGAIN,
  },
  bad_challenge: {
    about: 'recovery',
    meaning: 'The server asked this device to open something that is not a challenge. Nothing was answered.',
    whatToDo: 'Do not go on with this server until whoever runs it has explained it.',
  },
};

/** The reason's sentences; undefined for a text that is no reason. */
export const reasonOf = (reason: string): Reason | undefined =>
  Object.hasOwn(REASONS, reason) ? REASONS[reason as HiddenReason] : undefined;
