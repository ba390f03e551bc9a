/** The engine as the link offers it: each call, topic and stream of `link/messages.ts`. */
import { isListed } from '../../crypto/words.js';
import { isDisplayName } from '../../protocol/ids.js';
import type { Device } from '../../sdk/device.js';
import type { BinLabel } from '../../sdk/events.js';
import type { Served } from '../link/host.js';
import type { Failure, ListPage, ListParams, Phase } from '../link/messages.js';
import { newItemId } from '../random.js';
import { Cell } from './cell.js';
import { archiveOf, importArchive } from './archive.js';
import type { Engine } from './engine.js';
import { copyOf } from './rows.js';
import type { Session } from './session.js';
import type { SharedInbox } from './shared-inbox.js';

/** Watches a value of the open device, and of each device opened later; pushes `none` while none is open. */
function ofSession<T>(engine: Engine, none: T, push: (value: T) => void, watch: (session: Session) => () => void) {
  let stop: () => void = () => undefined;
  const end = engine.session.watch(null, (session) => {
    stop();
    stop = () => undefined;
    if (session === null) push(none);
    else stop = watch(session);
  });
  return () => {
    end();
    stop();
  };
}

const topicsOf = (engine: Engine, shared: SharedInbox): Served['topics'] => {
  const cell =
    <T>(none: T, pick: (session: Session) => Cell<T>) =>
    (_: null, push: (value: T) => void): (() => void) =>
      ofSession(engine, none, push, (session) => pick(session).watch(null, push));
  return {
    phase: engine.phase.watch,
    info: cell(null, (session) => session.info),
    bins: cell([], (session) => session.bins),
    devices: cell([], (session) => session.devices),
    list: (params, push) => {
      expectPage(params);
      const none: ListPage = { items: [], offset: params.offset, total: 0 };
      return ofSession(engine, none, push, (session) => session.list(params, push));
    },
    item: (params, push) => {
      // Checked now: once a session opens, the error would make the unlocking fail.
      if (typeof (params as typeof params | null)?.id !== 'string')
        throw new RangeError('an item is watched by its id');
      return ofSession(engine, null, push, (session) => session.item(params.id, push));
    },
    uploads: cell([], (session) => session.uploads.list),
    importing: cell(null, (session) => session.imports.progress),
    notices: cell([], (session) => session.notices.list),
    enrolment: engine.enrolment.step.watch,
    offer: engine.offers.step.watch,
    shared: shared.waiting.watch,
  };
};

/** What needs an open device: items, bins, devices, the account. */
const deviceCalls = (engine: Engine) =>
  ({
    put: (params) => engine.current.put(params),
    move: ({ id, binId }) => engine.current.move(id, binId),
    remove: (id) => engine.current.removals.add(id),
    undoRemove: (id) => engine.current.removals.cancel(id),
    copyText: async (id) => {
      const view = await engine.device.get(id);
      if (view === undefined) return '';
      const payload = view.blob?.holds === 'payload' ? await engine.device.payload(id) : view.payload;
      return copyOf({ type: view.type, payload }) ?? '';
    },
    wholePayload: async (id) => (await engine.device.payload(id)) ?? {},
    contentSize: (id) => engine.device.blobSize(id),
    upload: ({ binId, files }) => engine.current.uploads.add(files.map((file) => ({ id: newItemId(), binId, file }))),
    uploadCancel: (id) => engine.current.uploads.cancel(id),
    uploadRetry: (id) => void engine.current.uploads.retry(id),
    hidden: () => engine.device.hidden(),
    binCreate: async ({ name, emoji }) => {
      const id = newItemId();
      await withBins(engine, (bins) => bins.create(id, labelOf(name, emoji)));
      return { id };
    },
    binRename: ({ id, name, emoji }) => withBins(engine, (bins) => bins.rename(id, labelOf(name, emoji))),
    binRemove: (id) => withBins(engine, (bins) => bins.remove(id)),
    offer: (_, departed) => engine.offers.begin(engine.device, engine.serverUrl, departed),
    offerAnswer: (answer) => engine.offers.answer(answer),
    offerCancel: () => engine.offers.cancel(),
    devicesRefresh: async () => void (await engine.device.devices.refresh()),
    deviceRename: ({ id, name }) => engine.device.devices.rename(id, name),
    deviceRevoke: (id) => engine.device.revoke(id),
    deviceCertify: ({ id, fingerprint }) => engine.device.devices.certify(id, fingerprint),
    passwordExists: () => engine.device.passwordExists(),
    passwordSet: ({ password, current }) => engine.device.setPassword(password, current),
    passwordRemove: (current) => engine.device.removePassword(current),
    storage: async () => (await engine.device.me()).server,
    importArchive: (params) => importArchive(engine.platform, engine.current, params),
    foreignRead: (params, departed) => engine.foreign.read(engine.platform, engine.current, params, departed),
    foreignImport: (id) => engine.foreign.run(engine.platform, engine.current, id),
    foreignDrop: (id) => engine.foreign.drop(id),
    importStop: () => engine.current.imports.stop(),
    orphans: (how) => engine.current.orphans(how),
    resync: () => engine.device.resync(),
    dismiss: (id) => engine.current.notices.dismiss(id),
    resend: ({ noticeId, how }) => engine.current.notices.resend(noticeId, how),
    reconnect: () => engine.device.reconnect(),
  }) satisfies Partial<Served['calls']>;

