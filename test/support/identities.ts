/** Identities as text, for the processes of tests. */
import type { Identity } from '../../src/sdk/identity.js';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
const unhex = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'hex'));

export const textOfIdentity = ({ keys, masterKey, ...rest }: Identity): string =>
  JSON.stringify({
    ...rest,
    publicKey: hex(keys.publicKey),
    secretKey: hex(keys.secretKey),
    masterKey: hex(masterKey),
  });

type Plain = Omit<Identity, 'keys' | 'masterKey'> & Record<'publicKey' | 'secretKey' | 'masterKey', string>;

export function identityOfText(text: string): Identity {
  const { publicKey, secretKey, masterKey, ...rest } = JSON.parse(text) as Plain;
  return { ...rest, keys: { publicKey: unhex(publicKey), secretKey: unhex(secretKey) }, masterKey: unhex(masterKey) };
}
