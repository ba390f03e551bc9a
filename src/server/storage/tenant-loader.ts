/** Loads tenants for the actors. Concurrent calls share a statement, so that a reconnect storm costs few. */
import type pg from 'pg';
import { Batcher, nextTurn } from '../../protocol/batcher.js';
import { delay, within, type Clock } from '../../protocol/clock.js';
import type { Summary } from '../../protocol/item.js';
import { ServiceError } from '../../protocol/errors.js';
import { DELETED_BINS_MAX } from '../../protocol/limits.js';
import type { FrameBin, FrameDevice, PairRequestFrame, Wire } from '../../protocol/frames.js';
import type * as ports from '../tenant/ports.js';
import { arrayOf, byColumn, Store } from './query.js';

/** How long a reload waits for counts, ms: what was read before them, such as a revocation, applies only after that. */
const COUNTS_WITHIN_MS = 2_000;

/** Tenants in one statement. */
const BATCH_MAX = 500;

/** Loads and heads in one batch. */
const ARRIVALS_MAX = 5_000;
/**
 * From this many concurrent calls on, a reconnect storm is assumed: the next read waits STORM_PAUSE_MS for more calls.
 * Longer waits would slow the storm down: most clients open few sockets before the first is caught up (bench S6).
 */
const STORM = 16;
const STORM_PAUSE_MS = 80;
/**
 * Statements per second for devices that connect one by one, after a burst of as many. A thousand devices sent here by
 * a draining instance would cost one statement each, so calls within a short time share one.
 */
const STATEMENTS_PER_S = 40;
const SPACING_MS = 1_000 / STATEMENTS_PER_S;

/** On a busy machine timers fire before pending input is read: waits one more turn for that. */
const wait = (clock: Clock, ms: number): Promise<void> => delay(clock, ms).then(nextTurn);

/**
 * Pairings of these tenants that wait for their existing device, as JSON with bytes as hex. One lookup per tenant: with
 * statistics of an empty table, `= ANY` compared each row with each tenant, and a join may repeat a subquery.
 */
const PAIRS = `
  WITH p AS MATERIALIZED (SELECT p.tenant_id, json_agg(json_build_object(
    'lookupId', p.lookup_id, 'existingDevice', p.existing_device, 'expiresAt', p.expires_at, 'code', p.code,
    'deviceId', p.new_device, 'host', p.host, 'pubkey', encode(p.npk, 'hex'), 'name', p.name, 'glyph', p.glyph,
    'attestation', encode(p.attestation, 'hex')) ORDER BY p.lookup_id) AS pairs
  FROM unnest($1::text[]) AS i(id) CROSS JOIN LATERAL (
    SELECT * FROM pair_sessions WHERE tenant_id = i.id AND state = 'requested' AND expires_at > $2 OFFSET 0) p
  GROUP BY p.tenant_id)`;

/** The columns of a `Summary`. */
const SUMMARY = 't.head AS version, t.item_count AS "itemCount", t.version_sum AS "versionSum"';

/**
 * The in-memory state of a tenant, in one statement and thus one snapshot; `whole`: not only its head. Without the
 * columns that only frames show, and with devices as text, it costs the database a third of RELOAD and the server a
 * fifth (bench S6). OFFSET forces a lookup per tenant, whatever the statistics say.
 */
const LOAD = `${PAIRS}
  SELECT t.id, t.state, t.generation, ${SUMMARY},
    CASE WHEN k.whole THEN (
      SELECT string_agg(d.id || ' ' || d.token_epoch || CASE
        WHEN d.revoked_at IS NULL THEN '' WHEN d.keys_purged THEN ' revoked' ELSE ' unpurged' END, ',' ORDER BY d.id)
      FROM devices d WHERE d.tenant_id = t.id) END AS devices,
    CASE WHEN k.whole THEN (
      SELECT string_agg(b.id, ',')
      FROM bins b WHERE b.tenant_id = t.id AND b.closed_at IS NULL AND b.deleted_at IS NULL) END AS bins,
    p.pairs
  FROM unnest($1::text[], $3::boolean[]) AS k(id, whole)
    CROSS JOIN LATERAL (SELECT * FROM tenants WHERE id = k.id OFFSET 0) t
    LEFT JOIN p ON p.tenant_id = t.id`;

/**
 * The same for a reader that has the generation `known`, with the columns that frames of changes show, but the counts of
 * bins (COUNTS). Rows of the lists are returned as JSON, with bytes as hex; those of bins and devices that no frame will
 * show are left out: a thousand bins may have 4 MiB of meta, which a tenant could have read again a hundred times a second.
 */
