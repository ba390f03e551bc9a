/**
 * Connections between the instances of one machine (INSTANCES=n), which carry changes without the database: the blocks
 * of notification.ts, each preceded by its length in four bytes. They are sockets in a folder that only the instances'
 * user may enter; nothing else authenticates either end. An instance listens there under its id. The others connect to
 * receive its changes, and send only one line, with their own id.
 *
 * Changes sent over a link are not notified. A link that breaks may have lost some, so its reader then compares heads.
 * The writer may have written after that comparison: when it sees the break, it makes the reader compare again. A link
 * that is closed in order announces that with an empty block. Without a link, or if its reader is slow, changes are
 * sent as notifications.
 */
import { existsSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { basename, join } from 'node:path';
import type { Position } from '../tenant/change.js';
import type { ItemRow } from '../tenant/codec.js';
import { ChangesWriter, type Publisher } from './notification.js';

/** One block with its length prefix; the length of a tenant's rows in it has two bytes. */
const BLOCK_BYTES = 64 * 1024;
const LENGTH_BYTES = 4;
/** Blocks of a link that are not yet read; beyond this, changes are sent as notifications. */
const WAITING_MAX = 64;
/** Unused blocks that are kept, over all links. */
const SPARES_MAX = 64;
/** Maximum of accepted connections: one per instance on this machine. */
const ACCEPTED_MAX = 256;
const ID_MAX = 64;

interface LinksOptions extends Publisher {
  readonly folder: string;
  /** Called with each received block, which is valid until this returns. */
  readonly onBlock: (bytes: Buffer) => void;
  /** A link read by this instance broke: changes under way are lost. */
  readonly onLost: () => void;
  /** A link read by instance `id` broke: it may have compared heads before the last changes were written. */
  readonly onUnread: (id: string) => void;
  readonly onFault: (error: unknown) => void;
}

/** An empty block: the link is closed in order, and nothing was lost. */
const END = Buffer.alloc(LENGTH_BYTES);

/** The sending end of a connection to one other instance. */
class OutgoingLink {
  private block: Buffer = Buffer.alloc(0);
  private waiting = 0;
  /** Takes changes; what it has taken is sent when it is sealed. */
  readonly writer: ChangesWriter;

  constructor(
    private readonly socket: Socket,
    publisher: Publisher,
    private readonly spares: Buffer[],
  ) {
    this.writer = new ChangesWriter(publisher, this.room(), (end) => this.send(end));
  }

  get open(): boolean {
    return this.socket.readyState === 'open';
  }

  /** True while it accepts changes. */
  get ready(): boolean {
    return this.open && this.waiting < WAITING_MAX;
  }

  /** Does not wait: if the system does not accept the end block, the reader compares heads. */
  close(): void {
    this.writer.seal();
    this.socket.write(END);
    this.socket.destroy();
  }

  private room(): Buffer {
    this.block = this.spares.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES);
    return this.block.subarray(LENGTH_BYTES);
  }

  /** Returns memory for the next block: the socket uses this one until it is written. */
  private send(end: number): Buffer {
    const { block, spares } = this;
    block.writeUInt32BE(end);
    this.waiting++;
    this.socket.write(block.subarray(0, LENGTH_BYTES + end), () => {
      this.waiting--;
      if (spares.length < SPARES_MAX) spares.push(block);
    });
    return this.room();
  }
}

/** The receiving end of a connection; reads into memory that is reused. */
class IncomingLink {
  private readonly memory = Buffer.allocUnsafeSlow(2 * BLOCK_BYTES);
  private filled = 0;
  /** True from the connection until the end block arrived. */
  private open = false;
  readonly socket: Socket;

  constructor(
    path: string,
    private readonly options: LinksOptions,
  ) {
    const buffer = (): Buffer => this.memory.subarray(this.filled);
    this.socket = connect({ path, onread: { buffer, callback: (bytes) => this.take(bytes) } });
    this.socket.on('connect', () => {
      this.open = true;
      this.socket.write(`${options.instanceId}\n`);
    });
    // The instance has stopped. Its changes arrive as notifications until the next heartbeat reconnects.
    this.socket.on('error', () => undefined);
    this.socket.on('close', () => {
      if (this.open) options.onLost();
    });
  }

