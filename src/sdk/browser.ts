/**
 * The entry of the client library for browsers: `@service/client`. What is not exported here may change at any
 * time.
 */
import type { saveBlob as SaveBlob } from './node-download.js';
import type { nodePlatform as NodePlatform } from './node-platform.js';
import { unavailable } from './platform.js';
import type { openNodeStore as OpenNodeStore } from './store/node-store.js';

export * from './exports.js';
export { browserPlatform } from './browser-platform.js';
export type { SaveOptions } from './node-download.js';
export { openBrowserStore, type OpenedBrowserStore } from './store/browser-store.js';
/** Throws `ClientError` `wrong_platform`. */
export const nodePlatform: typeof NodePlatform = unavailable('nodePlatform', 'Node', 'browserPlatform');
/** Throws `ClientError` `wrong_platform`. */
export const saveBlob: typeof SaveBlob = unavailable('saveBlob', 'Node', 'Device.blob');
/** Throws `ClientError` `wrong_platform`. */
export const openNodeStore: typeof OpenNodeStore = unavailable('openNodeStore', 'Node', 'openBrowserStore');
