/** The engine as the link offers it: each call, topic and stream of `link/messages.ts`. */
import { isDisplayName } from '../../protocol/ids.js';
import type { Device } from '../../sdk/device.js';
import type { Served } from '../link/host.js';
import type { Failure, ItemDetail, ListPage, ListParams, Phase, SharedWaiting } from '../link/messages.js';
import { Cell } from './cell.js';
import { archiveOf, importArchive } from './archive.js';
import type { Engine } from './engine.js';
import { copyOf } from './rows.js';
import type { Session } from './session.js';

/** Watches a value of the open device, of each one in turn; `none` while there is none. */
function ofSession<P, T>(
  engine: Engine,
  none: T,
  watch: (session: Session, params: P, push: (value: T) => void) => () => void,
): (params: P, push: (value: T) => void) => () => void {
  return (params, push) => {
    let stop: () => void = () => undefined;
    const end = engine.session.watch(null, (session) => {
      stop();
      stop = () => undefined;
      if (session === null) push(none);
      else stop = watch(session, params, push);
    });
    return () => {
      end();
      stop();
    };
  };
}

const cellOf =
  <T>(pick: (session: Session) => Cell<T>) =>
  (session: Session, _: null, push: (value: T) => void): (() => void) =>
    pick(session).watch(null, push);

/** The files and texts that were shared into the app. */
export interface SharedBox {
  readonly waiting: Cell<SharedWaiting>;
  take(ids: readonly string[], how: 'put' | 'drop'): Promise<void>;
  clear(): Promise<void>;
}

const topicsOf = (engine: Engine, shared: SharedBox): Served['topics'] => {
  const cell = <T>(none: T, pick: (session: Session) => Cell<T>) => ofSession(engine, none, cellOf(pick));
  return {
    phase: engine.phase.watch,
    info: cell(null, (session) => session.info),
    bins: cell([], (session) => session.bins),
    devices: cell([], (session) => session.devices),
    list: (params, push) => {
      expectPage(params);
      const none: ListPage = { items: [], offset: params.offset, total: 0 };
      return ofSession(engine, none, (session, wanted: ListParams, tell) => session.list(wanted, tell))(params, push);
    },
    item: (params, push) => {
      // Before there is a session: later it would be the unlocking that fails.
      if (typeof (params as typeof params | null)?.id !== 'string')
        throw new RangeError('an item is watched by its id');
      return ofSession<{ readonly id: string }, ItemDetail | null>(engine, null, (session, { id }, tell) =>
        session.item(id, tell),
      )(params, push);
    },
    uploads: cell([], (session) => session.uploads.list),
    notices: cell([], (session) => session.notices.list),
    enrolment: engine.enrolment.step.watch,
    offer: engine.offers.step.watch,
    shared: shared.waiting.watch,
  };
};

const enrolCalls = (engine: Engine) => {
  return {
    claim: ({ name, claimToken }) => engine.enrolment.claim(expectName(name), claimToken),
    claimRegister: () => engine.enrolment.retry(),
    join: ({ name, words }) => engine.enrolment.join(expectName(name), words),
    recover: ({ name, phrase }) => engine.enrolment.recover(expectName(name), phrase),
    enrolPassword: (password) => engine.enrolment.password(password),
    enrolRetry: () => engine.enrolment.retry(),
    enrolCancel: () => engine.enrolment.cancel(),
    askClaimed: () => engine.askClaimed(),
  } satisfies Partial<Served['calls']>;
};

const itemCalls = (engine: Engine) => {
  const device = (): Device => engine.current.device;
  return {
    put: (params) => engine.current.put(params),
    move: ({ ids, binId }) => engine.current.move(ids, binId),
    remove: ({ ids }) => engine.current.removals.add(ids),
    keep: ({ ids }) => engine.current.removals.keep(ids),
    copyText: async (id) => {
      const view = await device().get(id);
      if (view === undefined) return '';
      const payload = view.blob?.holds === 'payload' ? await device().payload(id) : view.payload;
      return copyOf({ type: view.type, payload }) ?? '';
    },
    wholePayload: async (id) => (await device().payload(id)) ?? {},
    contentSize: (id) => device().blobSize(id),
    upload: ({ binId, files }) => engine.current.uploads.add(binId, files),
    uploadCancel: (id) => engine.current.uploads.cancel(id),
    uploadRetry: (id) => engine.current.uploads.retry(id),
    hidden: async () => (await device().hidden()).map(({ id, reason, kept }) => ({ id, reason, kept })),
  } satisfies Partial<Served['calls']>;
};

