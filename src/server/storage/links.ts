/**
 * Connections between the instances of one machine (INSTANCES=n), which carry changes past the database: the bytes of a
 * notification of changes, in larger blocks and without base64, each behind its length in four bytes. They are sockets in
 * a folder that only the instances' user may enter. An instance listens there under its id, and connects to each of the
 * others for what it tells them, so that a connection carries one direction.
 *
 * Nothing depends on them. The head of what went over a link is notified a moment later all the same, and who has not got
 * it reads the log. So where a link breaks, or its reader is slow, changes go by notification, and what was under way
 * costs a read.
 */
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Position } from '../tenant/change.js';
import type { ItemRow } from '../tenant/codec.js';
import { ChangesWriter } from './notification.js';

/** One block and its length; the length of a tenant's rows in it has two bytes. */
const BLOCK_BYTES = 64 * 1024;
const LENGTH_BYTES = 4;
/** Blocks of a link that its reader has not taken; beyond it changes go by notification. */
const WAITING_MAX = 64;
/** Blocks that are kept while they are not needed, over all links. */
const SPARES_MAX = 64;
/** Connections that are accepted: each instance of this machine has one. */
const ACCEPTED_MAX = 256;

export interface LinksOptions {
  readonly folder: string;
  readonly instanceId: string;
  /** Puts a MAC for the instance `id` into the first of the bytes up to `end`. */
  readonly sign: (id: string, bytes: Buffer, end: number) => void;
  /** A block came, whose MAC is to be checked. It is valid until this returns. */
  readonly onBlock: (bytes: Buffer) => void;
  readonly onFault: (error: unknown) => void;
}

/** The way to one other instance. */
class Link {
  private block: Buffer = Buffer.alloc(0);
  private waiting = 0;
  private readonly writer: ChangesWriter;

  constructor(
    private readonly id: string,
    private readonly socket: Socket,
    private readonly options: LinksOptions,
    private readonly spares: Buffer[],
  ) {
    this.writer = new ChangesWriter(options.instanceId, this.room(), (bytes, end) => this.send(bytes, end));
  }

  /** True where it takes changes. */
  get ready(): boolean {
    return this.socket.readyState === 'open' && this.waiting < WAITING_MAX;
  }

  /** As `ChangesWriter.add`; what was added goes out with `flush`. */
  add(tenantId: string, rows: readonly ItemRow[], { summary, generation }: Position): boolean {
    return this.writer.add(tenantId, generation, rows, summary);
  }

  flush(): void {
    this.writer.seal();
  }

  close(): void {
    this.socket.destroy();
  }

  private room(): Buffer {
    this.block = this.spares.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES);
    return this.block.subarray(LENGTH_BYTES);
  }

  /** Returns memory for the next block: this one belongs to the socket until it is written. */
  private send(bytes: Buffer, end: number): Buffer {
    const { block, spares } = this;
    this.options.sign(this.id, bytes, end);
    block.writeUInt32BE(end);
    this.waiting++;
    this.socket.write(block.subarray(0, LENGTH_BYTES + end), () => {
      this.waiting--;
      if (spares.length < SPARES_MAX) spares.push(block);
    });
    return this.room();
  }
}

/** The links of this instance. */
export class Links {
  private readonly links = new Map<string, Link>();
  private readonly accepted = new Set<Socket>();
  private readonly server: Server;
  /** Reused: new external memory for each block would trigger collections. */
  private readonly spares: Buffer[] = [];
  /** Links with changes that go out at the end of this turn. */
  private readonly unsent = new Set<Link>();

  constructor(private readonly options: LinksOptions) {
    this.server = createServer((socket) => this.accept(socket));
    this.server.maxConnections = ACCEPTED_MAX;
    this.server.on('error', options.onFault);
  }

  start(): void {
    this.server.listen(join(this.options.folder, this.options.instanceId));
  }

  /** Connects to these instances where there is no connection, and closes those to others. */
  keep(ids: readonly string[]): void {
    const wanted = new Set(ids);
    for (const [id, link] of this.links) if (!wanted.has(id)) link.close();
    for (const id of wanted) if (!this.links.has(id)) this.open(id);
  }

  private open(id: string): void {
    const socket = connect(join(this.options.folder, id));
    const link = new Link(id, socket, this.options, this.spares);
    this.links.set(id, link);
    // It is on another machine, or has gone; changes go by notification, and the next heartbeat tries again.
    socket.on('error', () => undefined);
    socket.on('close', () => {
      this.unsent.delete(link);
      this.links.delete(id);
    });
  }

  /**
   * Sends a tenant's rows of one transaction to an instance. False where there is no link, its reader is too slow, or a row
   * does not fit: they, or their head, have to be notified.
   */
  carry(id: string, tenantId: string, rows: readonly ItemRow[], position: Position): boolean {
    const link = this.links.get(id);
    if (link?.ready !== true) return false;
    // A lane answers a batch within one turn: what it has for one instance leaves together.
    if (this.unsent.size === 0) queueMicrotask(() => this.flush());
    this.unsent.add(link);
    return link.add(tenantId, rows, position);
  }

  private flush(): void {
    for (const link of this.unsent) link.flush();
    this.unsent.clear();
  }

  private accept(socket: Socket): void {
    this.accepted.add(socket);
    let rest: Buffer = Buffer.alloc(0);
    socket.on('data', (data: Buffer) => {
      rest = rest.length === 0 ? data : Buffer.concat([rest, data]);
      while (rest.length >= LENGTH_BYTES) {
        const end = LENGTH_BYTES + rest.readUInt32BE();
        if (end > BLOCK_BYTES) {
          this.options.onFault(new Error('a link brought a block that is too long'));
          return void socket.destroy();
        }
        if (rest.length < end) return;
        this.options.onBlock(rest.subarray(LENGTH_BYTES, end));
        rest = rest.subarray(end);
      }
    });
    socket.on('error', () => undefined); // its instance has died; the close follows
    socket.on('close', () => this.accepted.delete(socket));
  }

  /** Ends all connections, whatever is under way on them. */
  async close(): Promise<void> {
    for (const link of this.links.values()) link.close();
    for (const socket of this.accepted) socket.destroy();
    await new Promise<void>((resolve) => this.server.close(() => resolve()));
  }
}