const RELOAD = `${PAIRS}
  SELECT t.id, t.state, t.generation, ${SUMMARY},
    (SELECT json_agg(json_build_object(
        'id', d.id, 'name', d.name, 'glyph', d.glyph,
        'pubkey', CASE WHEN d.revoked_at IS NULL THEN encode(d.pubkey, 'hex') END,
        'cert', CASE WHEN d.revoked_at IS NULL THEN encode(d.cert, 'hex') END,
        'tokenEpoch', d.token_epoch, 'pairedAt', d.paired_at, 'revokedAt', d.revoked_at, 'keysPurged', d.keys_purged)
        ORDER BY d.paired_at, d.id)
      FROM devices d WHERE d.tenant_id = t.id) AS devices,
    (SELECT json_agg(json_build_object(
        'id', b.id, 'slug', b.slug,
        'meta', CASE WHEN b.deleted_at IS NULL AND b.changed_at_generation > k.known THEN encode(b.meta, 'hex') END,
        'createdAt', b.created_at, 'updatedAt', b.updated_at, 'closedAt', b.closed_at, 'deletedAt', b.deleted_at,
        'changedAt', b.changed_at_generation) ORDER BY b.created_at, b.id)
      FROM (
        SELECT * FROM bins WHERE tenant_id = t.id AND deleted_at IS NULL
        UNION ALL (SELECT * FROM bins WHERE tenant_id = t.id AND deleted_at IS NOT NULL
          ORDER BY changed_at_generation DESC LIMIT ${DELETED_BINS_MAX})) b) AS bins,
    p.pairs
  FROM unnest($1::text[], $3::bigint[]) AS k(id, known)
    CROSS JOIN LATERAL (SELECT * FROM tenants WHERE id = k.id OFFSET 0) t
    LEFT JOIN p ON p.tenant_id = t.id`;

/**
 * Live items of some bins. Not part of RELOAD: it reads the index of all of the tenant's items, for a million of them for
 * a tenth of a second, and the other tenants of that statement would wait for it, or fail with it.
 */
const COUNTS = `
  SELECT bin_id AS id, count(*) AS count FROM items
  WHERE tenant_id = $1 AND version > 0 AND deleted_at IS NULL AND bin_id = ANY ($2) GROUP BY bin_id`;

const HEADS = `SELECT t.id, ${SUMMARY} FROM tenants t WHERE t.id = ANY ($1)`;
/**
 * Returns differences only: most tenants have not changed between two comparisons. OFFSET forces a lookup per tenant:
 * many instances query, each for a few thousand tenants, and hashing the whole table would overload the database.
 */
const POSITIONS = `
  SELECT k.id AS "tenantId", t.head, coalesce(t.generation, 0) AS generation
  FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(id, head, generation)
    LEFT JOIN LATERAL (SELECT id, head, generation FROM tenants WHERE id = k.id OFFSET 0) t ON true
  WHERE t.id IS NULL OR t.head > k.head OR t.generation > k.generation`;

type SummaryRow = Summary & { readonly id: string };

/**
 * Rows of lists as JSON: the fields of their frames, with bytes as hex, and the fields that decide whether to send
 * them.
 */
type DeviceJson = Wire<'a', FrameDevice> & {
  readonly tokenEpoch: number;
  readonly revokedAt: number | null;
  readonly keysPurged: boolean;
};

type BinJson = Wire<'a', Omit<FrameBin, 'itemCount'>> & {
  readonly closedAt: number | null;
  readonly deletedAt: number | null;
  readonly changedAt: number;
};

type PairJson = Wire<'a', Omit<PairRequestFrame, 'type'>> & { readonly existingDevice: string };

type TenantRow = SummaryRow &
  Pick<ports.TenantSnapshot, 'state' | 'generation'> & { readonly pairs: readonly PairJson[] | null };

/** If only the head was read, both are null. */
type LoadedRow = TenantRow & {
  /** `<id> <epoch>[ revoked| unpurged]`, comma-separated; unpurged: revoked, its keys not purged yet. */
  readonly devices: string | null;
  readonly bins: string | null;
};

type ReloadedRow = TenantRow & {
  readonly devices: readonly DeviceJson[] | null;
  readonly bins: readonly BinJson[] | null;
};

/** A read for a connecting device: the whole tenant, or only its head. */
type Arrival = readonly [id: string, whole: boolean];
type ArrivalRow = LoadedRow | SummaryRow | undefined;
/** A read for a tenant that is here already: bins that changed above the generation `known` are read whole. */
type Reload = readonly [id: string, known: number];
/** Live items by bin. */
type BinCounts = ReadonlyMap<string, number>;