const binCalls = (engine: Engine) => {
  const device = (): Device => engine.current.device;
  return {
    binCreate: async ({ name, emoji }) => {
      const label = emoji === '' ? { name } : { name, emoji };
      const { id } = await device().bins.create(engine.current.newId(), label);
      await device().bins.refresh('changed');
      return { id };
    },
    binRename: async ({ id, name, emoji }) => {
      await device().bins.rename(id, emoji === '' ? { name } : { name, emoji });
      await device().bins.refresh('changed');
    },
    binRemove: async (id) => {
      await device().bins.remove(id);
      await device().bins.refresh('changed');
    },
  } satisfies Partial<Served['calls']>;
};

const deviceCalls = (engine: Engine) => {
  const device = (): Device => engine.current.device;
  return {
    offer: () => engine.offers.begin(device(), engine.serverUrl),
    offerAnswer: (same) => engine.offers.answer(same),
    offerCancel: () => engine.offers.cancel(),
    deviceRename: ({ id, name }) => device().roster.rename(id, name),
    deviceRevoke: (id) => device().revoke(id),
    deviceCertify: ({ id, fingerprint }) => device().roster.certify(id, fingerprint),
  } satisfies Partial<Served['calls']>;
};

const accountCalls = (engine: Engine) => {
  const device = (): Device => engine.current.device;
  return {
    passwordExists: () => device().passwordExists(),
    passwordSet: ({ password, current }) => device().setPassword(password, current),
    passwordRemove: (current) => device().removePassword(current),
    storage: async () => {
      const {
        storageUsedBytes: usedBytes,
        storageCapBytes: capBytes,
        itemCount,
        version,
      } = (await device().me()).server;
      return { usedBytes, capBytes, itemCount, serverVersion: version };
    },
    importArchive: ({ file, phrase }) => importArchive(engine.platform.sodium, engine.current, { file, phrase }),
    orphans: (how) => engine.current.orphans(how),
    resync: () => device().resync(),
    dismiss: (id) => engine.current.notices.dismiss(id),
    resend: ({ noticeId, how }) => engine.current.notices.resend(noticeId, how),
  } satisfies Partial<Served['calls']>;
};

const lockCalls = (engine: Engine) => {
  return {
    lockSet: (lock) => engine.setLock(lock),
    lockAfter: (minutes) => engine.setLockAfter(minutes),
    lock: () => engine.lock(),
    unlock: (opener) => engine.unlock(opener),
    touched: () => engine.touched(),
  } satisfies Partial<Served['calls']>;
};

const wholeCalls = (engine: Engine, shared: SharedBox) => {
  const device = (): Device => engine.current.device;
  return {
    sharedTake: ({ ids, how }) => shared.take(ids, how),
    reconnect: () => device().reconnect(),
    retry: () => engine.start(),
    signOut: async () => {
      await engine.signOut();
      await shared.clear();
    },
    forget: async () => {
      await engine.forget();
      await shared.clear();
    },
  } satisfies Partial<Served['calls']>;
};

/** Everything that clients may ask of the engine. */
export function servedBy(engine: Engine, shared: SharedBox): Served {
  return {
    settled: () => engine.settled,
    topics: topicsOf(engine, shared),
    calls: {
      ...enrolCalls(engine),
      ...itemCalls(engine),
      ...binCalls(engine),
      ...deviceCalls(engine),
      ...accountCalls(engine),
      ...lockCalls(engine),
      ...wholeCalls(engine, shared),
    },
    streams: {
      content: ({ id, from }, signal) => engine.current.device.blob(id, { from, signal }),
      archive: ({ phrase }, signal) => archiveOf(engine.platform.sodium, engine.current, { phrase, signal }),
    },
  };
}

/** An engine that cannot start: the phase says why, and everything else fails with that. */
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
