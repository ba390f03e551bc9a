/** The client library for browsers, as the package gives it: `@service/server/client`. What is not named here may change at any time. */
export * from './exports.js';
export { browserPlatform } from './browser-platform.js';
export { openBrowserStore, type OpenedBrowserStore } from './store/browser-store.js';
