/**
 * The engine: a worker of the tab that leads. It holds the only open device of this browser, and with it the socket,
 * the store and all cryptography; the pages show what it publishes (`link/messages.ts`).
 */
import { browserPlatform } from '../../sdk/browser-platform.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import { problemOf, serve } from '../link/host.js';
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
  // No WebAssembly, or no storage: every tab gets the reason.
  serve(brokenBy(problemOf(error)));
}
