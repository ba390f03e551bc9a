/** Argon2 in WebAssembly, with any number of lanes, which libsodium's has not. Loaded only where a file needs it. */
import { argon2d, argon2id, type IArgon2Options } from 'hash-wasm';

/** The hash of a password. Rejects where there is too little memory. */
export async function argon2(kind: 'd' | 'id', options: IArgon2Options): Promise<Uint8Array<ArrayBuffer>> {
  const hash = kind === 'd' ? argon2d : argon2id;
  return new Uint8Array(await hash({ ...options, outputType: 'binary' }));
}
