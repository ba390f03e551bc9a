/** The client library for Node, as the package gives it: `@service/server/client`. What is not named here may change at any time. */
export * from './exports.js';
export { nodePlatform } from './node-platform.js';
export { openNodeStore } from './store/node-store.js';
