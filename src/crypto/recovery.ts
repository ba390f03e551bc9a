/** Recovery when all devices are lost: a signature by the key that is derived from the phrase (CRYPTO-24). */
import { lengthPrefixed } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { PUBLIC_KEY_BYTES, type KeyPair, type Sodium } from './sodium.js';

const CONTEXT = `${SERVICE_NAME}-recover-v1`;

/** The signed fields. `host`: the host that the client dialled, in the form of `hostOf`. */
interface RecoveryClaim {
  readonly host: string;
  readonly tenantId: string;
  readonly challengeId: string;
  readonly challenge: Uint8Array;
  readonly deviceId: string;
  readonly publicKey: Uint8Array;
  readonly deviceCert: Uint8Array;
}

function signed(claim: RecoveryClaim): Uint8Array {
  const { host, tenantId, challengeId, challenge, deviceId, publicKey, deviceCert } = claim;
  return lengthPrefixed(CONTEXT, host, tenantId, challengeId, challenge, deviceId, publicKey, deviceCert);
}

/** Client: the Ed25519 signature over a recovery, 64 bytes. */
export const signRecovery = (sodium: Sodium, recovery: KeyPair, claim: RecoveryClaim): Uint8Array =>
  sodium.sign(signed(claim), recovery.secretKey);

/** Server: true if the signature is by `recoveryPubkey` over exactly this claim; false for malformed parts. */
export function verifyRecovery(
  sodium: Sodium,
  claim: RecoveryClaim,
  proof: { readonly signature: Uint8Array; readonly recoveryPubkey: Uint8Array },
): boolean {
  return (
    proof.recoveryPubkey.length === PUBLIC_KEY_BYTES &&
    sodium.signVerify(proof.signature, signed(claim), proof.recoveryPubkey)
  );
}
