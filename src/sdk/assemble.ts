/** Puts a device's parts together. Nothing is decided here; what the parts tell each other goes through `Hooks`. */
import { DeviceApi } from './api.js';
import { Bins } from './bins.js';
import { Blobs } from './blobs/blobs.js';
import type { Core } from './core.js';
import type { ProtocolError } from './errors.js';
import { Http } from './http.js';
import type { Token } from './identity.js';
import { ItemReader } from './item-reader.js';
import type { Platform } from './platform.js';
import { Replica } from './replica.js';
import type { DeviceEntry } from './replies.js';
import { RewrapQueue } from './rewrap-queue.js';
import { DeviceList } from './device-list.js';
import { Sender } from './sender.js';
import { Session } from './session.js';
import { LiveQueryIndex } from './live-query-index.js';
import { ReconnectingSocket } from './reconnecting-socket.js';
import { Sync } from './sync.js';
import type { Frame } from './wire.js';
import { Writer } from './writer.js';

/** What the parts ask of the device that they belong to. */
export interface Hooks {
  readonly onToken: (token: Token) => void;
  readonly onRevoked: () => void;
  /** `size`: characters of its text. */
  readonly onFrame: (frame: Frame, size: number) => void;
  /** The server is not read any more. */
  readonly halt: (error: ProtocolError) => void;
  /** Reads again what is no item. */
  readonly refresh: () => Promise<void>;
}

/** What the parts stand on. */
export interface Foundation extends Pick<Core, 'identity' | 'store' | 'outbox' | 'emit' | 'lifetime'> {
  readonly platform: Platform;
  readonly hooks: Hooks;
  /** The device list of an earlier program. */
  readonly devices?: readonly DeviceEntry[];
}

/** A device, taken apart. */
export type Parts = ReturnType<typeof assemble>;

/** All parts of a device, not yet started. */
export function assemble({ platform, hooks, devices, ...base }: Foundation) {
  const { identity, emit, lifetime } = base;
  const { onToken, onRevoked } = hooks;
  const http = new Http({ ...platform, baseUrl: identity.serverUrl, lifetime });
  const session = new Session({ ...platform, http, identity, onToken, onRevoked });
  const core: Core = {
    ...platform,
    ...base,
    api: new DeviceApi(session.call),
    reader: { masterKey: identity.masterKey, device: { id: identity.deviceId, keys: identity.keys } },
    onProblem: (error) => emit('problem', { error }),
    baseUrl: http.baseUrl,
    clockOffset: () => http.clockOffset,
  };
  const roster = new DeviceList({ ...core, remembered: devices });
  const sender = new Sender({ ...core, roster });
  const library = new ItemReader(core);
  const shelf = new LiveQueryIndex(core);
  const blobs = new Blobs(core);
  const writer = new Writer({ ...core, deviceId: identity.deviceId, sender, roster, blobs });
  const { line, sync } = stream(core, { session, sender, hooks });
  const bins = new Bins({ ...core, library, writer, pull: () => sync.pull() });
  const rewrapper = new RewrapQueue({ ...core, writer, roster });
  return { core, session, roster, library, shelf, writer, sender, sync, line, bins, blobs, rewrapper };
}

/** The ordered stream and what applies it; each needs the other. */
function stream(
  core: Core,
  { session, sender, hooks }: { readonly session: Session; readonly sender: Sender; readonly hooks: Hooks },
) {
  const { api, emit } = core;
  const fetchNext = async (since: number) => (await api.page({ since, epoch: null, limit: 1 })).items[0];
  const replica = new Replica({ ...core, fetchNext });
  const line: ReconnectingSocket = new ReconnectingSocket({
    ...core,
    // The line has waits of its own: each of its steps is one request.
    ticket: () => api.once.ticket(),
    renew: () => session.renew(true),
    cursor: () => sync.begin(),
    onFrame: hooks.onFrame,
    onState: (state) => emit('line', state),
    onRevoked: () => session.endRevoked(),
  });
  const sync: Sync = new Sync({
    ...core,
    replica,
    sender,
    reconnect: (reason) => line.restart(reason),
    flow: (reading) => line.flow(reading),
    caughtUp: () => line.settled(),
    halt: hooks.halt,
    refresh: hooks.refresh,
  });
  return { line, sync };
}
