/**
 * The actions of one connection on its tenants, as any of their devices. It changes only its own items, so that no
 * change is refused and it knows their expected state; other connections share its tenants.
 */
import { randomBytes, randomInt } from 'node:crypto';
import { ulid } from 'ulid';
import { stampText } from '../fallback/records.js';
import type { Answer, Ask, Connection } from './connection.js';
import { BINS, KINDS, SHARES, type Acked, type Kind } from './kinds.js';

/** A line of the plan (see population.ts). */
export interface Planned {
  readonly who: number;
  readonly token: string;
  readonly host: string;
  /** Keys of the envelope, for all devices of the tenant, as JSON. */
  readonly keys: string;
}

/** A live item. */
interface Own {
  readonly id: string;
  version: number;
  ts: number;
  bin: string;
  readonly blob: { readonly ref: string; readonly bytes: Buffer } | null;
  /** The envelope of an item without a master wrap, without its tag; a re-wrap adds the wrap. Null: it has one. */
  bare: string | null;
}

/** A tenant as this connection knows it. */
export interface Known {
  readonly devices: readonly Planned[];
  readonly items: Own[];
  /** The newest version of its own items, including deleted ones, that a list may still contain. */
  readonly versions: Map<string, number>;
  newest: number;
}

const CT_BYTES = 768;
const BLOB_BYTES = 64 * 1024;
const PAGE = 20;
/** A list begins at most this many pages behind the newest version. */
const PAGES_BACK = 3;
/** One in this many items is written without a master wrap. */
const BARE_ONE_IN = 4;

const NEEDS_ITEM: readonly Kind[] = ['replace', 'delete', 'move', 'rewrap', 'blob get'];

const text = (bytes: number): string => randomBytes(bytes).toString('base64url');
const any = <T>(all: readonly T[]): T | undefined => (all.length === 0 ? undefined : all[randomInt(all.length)]);
const master = (): string => `"master":{"nonce":"${text(24)}","ct":"${text(48)}"},`;
const content = (ct: number): string =>
  `"ct":"${stampText(process.hrtime.bigint())}${text(ct - 12)}","nonce":"${text(24)}"`;
const JSON_BODY = 'Content-Type: application/json\r\n';

interface Row {
  readonly id: string;
  readonly version: number;
}

/** An incorrect answer: a list that lacks an acknowledged change, or a blob with other bytes. */
export class Wrong extends Error {
  override readonly name = 'Wrong';
}

export class Person {
  constructor(
    private readonly connection: Connection,
    private readonly tenants: readonly Known[],
    private readonly acked: (acked: Acked) => void,
  ) {}

  /** Runs one random action and returns its kind; inserts an item if there is none to change yet. */
  async act(): Promise<Kind> {
    const kind = draw();
    const { tenant, own } = this.place(kind);
    const device = any(tenant.devices);
    if (device === undefined) throw new Error('a tenant without devices');
    const turn = { tenant, device };
    if (kind === 'list') await this.list(turn);
    else if (kind === 'blob put') await this.putBlob(turn);
    else if (kind === 'insert' || own === undefined) return await this.insert(turn);
    else if (kind === 'replace') await this.replace(turn, own);
    else if (kind === 'rewrap') await this.writeAgain(turn, own, kind);
    else if (kind === 'move') await this.move(turn, own);
    else if (kind === 'delete') await this.remove(turn, own);
    else await this.getBlob(turn, own);
    return kind;
  }

  /** A random tenant; for a kind that needs an item, one with a suitable item, if there is any. */
  private place(kind: Kind): { readonly tenant: Known; readonly own: Own | undefined } {
    const from = randomInt(this.tenants.length);
    const turned = [...this.tenants.slice(from), ...this.tenants.slice(0, from)];
    for (const tenant of NEEDS_ITEM.includes(kind) ? turned : []) {
      const own = chosen(kind, tenant);
      if (own !== undefined) return { tenant, own };
    }
    const [tenant] = turned;
    if (tenant === undefined) throw new Error('no tenants');
    return { tenant, own: undefined };
  }