export class PostgresTenantLoader extends Store implements ports.TenantLoader {
  /** Tenants whose counts are being read. */
  private readonly counting = new Set<string>();
  /** Separate, so that connecting devices do not wait for the lists of those that are here. */
  private readonly reloads: Batcher<Reload, ReloadedRow | undefined>;
  private readonly arrivals: Batcher<Arrival, ArrivalRow>;

  /**
   * @param clock decides which pairings have expired, and times the pauses in a reconnect storm.
   * @param onFault is called for counts that could not be read.
   */
  constructor(
    pool: pg.Pool,
    private readonly clock: Clock,
    private readonly onFault: (error: unknown, tenantId: string) => void,
  ) {
    super(pool, 'loads');
    this.reloads = new Batcher(BATCH_MAX, (reloads) => this.readReloads(reloads));
    /** The time, ms, up to which the statements so far were due (GCRA). */
    let dueAt = -Infinity;
    const pauseAfter = (answered: number): Promise<void> | undefined => {
      const now = clock.now();
      dueAt = Math.max(dueAt, now - 1_000) + SPACING_MS;
      // Never longer than the spacing, even if the clock was set back.
      const ms = answered >= STORM ? STORM_PAUSE_MS : Math.min(SPACING_MS, Math.max(0, dueAt - now));
      return ms > 0 ? wait(clock, ms) : undefined;
    };
    this.arrivals = new Batcher(ARRIVALS_MAX, (arrivals) => this.readArrivals(arrivals), pauseAfter);
  }

  async load(tenantId: string): Promise<ports.TenantSnapshot | undefined> {
    const row = await this.arrivals.ask([tenantId, true]);
    return row === undefined || !('devices' in row) ? undefined : snapshotOf(row);
  }

  hurry(): void {
    this.arrivals.hurry();
  }

  async reload(tenantId: string, known: number): Promise<ports.TenantUpdate | undefined> {
    const row = await this.reloads.ask([tenantId, known]);
    if (row === undefined) return undefined;
    // Of bins whose latest change the reader does not know: it is about to send their frames.
    const changed = row.bins?.filter(({ deletedAt, changedAt }) => deletedAt === null && changedAt > known) ?? [];
    const ids = changed.map(({ id }) => id);
    // Reloads of a tenant follow each other: only one of them waits for a count that takes long.
    if (ids.length === 0 || this.counting.has(tenantId)) return updateOf(row, NO_COUNTS);
    return updateOf(row, await within(this.clock, COUNTS_WITHIN_MS, this.counts(tenantId, ids), NO_COUNTS));
  }

  /** None if they cannot be read: a revocation that was read before them must not fail. */
  private async counts(tenantId: string, ids: readonly string[]): Promise<BinCounts> {
    const options = { name: 'bin-counts', readOnly: true };
    this.counting.add(tenantId);
    try {
      const rows = await this.rows<{ id: string; count: number }>(COUNTS, [tenantId, ids], options);
      return new Map([...ids.map((id) => [id, 0] as const), ...rows.map(({ id, count }) => [id, count] as const)]);
    } catch (error) {
      this.onFault(error, tenantId);
      return NO_COUNTS;
    } finally {
      this.counting.delete(tenantId);
    }
  }

  async head(tenantId: string): Promise<Summary> {
    const row = await this.arrivals.ask([tenantId, false]);
    if (row === undefined) throw new ServiceError('tenant_not_found');
    return summaryOf(row);
  }

  /** Rows of these tenants, in order. Duplicate ids are read once. */
  private async readReloads(reloads: readonly Reload[]): Promise<(ReloadedRow | undefined)[]> {
    const wanted = new Map<string, number>();
    for (const [id, known] of reloads) wanted.set(id, Math.min(known, wanted.get(id) ?? Infinity));
    const values = [arrayOf([...wanted.keys()]), this.clock.now(), arrayOf([...wanted.values()])];
    const rows = await this.rows<ReloadedRow>(RELOAD, values, { name: 'reload' });
    const found = new Map(rows.map((row) => [row.id, row]));
    return reloads.map(([id]) => found.get(id));
  }

