/**
 * The entry of the client library for Node: `@service/client`. What is not exported here may change at any
 * time.
 */
import type { browserPlatform as BrowserPlatform } from './browser-platform.js';
import { unavailable } from './platform.js';
import type { openBrowserStore as OpenBrowserStore } from './store/browser-store.js';

export * from './exports.js';
export { nodePlatform } from './node-platform.js';
export { saveBlob, type SaveOptions } from './node-download.js';
export { openNodeStore } from './store/node-store.js';
export type { OpenedBrowserStore } from './store/browser-store.js';
/** Throws `ClientError` `wrong_platform`. */
export const browserPlatform: typeof BrowserPlatform = unavailable('browserPlatform', 'browsers', 'nodePlatform');
/** Throws `ClientError` `wrong_platform`. */
export const openBrowserStore: typeof OpenBrowserStore = unavailable('openBrowserStore', 'browsers', 'openNodeStore');