  private async insert(turn: Turn): Promise<Kind> {
    const bare = randomInt(BARE_ONE_IN) === 0;
    const envelope = `${content(CT_BYTES)},"keys":${turn.device.keys}`;
    const item: Own = { ...fresh(), blob: null, bare: bare ? envelope : null };
    const rest = `"ifVersion":0,"payloadEnc":{${envelope},${bare ? '' : master()}"sig":"${text(32)}"}`;
    await this.write(turn, item, { kind: 'insert', rest });
    turn.tenant.items.push(item);
    return 'insert';
  }

  private async replace(turn: Turn, own: Own): Promise<void> {
    own.ts = Math.max(Date.now(), own.ts + 1);
    own.bare = `${content(CT_BYTES)},"keys":${turn.device.keys}`;
    await this.writeAgain(turn, own, 'replace');
  }

  /** Writes the envelope in `bare`, that of a re-wrap or of new content, with a master wrap. */
  private async writeAgain(turn: Turn, own: Own, kind: Kind): Promise<void> {
    const rest = `"ifVersion":${own.version},"payloadEnc":{${own.bare ?? ''},${master()}"sig":"${text(32)}"}`;
    own.bare = null;
    await this.write(turn, own, { kind, rest });
  }

  private async write(
    turn: Turn,
    own: Own,
    { kind, rest }: { readonly kind: Kind; readonly rest: string },
  ): Promise<void> {
    const type = own.blob === null ? 'text' : 'file';
    const body = `{"id":"${own.id}","binId":"${own.bin}","type":"${type}","ts":${own.ts},${rest}}`;
    await this.change(turn, own, { kind, path: '/api/items', body });
  }

  private async move(turn: Turn, own: Own): Promise<void> {
    own.bin = own.bin === BINS[0] ? BINS[1] : BINS[0];
    const body = `{"binId":"${own.bin}","version":${own.version},"sig":"${text(32)}"}`;
    await this.change(turn, own, { kind: 'move', path: `/api/items/${own.id}/reconcile`, body });
  }

  private async remove(turn: Turn, own: Own): Promise<void> {
    turn.tenant.items.splice(turn.tenant.items.indexOf(own), 1);
    const body = `{"sig":"${text(32)}"}`;
    await this.change(turn, own, { kind: 'delete', path: `/api/items/${own.id}`, body, method: 'DELETE' });
  }

  private async putBlob(turn: Turn): Promise<void> {
    const bytes = randomBytes(BLOB_BYTES);
    const { device } = turn;
    const room = await this.api(device, {
      method: 'POST',
      path: '/api/blobs/upload-url',
      body: `{"contentLength":${bytes.length},"contentType":"application/octet-stream"}`,
    });
    const { blobRef, url, headers } = JSON.parse(room) as Upload;
    const lines = Object.entries(headers ?? {}).map(([name, value]) => `${name}: ${value}\r\n`);
    await this.ask({ method: 'PUT', path: pathOf(url), host: device.host, headers: lines.join(''), body: bytes });
    const blob = { ref: blobRef, bytes };
    const item: Own = { ...fresh(), blob, bare: null };
    const named = `"blobRef":"${blobRef}","blobNonce":"${text(24)}","blobKeys":${device.keys}`;
    const envelope = `${content(96)},"keys":${device.keys},${master()}"sig":"${text(32)}"`;
    await this.write(turn, item, { kind: 'blob put', rest: `"ifVersion":0,${named},"payloadEnc":{${envelope}}` });
    turn.tenant.items.push(item);
  }