/** What changes the state of this browser. */
const browserCalls = (engine: Engine, shared: SharedInbox) =>
  ({
    claim: ({ name, claimToken }) => engine.enrolment.claim(expectName(name), claimToken),
    join: ({ name, words }) => engine.enrolment.join(expectName(name), words),
    recover: ({ name, phrase }) => engine.enrolment.recover(expectName(name), phrase),
    misspelt: (words) => words.filter((word) => !isListed(word)),
    enrolPassword: (password) => engine.enrolment.password(password),
    enrolRetry: () => engine.enrolment.retry(),
    enrolCancel: () => engine.enrolment.cancel(),
    askClaimed: () => engine.askClaimed(),
    lockSet: (lock) => engine.setLock(lock),
    lockAfter: (minutes) => engine.setLockAfter(minutes),
    lock: () => engine.lock(),
    unlock: (opener) => engine.unlock(opener),
    touched: () => engine.touched(),
    sharedTake: ({ ids, how }) => shared.take(ids, how),
    retry: () => engine.start(),
    signOut: () => engine.signOut().then(() => shared.clear()),
    forget: () => engine.forget().then(() => shared.clear()),
  }) satisfies Partial<Served['calls']>;

const labelOf = (name: string, emoji: string): BinLabel => (emoji === '' ? { name } : { name, emoji });

/** Changes the bins, and shows them as the server has them then. */
async function withBins(engine: Engine, change: (bins: Device['bins']) => Promise<unknown>): Promise<void> {
  const { bins } = engine.device;
  await change(bins);
  await bins.refresh('changed');
}

/** Everything that clients may request from the engine. */
export function servedBy(engine: Engine, shared: SharedInbox): Served {
  return {
    settled: () => engine.settled,
    topics: topicsOf(engine, shared),
    calls: { ...deviceCalls(engine), ...browserCalls(engine, shared) },
    streams: {
      content: ({ id, from }, signal) => engine.device.blob(id, { from, signal }),
      archive: ({ phrase }, signal) => archiveOf(engine.platform.sodium, engine.current, { phrase, signal }),
    },
  };
}

/** An engine that cannot start: `phase` reports `problem`, calls and streams fail with it, other topics are silent. */
export function brokenBy(problem: Failure): Served {
  const failing = (): never => {
    throw Object.assign(new Error(problem.message), problem);
  };
  const { calls, streams } = new Proxy({} as Served, { get: () => new Proxy({}, { get: () => failing }) });
  const phase = new Cell<Phase>({ phase: 'failed', problem });
  const silent = (): (() => void) => () => undefined;
  const topics = new Proxy({} as Served['topics'], {
    get: (_, name) => (name === 'phase' ? phase.watch : silent),
  });
  return { settled: () => Promise.resolve(), calls, topics, streams };
}

function expectPage(params: ListParams | null): void {
  if (typeof params !== 'object' || !Number.isSafeInteger(params?.offset) || !Number.isSafeInteger(params?.limit))
    throw new RangeError('a list is watched from an offset, up to a limit');
}

function expectName(name: string): string {
  if (!isDisplayName(name)) throw new RangeError('a device name has 1 to 64 characters, something to see among them');
  return name;
}
