/** Argon2 in WebAssembly, with any number of lanes, which libsodium's has not. Loaded only where a file needs it. */
import { argon2d, argon2id } from 'hash-wasm';

interface Cost {
  readonly iterations: number;
  readonly parallelism: number;
  /** KiB. */
  readonly memorySize: number;
  /** Bytes. */
  readonly hashLength: number;
}

/** The hash of a password. Rejects where there is too little memory. */
export async function argon2(
  kind: 'd' | 'id',
  password: string | Uint8Array,
  salt: Uint8Array,
  cost: Cost,
): Promise<Uint8Array<ArrayBuffer>> {
  const hash = kind === 'd' ? argon2d : argon2id;
  return new Uint8Array(await hash({ password, salt, ...cost, outputType: 'binary' }));
}
