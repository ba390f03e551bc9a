/** Everything of a browser that a client touches. */
import { loadBrowserSodium } from '../crypto/sodium-browser.js';
import { systemClock } from '../protocol/clock.js';
import { browserSockets } from './browser-socket.js';
import type { Platform } from './platform.js';

/**
 * What a device in a browser runs on: libsodium as WebAssembly, `fetch`, WebSockets, the system's clock. The page's
 * policy must allow `script-src 'wasm-unsafe-eval'`, and the server this page's origin (`CORS_ORIGINS`) where it is
 * another one. Rejects where WebAssembly cannot be loaded.
 */
export const browserPlatform = async (): Promise<Platform> => ({
  sodium: await loadBrowserSodium(),
  // Called as a method of anything but the window, it throws.
  fetch: (url, init) => globalThis.fetch(url, init),
  sockets: browserSockets,
  clock: systemClock,
  random: Math.random,
});
