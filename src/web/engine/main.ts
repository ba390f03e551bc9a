/**
 * The engine: a worker of the tab that leads. It holds the only open device of this browser, and with it the socket,
 * the store and all cryptography; the pages show what it publishes (`link/messages.ts`).
 */
import { browserPlatform } from '../../sdk/browser-platform.js';
import { storeErrorOf } from '../../sdk/store/error.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import { serve } from '../link/host.js';
import { failureOf } from '../link/messages.js';
import { Engine } from './engine.js';
import { KeyValue } from './key-value.js';
import { brokenBy, servedBy } from './served.js';
import { Shared } from './shared.js';
import { SharedInbox } from './shared-inbox.js';

try {
  const [platform, records] = await Promise.all([browserPlatform(), KeyValue.open(`${SERVICE_NAME}-web`)]);
  const engine = new Engine(platform, records, self.location.origin);
  const started = engine.start();
  serve(servedBy(engine, new SharedInbox(engine, await Shared.open())));
  await started;
} catch (error) {
  // No WebAssembly, or no storage: every tab gets the reason, of IndexedDB as of the device's store.
  serve(brokenBy(failureOf(error instanceof DOMException ? storeErrorOf(error) : error)));
}
