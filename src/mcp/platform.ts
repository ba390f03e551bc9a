/** Everything of the outside that the companion's client touches. */
import { withCertificateErrors } from '../sdk/node-certificate.js';
import type { Platform, SocketPort } from '../sdk/platform.js';
import { loadBrowserSodium } from '../crypto/sodium-browser.js';
import { systemClock } from '../protocol/clock.js';

/** The companion polls and holds no socket (MCP-70). Whoever opens one is told that it closed. */
const noSockets: SocketPort = {
  open: (_url, events) => {
    queueMicrotask(() => events.closed(1000, 'the companion holds no socket'));
    return { send: () => undefined, close: () => undefined };
  },
};

/**
 * libsodium as WebAssembly, so that the package installs on any system without a native module; `fetch`; the system's
 * clock. Rejects where WebAssembly cannot be loaded.
 */
export const mcpPlatform = async (): Promise<Platform> => ({
  sodium: await loadBrowserSodium(),
  fetch: withCertificateErrors((url, init) => fetch(url, init)),
  sockets: noSockets,
  clock: systemClock,
  random: Math.random,
});
