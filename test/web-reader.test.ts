/** The engine's side of reading another program's export, without a browser: what the reader answers, and what is here. */
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { accountOf } from '../src/import/account.js';
import { ClientError } from '../src/sdk/errors.js';
import type { ItemView } from '../src/sdk/events.js';
import type { Platform } from '../src/sdk/platform.js';
import { ForeignImports } from '../src/web/engine/foreign.js';
import type { Session } from '../src/web/engine/session.js';
import type { ReaderAnswer } from '../src/web/reader/messages.js';
import { TestClock } from './support/clock.js';
import { soon } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';

/** In the place of the browser's worker. */
abstract class Reader {
  onmessage: (event: { readonly data: ReaderAnswer }) => void = () => undefined;
  onmessageerror: () => void = () => undefined;
  terminate(): void {
    this.onmessage = () => undefined;
  }
  abstract postMessage(): void;
}

/** Reads a file by a worker that answers so. */
function withReader(t: WithTeardown, answer: (reader: Reader) => void) {
  class Answering extends Reader {
    postMessage(): void {
      queueMicrotask(() => answer(this));
    }
  }
  const globals = { Worker: Answering, __READER__: '/web/reader.js', location: new URL('https://sync.example.org/') };
  for (const [name, value] of Object.entries(globals)) {
    const before = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true });
    t.teardown(() =>
      before === undefined ? Reflect.deleteProperty(globalThis, name) : Object.defineProperty(globalThis, name, before),
    );
  }
  const imports = new ForeignImports();
  const identity = { masterKey: nodeSodium.random(32) };
  const request = { id: 'one', file: new File(['x'], 'a.csv'), password: null, keyFile: null };
  const platform = { sodium: nodeSodium, clock: new TestClock() } as unknown as Platform;
  return {
    imports,
    read: (get: (id: string) => Promise<ItemView | undefined>) =>
      imports.read(
        platform,
        { device: { get }, identity } as unknown as Session,
        request,
        new AbortController().signal,
      ),
  };
}

t.test('WEB-103: an answer of the reader that cannot be taken over ends the reading', async (t) => {
  const { read } = withReader(t, (reader) => reader.onmessageerror());
  const reading = read(() => Promise.resolve(undefined));
  await t.rejects(soon(reading, 'the reading to end', 5_000), { code: 'reader_failed' });
});

/** The answer of a reader that has read this many notes. */
function notesRead(count: number): ReaderAnswer {
  const entries = Array.from({ length: count }, (_, at) => ({
    ...{ where: `line ${at}`, kind: 'password', name: 'n', folder: '', key: String(at), unplaced: [], marks: [] },
    made: [{ part: 'note', type: 'text' as const, payload: { text: 'x' }, content: null }],
  }));
  const source = { program: 'chrome', title: 'Chrome CSV' } as const;
  return { kind: 'read', source, entries, account: accountOf({ ...source, entries: [] }) };
}

t.test('WEB-102: an item that no longer opens is here already, and no bar to the rest', async (t) => {
  const data = notesRead(3);
  const { read } = withReader(t, (reader) => reader.onmessage({ data }));
  let asked = 0;
  const get = (id: string): Promise<undefined> =>
    asked++ === 1 ? Promise.reject(new ClientError('damaged_item', id)) : Promise.resolve(undefined);
  t.match(await read(get), { step: 'read', here: 1 });
  await t.rejects(
    read(() => Promise.reject(new ClientError('closed', 'closed'))),
    { code: 'closed' },
  );
});

t.test('WEB-103: what was dropped looks for no further item', async (t) => {
  const data = notesRead(3);
  const { imports, read } = withReader(t, (reader) => reader.onmessage({ data }));
  let asked = 0;
  const get = (): Promise<undefined> => {
    asked++;
    imports.drop('one');
    return Promise.resolve(undefined);
  };
  await t.rejects(read(get), { code: 'gone' });
  t.equal(asked, 1);
});
