/** Puts a device's parts together. Nothing is decided here; what the parts tell each other goes through `Hooks`. */
import type { Reader } from '../crypto/item.js';
import { DeviceApi } from './api.js';
import { Bins } from './bins.js';
import { Blobs } from './blobs/blobs.js';
import type { ProtocolError } from './errors.js';
import type { Emit } from './events.js';
import { Http } from './http.js';
import type { Identity, Token } from './identity.js';
import { Library } from './library.js';
import type { Outbox } from './outbox.js';
import type { Platform } from './platform.js';
import { Replica } from './replica.js';
import { Rewrapper } from './rewrap.js';
import type { DeviceEntry } from './replies.js';
import { Roster } from './roster.js';
import { Sender } from './sender.js';
import { Session } from './session.js';
import { Shelf } from './shelf.js';
import { Line } from './socket.js';
import type { Store } from './store/store.js';
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

/** A device, taken apart. */
export interface Parts {
  readonly http: Http;
  readonly api: DeviceApi;
  readonly session: Session;
  readonly roster: Roster;
  readonly library: Library;
  readonly shelf: Shelf;
  readonly writer: Writer;
  readonly sender: Sender;
  readonly sync: Sync;
  readonly line: Line;
  readonly bins: Bins;
  readonly blobs: Blobs;
  readonly rewrapper: Rewrapper;
}

/** What the parts stand on. */
export interface Foundation {
  readonly platform: Platform;
  readonly identity: Identity;
  readonly store: Store;
  readonly outbox: Outbox;
  readonly emit: Emit;
  /** Aborted when the device is closed. */
  readonly lifetime: AbortSignal;
  readonly hooks: Hooks;
  /** See `RosterOptions.remembered`. */
  readonly devices?: readonly DeviceEntry[];
}

/** All parts of a device, not yet started. */
export function assemble(base: Foundation): Parts {
  const { platform, identity, store, outbox, emit, hooks } = base;
  const { sodium, clock } = platform;
  const http = new Http({ ...platform, baseUrl: identity.serverUrl, lifetime: base.lifetime });
  const { onToken, onRevoked } = hooks;
  const session = new Session({ http, sodium, clock, identity, onToken, onRevoked });
  const api = new DeviceApi(session.call);
  const { masterKey, deviceId } = identity;
  const reader: Reader = { masterKey, device: { id: deviceId, keys: identity.keys } };
  const roster = new Roster({ api, sodium, identity, emit, remembered: base.devices });
  const sender = new Sender({ ...platform, api, outbox, roster, reader, emit });
  const onProblem = (error: Error): void => emit('problem', { error });
  const library = new Library({ store, outbox, sodium, reader, onProblem });
  const shelf = new Shelf({ store, outbox, sodium, reader, onProblem });
  const { baseUrl } = http;
  const clockOffset = (): number | null => http.clockOffset;
  const blobs = new Blobs({ ...platform, api, reader, baseUrl, clockOffset, lifetime: base.lifetime });
  const writer = new Writer({ store, outbox, sender, roster, sodium, reader, deviceId, clock, blobs });
  const { line, sync } = stream(base, { http, api, session, sender, reader });
  const bins = new Bins({ api, sodium, masterKey, library, writer, pull: () => sync.pull(), emit });
  const rewrapper = new Rewrapper({ ...platform, writer, roster, emit });
  return { http, api, session, roster, library, shelf, writer, sender, sync, line, bins, blobs, rewrapper };
}

/** The ordered stream and what applies it; each needs the other. */
function stream(
  { platform, store, outbox, emit, hooks }: Foundation,
  parts: Pick<Parts, 'api' | 'session' | 'sender'> & { readonly http: Http; readonly reader: Reader },
): Pick<Parts, 'line' | 'sync'> {
  const { api, session, sender, reader, http } = parts;
  const fetchNext = async (since: number) => (await api.page({ since, epoch: null, limit: 1 })).items[0];
  const replica = new Replica({ store, outbox, sodium: platform.sodium, reader, emit, fetchNext });
  const line: Line = new Line({
    ...platform,
    baseUrl: http.baseUrl,
    // The line has waits of its own: each of its steps is one request.
    ticket: () => api.once.ticket(),
    renew: () => session.renew(true),
    cursor: () => sync.begin(),
    onFrame: hooks.onFrame,
    onState: (state) => emit('line', state),
    onRevoked: () => session.endRevoked(),
    onProblem: (error) => emit('problem', { error }),
  });
  const sync: Sync = new Sync({
    api,
    replica,
    outbox,
    sender,
    emit,
    reconnect: (reason) => line.restart(reason),
    flow: (reading) => line.flow(reading),
    caughtUp: () => line.settled(),
    halt: hooks.halt,
    refresh: hooks.refresh,
  });
  return { line, sync };
}