  /** Like `readReloads`. Heads share the first statement that reads tenants. */
  private async readArrivals(arrivals: readonly Arrival[]): Promise<ArrivalRow[]> {
    const now = this.clock.now();
    const wholeIds = new Set(arrivals.flatMap(([id, whole]) => (whole ? [id] : [])));
    const headIds = new Set(arrivals.flatMap(([id]) => (wholeIds.has(id) ? [] : [id])));
    const found = new Map<string, ArrivalRow>();
    if (wholeIds.size === 0) {
      const rows = await this.rows<SummaryRow>(HEADS, [arrayOf([...headIds])], { name: 'heads' });
      for (const row of rows) found.set(row.id, row);
    }
    const wanted = [...wholeIds];
    for (let at = 0; at < wanted.length; at += BATCH_MAX) {
      const ids = [...wanted.slice(at, at + BATCH_MAX), ...(at === 0 ? headIds : [])];
      const values = [arrayOf(ids), now, arrayOf(ids.map((id) => String(wholeIds.has(id))))];
      for (const row of await this.rows<LoadedRow>(LOAD, values, { name: 'tenants' })) found.set(row.id, row);
    }
    return arrivals.map(([id]) => found.get(id));
  }

  positions(known: readonly ports.KnownPosition[]): Promise<readonly ports.StoredPosition[]> {
    return this.rows(POSITIONS, byColumn(known, 'tenantId', 'delivered', 'generation').map(arrayOf));
  }
}

const NO_COUNTS: BinCounts = new Map();
/** Shared, since most tenants have none. */
const NO_PAIRS: readonly ports.PairRequest[] = [];

const bytes = (hex: string): Uint8Array => Buffer.from(hex, 'hex');
const bytesOrNull = (hex: string | null): Uint8Array | null => (hex === null ? null : bytes(hex));

/** A copy of the text: a substring would keep the whole string in memory. */
const ownText = (text: string): string => Buffer.from(text, 'latin1').toString('latin1');

const summaryOf = ({ version, itemCount, versionSum }: SummaryRow): Summary => ({ version, itemCount, versionSum });

/** Shared, since nearly all tenants have this state. */
const ACTIVE = 'active';

/** The fields common to both kinds of rows. */
const partsOf = (row: TenantRow) => ({
  tenantId: row.id,
  state: row.state === ACTIVE ? ACTIVE : row.state,
  generation: row.generation,
  summary: summaryOf(row),
  pairRequests: row.pairs?.map(pairOf) ?? NO_PAIRS,
});

function snapshotOf(row: LoadedRow): ports.TenantSnapshot {
  const devices = row.devices === null ? [] : row.devices.split(',').map(deviceStateOf);
  const bins = row.bins === null ? [] : row.bins.split(',').map((id) => ({ id, open: true }));
  return { ...partsOf(row), devices, bins };
}

function deviceStateOf(text: string): ports.DeviceState {
  const [id = '', epoch, flag] = text.split(' ');
  return { id: ownText(id), tokenEpoch: Number(epoch), revoked: flag !== undefined, keysPurged: flag !== 'unpurged' };
}

const updateOf = (row: ReloadedRow, counts: BinCounts): ports.TenantUpdate => ({
  ...partsOf(row),
  devices: (row.devices ?? []).map(deviceOf),
  bins: (row.bins ?? []).map((bin) => binOf(bin, counts.get(bin.id))),
});

function deviceOf(device: DeviceJson): ports.TenantUpdate['devices'][number] {
  const { id, name, glyph, pairedAt, tokenEpoch, keysPurged } = device;
  return {
    id,
    tokenEpoch,
    revoked: device.revokedAt !== null,
    keysPurged,
    // Decoded lazily: only the frame of a new device contains it. A revoked one is not new, and was read without its key.
    get view() {
      return { id, name, glyph, pubkey: bytes(device.pubkey), pairedAt, cert: bytesOrNull(device.cert) };
    },
  };
}

function binOf(bin: BinJson, itemCount: number | undefined): ports.BinChange {
  const { id, slug, createdAt, updatedAt, closedAt, deletedAt } = bin;
  const changedAtGeneration = bin.changedAt;
  if (deletedAt !== null) return { id, changedAtGeneration, open: false, deletedAt, view: null };
  const count = itemCount === undefined ? {} : { itemCount };
  const view = { id, slug, meta: bytesOrNull(bin.meta), createdAt, updatedAt, ...count };
  return { id, changedAtGeneration, open: closedAt === null, deletedAt, view };
}

function pairOf(pair: PairJson): ports.PairRequest {
  const { existingDevice, pubkey, attestation, ...plain } = pair;
  const raw = { pubkey: bytes(pubkey), attestation: bytes(attestation) };
  return { existingDevice, frame: { type: 'pair_request', ...plain, ...raw } };
}