  private take(bytes: number): boolean {
    const { memory } = this;
    this.filled += bytes;
    let at = 0;
    while (this.filled - at >= LENGTH_BYTES) {
      const end = at + LENGTH_BYTES + memory.readUInt32BE(at);
      if (end - at > BLOCK_BYTES) {
        this.options.onFault(new Error('a link brought a block that is too long'));
        this.socket.destroy();
        return false;
      }
      if (end > this.filled) break;
      if (end === at + LENGTH_BYTES) this.open = false;
      else this.options.onBlock(memory.subarray(at + LENGTH_BYTES, end));
      at = end;
    }
    memory.copyWithin(0, at, this.filled);
    this.filled -= at;
    return true;
  }
}

export class Links {
  /** By the reader's id. */
  private readonly outgoing = new Map<string, OutgoingLink>();
  /** By the writer's id. */
  private readonly incoming = new Map<string, IncomingLink>();
  private readonly accepted = new Set<Socket>();
  private readonly server: Server;
  /** Reused: allocating external memory for each block would trigger garbage collections. */
  private readonly spares: Buffer[] = [];
  /** Links with changes to be sent at the end of this turn. */
  private readonly unsent = new Set<OutgoingLink>();

  constructor(private readonly options: LinksOptions) {
    this.server = createServer((socket) => this.accept(socket));
    this.server.maxConnections = ACCEPTED_MAX;
    this.server.on('error', options.onFault);
  }

  start(): void {
    this.server.listen(join(this.options.folder, this.options.instanceId));
  }

  /** Connects to these instances if not connected yet, and closes connections to others. */
  keep(ids: readonly string[]): void {
    const wanted = new Set(ids);
    for (const [id, { socket }] of this.incoming) {
      if (wanted.has(id)) continue;
      this.incoming.delete(id);
      socket.destroy();
    }
    for (const id of wanted) if (!this.incoming.has(id)) this.read(id);
  }

  private read(id: string): void {
    // The ids come from the database, where any of its clients may write: no id may lead out of the folder.
    if (basename(id) !== id) return;
    const path = join(this.options.folder, id);
    // Absent: it is on another machine. Checked first, since there may be many, and each link allocates memory.
    if (!existsSync(path)) return;
    const link = new IncomingLink(path, this.options);
    this.incoming.set(id, link);
    link.socket.on('close', () => {
      if (this.incoming.get(id) === link) this.incoming.delete(id);
    });
  }

  private accept(socket: Socket): void {
    this.accepted.add(socket);
    let received = '';
    socket.setEncoding('latin1').on('data', (text: string) => {
      received += text;
      const [id = '', rest] = received.split('\n', 2);
      if (rest === '' && id.length <= ID_MAX) this.identified(id, socket);
      else if (received.length > ID_MAX) socket.destroy();
    });
    socket.on('error', () => undefined); // the instance has died; 'close' follows
    socket.on('close', () => this.accepted.delete(socket));
  }

  private identified(id: string, socket: Socket): void {
    const before = this.outgoing.get(id);
    before?.close();
    if (before !== undefined) this.options.onUnread(id);
    const link = new OutgoingLink(socket, this.options, this.spares);
    this.outgoing.set(id, link);
    socket.on('close', () => {
      this.unsent.delete(link);
      if (this.outgoing.get(id) !== link) return;
      this.outgoing.delete(id);
      this.options.onUnread(id);
    });
  }

  /**
   * Sends a tenant's rows of one transaction to an instance. False if there is no link, its reader is too slow, or a
   * row does not fit: the rows, or their head, must then be notified.
   */
  carry(id: string, tenantId: string, rows: readonly ItemRow[], { summary, generation }: Position): boolean {
    const link = this.outgoing.get(id);
    if (link?.ready !== true) return false;
    // A lane reports a batch within one turn: all changes for one instance are sent together.
    if (this.unsent.size === 0) queueMicrotask(() => this.flush());
    this.unsent.add(link);
    return link.writer.add(tenantId, generation, rows, summary);
  }

  private flush(): void {
    for (const { writer } of this.unsent) writer.seal();
    this.unsent.clear();
  }

  /** Ends all connections. */
  async close(): Promise<void> {
    for (const { socket } of this.incoming.values()) socket.destroy();
    for (const [id, link] of this.outgoing) {
      if (!link.open) this.options.onUnread(id);
      link.close();
    }
    this.outgoing.clear();
    for (const socket of this.accepted) socket.destroy();
    await new Promise<void>((resolve) => this.server.close(() => resolve()));
  }
}
