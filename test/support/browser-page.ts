/** The page of the browser tests: a device of the client library, worked from outside. Bundled for the browser. */
import {
  browserPlatform,
  Device,
  openBrowserStore,
  Identity,
  prepareClaim,
  type IdentityJson,
  type OpenedBrowserStore,
} from '../../src/sdk/browser.js';

let opened: { device: Device; store: OpenedBrowserStore } | undefined;
const problems: string[] = [];

function current(): { device: Device; store: OpenedBrowserStore } {
  if (opened === undefined) throw new Error('no device is open');
  return opened;
}

/** Told as data: what an error is does not cross from the page to the test. */
async function outcome<T>(work: () => Promise<T>): Promise<T | { readonly error: string; readonly code: unknown }> {
  try {
    return await work();
  } catch (error) {
    const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : null;
    return { error: error instanceof Error ? `${error.name}: ${error.message}` : String(error), code };
  }
}

const page = {
  problems,
  claim: (serverUrl: string) =>
    outcome(async () => {
      const platform = await browserPlatform();
      const claim = await prepareClaim({ platform, serverUrl, name: 'Browser', glyph: 'laptop' });
      const identity = await claim.register();
      return { identity: identity.toJSON(), words: claim.phrase.split(' ').length };
    }),
  /** An identity crosses to the test and back as it is saved. */
  open: (plain: IdentityJson) =>
    outcome(async () => {
      const identity = Identity.parse(plain);
      const store = await openBrowserStore(identity.deviceId, identity);
      const device = await Device.open({
        platform: await browserPlatform(),
        identity,
        store: store.store,
        onProblem: (error) => problems.push(error.message),
      });
      opened = { device, store };
      return { repair: store.repair, held: await store.store.held(), cursor: await store.store.cursor() };
    }),
  connect: () => outcome(() => current().device.connect()),
  put: (text: string) => outcome(() => current().device.put({ binId: 'inbox', type: 'text', payload: { text } })),
  list: () =>
    outcome(async () =>
      (await current().device.list()).map(({ payload, pending }) => ({ text: payload?.['text'], pending })),
    ),
  held: () => outcome(() => current().store.store.held()),
  close: () =>
    outcome(async () => {
      current().device.close();
      await current().store.store.close();
      opened = undefined;
    }),
};

/** What the tests call. */
export type Page = typeof page;

Object.assign(globalThis, { page });

/** The same in a dedicated worker, for a page that starts this script as one. */
if (typeof document === 'undefined') {
  self.onmessage = ({ data }: MessageEvent<{ readonly name: Exclude<keyof Page, 'problems'>; args: never[] }>) => {
    const work = page[data.name] as (...args: never[]) => Promise<unknown>;
    work(...data.args).then(
      (value) => self.postMessage({ value }),
      (error: unknown) => self.postMessage({ value: String(error) }),
    );
  };
}
