/** The phrase, and the keys derived from it: the master key and the recovery key. */
import { mnemonicToSeed } from '@scure/bip39';
import { text } from '../protocol/bytes.js';
import { KEY_BYTES, PHRASE_WORDS, SERVICE_NAME } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { b32, erasing, expectLength, stretch, type KeyPair, type Sodium } from './sodium.js';
import { decodeWords, drawWords } from './words.js';

const PHRASE_BYTES = 16;
const MASTER_SALT = text(`${SERVICE_NAME}/v1/master-salt`);
const RECOVERY_SALT = text(`${SERVICE_NAME}/v1/recovery-salt`);
const MAC_CONTEXT = text(`${SERVICE_NAME}-item-mac-v1`);

/** A new phrase: 12 BIP39 words of 16 random bytes. Shown once and not stored. */
export const drawPhrase = (sodium: Sodium): string => drawWords(sodium, PHRASE_BYTES);

/** The BIP39 seed (64 bytes, no passphrase) of a phrase as typed. Rejects with `bad_words`. */
export async function phraseSeed(sodium: Sodium, phrase: string): Promise<Uint8Array> {
  const words = decodeWords(sodium, phrase, PHRASE_WORDS);
  sodium.memzero(words.bytes);
  return mnemonicToSeed(words.text);
}

/** The master key of a BIP39 seed, 32 bytes. */
export function masterKeyOfSeed(sodium: Sodium, seed: Uint8Array): Promise<Uint8Array> {
  return stretch(sodium, { length: KEY_BYTES, password: seed, saltInput: MASTER_SALT });
}

/**
 * The recovery key of a BIP39 seed: an Ed25519 pair. Derived from the phrase and not from the master key, so that a
 * revoked device, which still knows the master key, cannot recover itself.
 */
async function recoveryKeyOfSeed(sodium: Sodium, seed: Uint8Array): Promise<KeyPair> {
  const signSeed = await stretch(sodium, { length: KEY_BYTES, password: seed, saltInput: RECOVERY_SALT });
  return erasing(sodium, signSeed, (own) => sodium.signKeyPair(own));
}

/** Both keys of a phrase as typed; erases the seed. Rejects with `bad_words`. */
export async function keysOfPhrase(
  sodium: Sodium,
  phrase: string,
): Promise<{ masterKey: Uint8Array; recovery: KeyPair }> {
  const seed = await phraseSeed(sodium, phrase);
  try {
    const masterKey = await masterKeyOfSeed(sodium, seed);
    return { masterKey, recovery: await recoveryKeyOfSeed(sodium, seed) };
  } finally {
    sodium.memzero(seed);
  }
}

/** The item MAC key: B32(master, key = "service-item-mac-v1"). The master key is the message here (CRYPTO-06). */
export function itemMacKey(sodium: Sodium, masterKey: Uint8Array): Uint8Array {
  expectLength('master key', masterKey, KEY_BYTES);
  return b32(sodium, masterKey, MAC_CONTEXT);
}

/** wrappedMasterKey: the master key sealed to a device, 80 bytes. */
export function wrapMasterKey(sodium: Sodium, masterKey: Uint8Array, publicKey: Uint8Array): Uint8Array {
  expectLength('master key', masterKey, KEY_BYTES);
  return sodium.seal(masterKey, publicKey);
}

/** Opens a wrappedMasterKey with the device's key pair. Throws `bad_wrap`. */
export function unwrapMasterKey(sodium: Sodium, wrapped: Uint8Array, keys: KeyPair): Uint8Array {
  const masterKey = sodium.sealOpen(wrapped, keys);
  if (masterKey === undefined || masterKey.length !== KEY_BYTES)
    throw new CryptoRefusal('bad_wrap', 'the wrapped master key does not open with this device');
  return masterKey;
}
