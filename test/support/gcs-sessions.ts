/**
 * Resumable uploads of the stand-in of Google's store, after its documentation ("Resumable uploads", "Perform resumable
 * uploads"): a session keeps multiples of 256 KiB until its last byte, and its URI is all that it asks for.
 */
import { randomBytes } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { jsonError, json, type GcsAnswer } from './gcs-objects.js';

/** What a session makes an object of. */
interface SessionObject {
  readonly name: string;
  readonly contentType: string;
  readonly body: Buffer;
}

interface Session {
  readonly name: string;
  readonly contentType: string;
  /** As declared when it began; undefined: not declared. */
  readonly declared: number | undefined;
  readonly ifGenerationMatch: string | null;
  /** The page that it was begun for. */
  readonly page: string | undefined;
  readonly begunAt: number;
  chunks: Buffer[];
  kept: number;
  /** The answer of the end. */
  ended: GcsAnswer | undefined;
}

const QUANTUM = 256 * 1024;
const LIFE_MS = 7 * 24 * 3_600_000;

/** A request that is about sessions. */
interface SessionCall {
  readonly method: string;
  readonly query: URLSearchParams;
  readonly headers: Readonly<Record<string, string>>;
  readonly request: IncomingMessage;
}

const empty = (status: number, headers: Record<string, string> = {}): GcsAnswer => ({
  status,
  headers: { ...headers, 'content-length': '0' },
  body: Buffer.alloc(0),
});

/** The sessions of one bucket. */
export class GcsSessions {
  private readonly sessions = new Map<string, Session>();

  /** `finish`: makes the object; undefined: its generation does not match. */
  constructor(
    private readonly parts: {
      readonly now: () => number;
      readonly finish: (object: SessionObject, ifGenerationMatch: string | null) => object | undefined;
    },
  ) {}

  /** Sessions that have not ended. */
  get open(): number {
    return [...this.sessions.values()].filter(({ ended }) => ended === undefined).length;
  }

  /** Forgets all, as Google does after a week. */
  forget(): void {
    this.sessions.clear();
  }

  /** Begins one; `at`: the address that its URI is made of. */
  begin({ query, headers }: SessionCall, at: string): GcsAnswer {
    const id = randomBytes(48).toString('base64url');
    const length = headers['x-upload-content-length'];
    this.sessions.set(id, {
      name: query.get('name') ?? '',
      contentType: headers['x-upload-content-type'] ?? 'application/octet-stream',
      declared: length === undefined ? undefined : Number(length),
      ifGenerationMatch: query.get('ifGenerationMatch'),
      page: headers['origin'],
      begunAt: this.parts.now(),
      ...{ chunks: [], kept: 0, ended: undefined },
    });
    const name = encodeURIComponent(query.get('name') ?? '');
    const location = `${at}?uploadType=resumable&name=${name}&upload_id=${id}`;
    return empty(200, { location, 'x-guploader-uploadid': id });
  }

  /** The origin that a session answers, for the headers of CORS. */
  pageOf(query: URLSearchParams): string | undefined {
    return this.sessions.get(query.get('upload_id') ?? '')?.page;
  }

  /** A request to a session's URI. */
  async take(call: SessionCall): Promise<GcsAnswer> {
    const id = call.query.get('upload_id') ?? '';
    const session = this.sessions.get(id);
    if (session === undefined) return jsonError(404, 'notFound');
    if (this.parts.now() - session.begunAt > LIFE_MS) return jsonError(410, 'gone');
    if (call.method === 'DELETE') {
      if (session.ended === undefined) this.sessions.delete(id);
      return session.ended ?? empty(499);
    }
    if (call.method !== 'PUT') return jsonError(405, 'methodNotAllowed');
    if (session.ended !== undefined) return session.ended;
    return this.put(session, call);
  }

  private async put(session: Session, { headers, request }: SessionCall): Promise<GcsAnswer> {
    const range = headers['content-range'] ?? '';
    const [, total] = /^bytes \*\/(\d+)$/.exec(range) ?? [];
    if (total !== undefined) return this.standing(session, headers);
    const [, first, last, size] = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(range) ?? [];
    const whole = size === undefined ? Number(headers['content-length']) : Number(size);
    if (range !== '' && first === undefined) return jsonError(400, 'invalid');
    if (session.declared !== undefined && whole !== session.declared) return jsonError(400, 'invalid');
    const from = Number(first ?? 0);
    const end = last === undefined ? whole : Number(last) + 1;
    if (end > whole || from > end || Number(headers['content-length']) !== end - from) return jsonError(400, 'invalid');
    if (from > session.kept) return jsonError(503, 'backendError');
    await this.receive(session, request, { from, end, whole });
    if (session.kept < whole) return this.standing(session, headers);
    const { name, contentType, chunks, ifGenerationMatch } = session;
    const made = this.parts.finish({ name, contentType, body: Buffer.concat(chunks) }, ifGenerationMatch);
    session.chunks = [];
    session.ended = made === undefined ? jsonError(412, 'conditionNotMet') : json(made);
    return session.ended;
  }

  /** Keeps what came, also of a request that was cut off, in multiples of 256 KiB unless the end of the object is there. */
  private async receive(
    session: Session,
    request: IncomingMessage,
    { from, end, whole }: { readonly from: number; readonly end: number; readonly whole: number },
  ): Promise<void> {
    // Bytes that are kept already are left as they are.
    let skip = session.kept - from;
    let got: Buffer[] = [];
    let held = 0;
    const keep = (bytes: number): void => {
      const all = Buffer.concat(got);
      session.chunks.push(all.subarray(0, bytes));
      session.kept += bytes;
      held -= bytes;
      got = [all.subarray(bytes)];
    };
    for await (const chunk of request as AsyncIterable<Buffer>) {
      const fresh = chunk.subarray(skip);
      skip = Math.max(0, skip - chunk.length);
      got.push(fresh);
      held += fresh.length;
      if (held >= QUANTUM) keep(held - (held % QUANTUM));
    }
    if (end === whole) keep(held);
  }

  private standing({ kept }: Session, headers: Readonly<Record<string, string>>): GcsAnswer {
    const range: Record<string, string> = kept === 0 ? {} : { range: `bytes=0-${kept - 1}` };
    if (headers['x-guploader-no-308'] !== 'yes') return empty(308, range);
    return empty(200, { ...range, 'x-http-status-code-override': '308' });
  }
}
