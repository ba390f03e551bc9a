/** What the web app's engine keeps, without a browser. */
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { SavableIdentity } from '../../src/sdk/identity.js';

/** The records of a browser: structured clones, as IndexedDB keeps them. */
export class Records {
  readonly kept = new Map<string, unknown>();

  get(key: string): Promise<unknown> {
    return Promise.resolve(this.kept.get(key));
  }

  all(prefix: string): Promise<(readonly [string, unknown])[]> {
    return Promise.resolve([...this.kept].filter(([key]) => key.startsWith(prefix)).sort());
  }

  put(key: string, value: unknown): Promise<void> {
    // Node's `File` cannot be cloned; a browser keeps it as it is.
    this.kept.set(key, key.startsWith('upload:') ? value : structuredClone(value));
    return Promise.resolve();
  }

  async putAll(entries: readonly (readonly [key: string, value: unknown])[]): Promise<void> {
    for (const [key, value] of entries) await this.put(key, value);
  }

  remove(...keys: readonly string[]): Promise<void> {
    for (const key of keys) this.kept.delete(key);
    return Promise.resolve();
  }
}

/** A browser's device. */
export const identity = SavableIdentity.of({
  serverUrl: 'https://sync.example.org',
  tenantId: '01M82XKTMM8ZRB262RR1ZKK7GF',
  deviceId: '01M82XM7NJJEYS048S5KHZXEF1',
  name: 'Browser',
  glyph: 'globe',
  keys: nodeSodium.boxKeyPair(),
  masterKey: nodeSodium.random(32),
  token: { text: 'token-of-the-browser', expiresAt: null },
});
