/**
 * Every reason for which this library refuses or hides something, with its meaning and advice. The command line and the
 * reference show these texts; programs match on the reason.
 */
import type { QuarantineReason } from './store/store.js';

/** Why a stored item is not shown. */
export type HiddenReason =
  | QuarantineReason
  /** The delete has no tag of the master key. */
  | 'untagged_delete';

/** The texts of a reason. */
export interface Reason {
  /**
   * `item`: the item is quarantined and reported as event `quarantined` (or `untagged_delete`). Otherwise the kind of
   * operation that was refused.
   */
  readonly about: 'item' | 'write' | 'pairing' | 'recovery' | 'input';
  readonly meaning: string;
  readonly whatToDo: string;
}

const OTHER_DEVICE =
  'Look at the item on the device that wrote it and save it there again. If nobody of yours wrote it, delete it.';
const SUSPECT_SERVER =
  'Compare with another device. The last good state is kept: save it again, and ask the operator of the server why.';
const START_AGAIN = 'Start the pairing again with new words. If it happens twice, do not trust this network or server.';

const reason =
  (about: Reason['about']) =>
  (meaning: string, whatToDo: string): Reason => ({ about, meaning, whatToDo });
const [item, write, input] = [reason('item'), reason('write'), reason('input')];
const [pairing, recovery] = [reason('pairing'), reason('recovery')];

/** All reasons. The type enforces completeness: a missing reason does not compile. */
export const REASONS: Readonly<Record<HiddenReason, Reason>> = {
  no_sig: item(
    'The item bears no authentication tag, so nobody can tell who wrote it or whether it was altered.',
    'Save it again with a client that signs its items, or delete it.',
  ),
  bad_sig: item(
    'The authentication tag does not fit: the item was altered, relabelled, or not written by your devices.',
    SUSPECT_SERVER,
  ),
  no_key: item(
    'The item holds no key that this device can open.',
    'Open another of your devices and leave it connected: it adds the missing key within some minutes.',
  ),
  bad_ct: item('The content does not decrypt with the keys that the item holds.', OTHER_DEVICE),
  bad_payload: item('The content decrypts, but is not of the form that items have.', OTHER_DEVICE),
  bad_row: item(
    'The server sent something in the place of this item that is no item.',
    'Read everything again (resync). If it stays, the server is faulty: the last good state is kept here.',
  ),
  rolled_back: item('The server gave an older state of the item as if it were new.', SUSPECT_SERVER),
  resurrected: item(
    'The server brought back an item that was deleted.',
    'Delete it again if it should be gone, and ask the operator of the server why it came back.',
  ),
  untagged_delete: item(
    'The item was deleted by somebody who did not prove to be one of your devices.',
    'Ask yourself whether you deleted it. If not, the last content is kept here: save it as a new item.',
  ),
  uncertified_device: write(
    'The server lists a device that none of your devices has vouched for, so nothing is sealed for it.',
    'If it is yours, compare its fingerprint with the one on its screen and certify it; else revoke it.',
  ),
  too_large: write(
    'The content is larger than an inline item may be (64 KB of ciphertext).',
    'Make it shorter, or store it as a file.',
  ),
  bad_length: input(
    'A key, nonce or tag has a length that no honest program sends.',
    'Try again. If it stays, the other side is faulty or hostile.',
  ),
  low_order: pairing(
    'The other side sent a public key that would make the shared secret known to everybody.',
    START_AGAIN,
  ),
  bad_words: input(
    'These words are not a phrase or a code: one is misspelt, missing, or in another place.',
    'Check each word against the paper or the other screen, and type them again.',
  ),
  empty_password: input('The password is empty.', 'Give the account password.'),
  wrong_host: pairing(
    'The new device dialled another server address than this device did.',
    'Use the same server address on both devices, and start the pairing again.',
  ),
  known_device: pairing('The device that asks to join has the id of a device that is here already.', START_AGAIN),
  wrong_device: pairing('The server answered for another device than this one.', START_AGAIN),
  bad_attestation: pairing(
    'The device that asks to join does not know the words, or a key was swapped on the way.',
    START_AGAIN,
  ),
  bad_confirmation: pairing('The answer does not come from the device that shows the words.', START_AGAIN),
  bad_cert: pairing('The certificate for this device does not fit the master key that came with it.', START_AGAIN),
  bad_wrap: pairing('The master key that arrived was not sealed for this device.', START_AGAIN),
  bad_challenge: recovery(
    'The server asked this device to open something that is not a challenge. Nothing was answered.',
    'Do not go on with this server until its operator has explained it.',
  ),
};

/** The texts of a reason; undefined for an unknown one. */
export const reasonOf = (reason: string): Reason | undefined =>
  Object.hasOwn(REASONS, reason) ? REASONS[reason as HiddenReason] : undefined;
