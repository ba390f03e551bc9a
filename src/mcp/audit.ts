/**
 * The audit log of tool calls: one JSON line per call, in a file beside the pairing, mode 0600. A line has time, tool,
 * bin, ids and outcome, never a payload or a query: the log must not become an unencrypted copy of the content.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { FILE_MODE, isOpenToOthers, POSIX } from '../files/durable.js';
import { privateFolder } from '../files/private.js';
import { isBinId, isUlid } from '../protocol/ids.js';
import { errorCode } from '../protocol/error-code.js';
import type { Context } from './context.js';
import { McpError, type McpCode } from './errors.js';

export interface AuditEntry {
  readonly tool: string;
  /** The bin's id, or the agent's text if no bin has that name. Null: the call named none. */
  readonly bin: string | null;
  /** Items that were returned, written or deleted. */
  readonly ids: readonly string[];
  readonly outcome: 'ok' | McpCode;
  /** Duration of the call. */
  readonly ms: number;
}

/** Bytes after which the file is rotated. */
export const AUDIT_MAX = 1024 * 1024;
/** Rotated files that are kept; `mcp-audit.jsonl.1` is the newest. */
export const AUDIT_KEPT = 4;

export const auditPath = ({ paths }: Pick<Context, 'paths'>): string => join(paths.folder, 'mcp-audit.jsonl');

/** Appends lines to the log. Each is passed to the operating system before `write` returns. */
export class Audit {
  private constructor(
    private readonly path: string,
    private readonly context: Pick<Context, 'note' | 'platform'>,
  ) {}

  /** Throws `McpError` `disk` if the log cannot be written: no tool call without a record. */
  static async open(context: Pick<Context, 'paths' | 'note' | 'platform'>): Promise<Audit> {
    const audit = new Audit(auditPath(context), context);
    try {
      await privateFolder(context.paths.folder, context.note);
      audit.append('');
    } catch (error) {
      const why = `cannot be written (${errorCode(error)})`;
      throw new McpError('disk', `the record of tool calls (${audit.path}) ${why}`, { cause: error });
    }
    return audit;
  }

  /** Appends a line. A write error is reported to the user and does not fail the tool call. */
  write(entry: AuditEntry): void {
    const { tool, bin, ids, outcome, ms } = entry;
    const time = new Date(this.context.platform.clock.now()).toISOString();
    // An agent's text is logged only if it has the form of an id: otherwise the agent could write anything into this
    // file, and a bin's name is as secret as its content.
    const named = bin === null || isBinId(bin) ? bin : '?';
    const line = { time, tool, bin: named, ids: ids.filter(isUlid), outcome, ms: Math.round(ms) };
    try {
      this.append(`${JSON.stringify(line)}\n`);
    } catch (error) {
      this.context.note(`The record of tool calls could not be written (${errorCode(error)}): ${this.path}`);
    }
  }

  private append(text: string): void {
    if ((found(this.path)?.size ?? 0) + text.length > AUDIT_MAX) this.rotate();
    const file = this.opened();
    try {
      fs.writeSync(file, text);
    } finally {
      fs.closeSync(file);
    }
  }

  /** Does not follow a link, which would redirect the writes. */
  private opened(): number {
    const flags =
      fs.constants.O_WRONLY | fs.constants.O_APPEND | fs.constants.O_CREAT | (POSIX ? fs.constants.O_NOFOLLOW : 0);
    const file = fs.openSync(this.path, flags, FILE_MODE);
    if (isOpenToOthers(fs.fstatSync(file).mode)) fs.fchmodSync(file, FILE_MODE);
    return file;
  }

  private rotate(): void {
    for (let at = AUDIT_KEPT - 1; at >= 0; at--) {
      const from = at === 0 ? this.path : `${this.path}.${at}`;
      if (found(from) !== undefined) fs.renameSync(from, `${this.path}.${at + 1}`);
    }
  }
}

/** The file or link of that name; undefined if there is none. */
const found = (path: string): fs.Stats | undefined => fs.lstatSync(path, { throwIfNoEntry: false });