  private async getBlob({ device }: Turn, { blob }: Own): Promise<void> {
    if (blob === null) throw new Error('no blob');
    const found = await this.api(device, { method: 'GET', path: `/api/blobs/${blob.ref}/url` });
    const { url } = JSON.parse(found) as Pick<Upload, 'url'>;
    const { body } = await this.ask({ method: 'GET', path: pathOf(url), host: device.host });
    if (!body.equals(blob.bytes)) throw new Wrong(`blob ${blob.ref} came back as something else`);
  }

  /** Lists one page. It must be in order and have every own item changed in its range (guarantee 3 of the tenant). */
  private async list({ tenant, device }: Turn): Promise<void> {
    const since = Math.max(0, tenant.newest - PAGE * (1 + randomInt(PAGES_BACK)));
    const found = await this.api(device, { method: 'GET', path: `/api/items?since=${since}&limit=${PAGE}` });
    const { items, nextSince } = JSON.parse(found) as { readonly items: readonly Row[]; readonly nextSince: number };
    let last = since;
    for (const { id, version } of items) {
      if (version <= last) throw new Wrong(`a list from ${since} has version ${version} of ${id} behind ${last}`);
      last = version;
    }
    const rows = new Map(items.map(({ id, version }) => [id, version]));
    for (const [id, version] of tenant.versions) {
      // No later list begins that far back.
      if (version <= tenant.newest - PAGE * PAGES_BACK) tenant.versions.delete(id);
      if (version > since && version <= nextSince && rows.get(id) !== version) {
        throw new Wrong(`a list from ${since} to ${nextSince} lacks version ${version} of ${id}`);
      }
    }
    tenant.newest = Math.max(tenant.newest, nextSince);
  }

  private async change(
    { tenant, device }: Turn,
    own: Own,
    {
      kind,
      method = 'POST',
      path,
      body,
    }: Pick<Ask, 'path' | 'body'> & { readonly kind: Kind; readonly method?: string },
  ): Promise<void> {
    const { id, version } = JSON.parse(await this.api(device, { method, path, body })) as Row;
    if (id !== own.id || version <= own.version)
      throw new Wrong(`${kind} of ${own.id} gave version ${version} of ${id}`);
    own.version = version;
    tenant.versions.set(id, version);
    tenant.newest = Math.max(tenant.newest, version);
    this.acked({ who: device.who, version, kind, id, bin: own.bin });
  }

  private async api({ token, host }: Planned, ask: Omit<Ask, 'host'>): Promise<string> {
    const headers = `Authorization: Bearer ${token}\r\n${ask.body === undefined ? '' : JSON_BODY}`;
    const { body } = await this.ask({ ...ask, host, headers });
    return body.toString('utf8');
  }

  private async ask(ask: Ask): Promise<Answer> {
    const answer = await this.connection.ask(ask);
    if (answer.status === 200) return answer;
    throw new Error(`${ask.method} ${ask.path}: ${answer.status} ${answer.body.toString('utf8', 0, 300)}`);
  }
}

interface Turn {
  readonly tenant: Known;
  readonly device: Planned;
}

interface Upload {
  readonly blobRef: string;
  readonly url: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A new item of this moment. */
const fresh = () => ({ id: ulid(), version: 0, ts: Date.now(), bin: BINS[0] });

/** The path of a signed URL: its host, the tenant's, does not resolve on this machine. */
const pathOf = (url: string): string => url.slice(url.indexOf('/', url.indexOf('//') + 2));

function draw(): Kind {
  let left = randomInt(100);
  for (const kind of KINDS) {
    left -= SHARES[kind];
    if (left < 0) return kind;
  }
  return 'insert';
}

/** A random item that is suitable for the kind. */
function chosen(kind: Kind, { items }: Known): Own | undefined {
  if (kind === 'replace') return any(items.filter(({ blob }) => blob === null));
  if (kind === 'rewrap') return any(items.filter(({ bare }) => bare !== null));
  if (kind === 'blob get') return any(items.filter(({ blob }) => blob !== null));
  return any(items);
}
