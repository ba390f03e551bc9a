/** Loads tenants for the actors. Concurrent calls share a statement, so that a reconnect storm costs few. */
import type pg from 'pg';
import { Batcher, nextTurn } from '../../protocol/batcher.js';
import { delay, type Clock } from '../../protocol/clock.js';
import type { Summary } from '../../protocol/item.js';
import { ServiceError } from '../../protocol/errors.js';
import type { Glyph } from '../../protocol/requests.js';
import type {
  BinChange,
  KnownPosition,
  PairRequest,
  StoredPosition,
  TenantLoader,
  TenantSnapshot,
} from '../tenant/ports.js';
import { arrayOf, query } from './query.js';

/** Tenants in one statement. */
const BATCH_MAX = 500;

/** Devices that may share one read of heads. */
const HEADS_MAX = 5_000;
/**
 * From this many concurrent calls on, a reconnect storm is assumed: the next read waits so long, ms, for more of it. Longer
 * waits would slow the storm down: most clients open few sockets before the first is caught up (bench S6).
 */
const STORM = 16;
const STORM_PAUSE_MS = 75;
/**
 * Statements a second for devices that come one by one, after as many at once. A thousand that are sent here by an
 * instance that is drained would cost one each; so those of a moment share one.
 */
const STATEMENTS_PER_S = 40;
const SPACING_MS = 1_000 / STATEMENTS_PER_S;

/** The pause after a statement, ms, where statements come faster than that (GCRA). */
class Spacing {
  /** The time, ms, up to which the statements so far were due. */
  private dueAt = -Infinity;

  pause(now: number): number {
    this.dueAt = Math.max(this.dueAt, now - 1_000) + SPACING_MS;
    // At most that, also where the clock was set back.
    return Math.min(SPACING_MS, Math.max(0, this.dueAt - now));
  }
}

/** On a busy machine timers fire before pending input is read: a turn more for that. */
const wait = (clock: Clock, ms: number): Promise<void> => delay(clock, ms).then(nextTurn);

/** Deleted bins that are loaded, the latest ones, for their frames; clients that are further behind reload the list. */
const DELETED_BINS_MAX = 100;

/**
 * Everything of a tenant beside its items, in one statement and thus one snapshot. Rows of the lists travel as JSON,
 * bytes in them as hex. Where only the head is wanted (HEAD_ONLY), the lists are left out.
 */
const LOAD = `
  SELECT t.id, t.state, t.generation, t.head, t.item_count, t.version_sum,
    CASE WHEN k.known >= 0 THEN (SELECT json_agg(json_build_object(
        'id', d.id, 'name', d.name, 'glyph', d.glyph, 'pubkey', encode(d.pubkey, 'hex'), 'cert', encode(d.cert, 'hex'),
        'tokenEpoch', d.token_epoch, 'pairedAt', d.paired_at, 'revokedAt', d.revoked_at, 'keysPurged', d.keys_purged) ORDER BY d.paired_at, d.id)
      FROM devices d WHERE d.tenant_id = t.id) END AS devices,
    CASE WHEN k.known >= 0 THEN (SELECT json_agg(json_build_object(
        'id', b.id, 'slug', b.slug, 'meta', CASE WHEN b.deleted_at IS NULL THEN encode(b.meta, 'hex') END,
        'createdAt', b.created_at, 'updatedAt', b.updated_at, 'closedAt', b.closed_at, 'deletedAt', b.deleted_at,
        'changedAt', b.changed_at_generation, 'itemCount', CASE
          WHEN b.deleted_at IS NULL AND b.changed_at_generation > k.known THEN (
            SELECT count(*) FROM items i
            WHERE i.tenant_id = t.id AND i.version > 0 AND i.bin_id = b.id AND i.deleted_at IS NULL)
        END) ORDER BY b.created_at, b.id)
      FROM bins b WHERE b.tenant_id = t.id AND (b.deleted_at IS NULL OR b.id IN (
        SELECT g.id FROM bins g WHERE g.tenant_id = t.id AND g.deleted_at IS NOT NULL
        ORDER BY g.changed_at_generation DESC LIMIT ${DELETED_BINS_MAX}))) END AS bins,
    CASE WHEN k.known >= 0 THEN (SELECT json_agg(json_build_object(
        'lookupId', p.lookup_id, 'existingDevice', p.existing_device, 'expiresAt', p.expires_at, 'code', p.code,
        'deviceId', p.new_device, 'host', p.host, 'pubkey', encode(p.npk, 'hex'), 'name', p.name, 'glyph', p.glyph,
        'attestation', encode(p.attestation, 'hex')) ORDER BY p.lookup_id)
      FROM pair_sessions p WHERE p.tenant_id = t.id AND p.state = 'requested' AND p.expires_at > $2) END AS pairs
  FROM unnest($1::text[], $3::bigint[]) AS k(id, known) JOIN tenants t ON t.id = k.id`;

const HEADS = 'SELECT id, head, item_count, version_sum FROM tenants WHERE id = ANY ($1)';
/**
 * Returns differences only: most tenants have not changed between two comparisons. OFFSET keeps it a lookup for each: many
 * instances ask, each for a few thousand, and a hash of the whole table costs them the database.
 */
const POSITIONS = `
  SELECT k.id AS "tenantId", t.head, coalesce(t.generation, 0) AS generation
  FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(id, head, generation)
    LEFT JOIN LATERAL (SELECT id, head, generation FROM tenants WHERE id = k.id OFFSET 0) t ON true
  WHERE t.id IS NULL OR t.head > k.head OR t.generation > k.generation`;

/** In place of a known generation: the tenant is not loaded, or only its head is wanted. */
const NOT_KNOWN = Number.MAX_SAFE_INTEGER;
const HEAD_ONLY = -1;

interface SummaryRow {
  readonly id: string;
  readonly head: number;
  readonly item_count: number;
  readonly version_sum: number;
}

interface DeviceJson {
  readonly id: string;
  readonly name: string;
  readonly glyph: Glyph;
  readonly pubkey: string;
  readonly cert: string | null;
  readonly tokenEpoch: number;
  readonly pairedAt: number;
  readonly revokedAt: number | null;
  readonly keysPurged: boolean;
}

interface BinJson {
  readonly id: string;
  readonly slug: string;
  readonly meta: string | null;
  readonly createdAt: number;
  readonly updatedAt: number;
  readonly closedAt: number | null;
  readonly deletedAt: number | null;
  readonly changedAt: number;
  /**
   * Counted only for what the reader does not know, which is what its frame is about to tell: a first load counts
   * nothing.
   */
  readonly itemCount: number | null;
}

interface PairJson {
  readonly lookupId: string;
  readonly existingDevice: string;
  readonly expiresAt: number;
  readonly code: string;
  readonly deviceId: string;
  readonly host: string | null;
  readonly pubkey: string;
  readonly name: string;
  readonly glyph: Glyph;
  readonly attestation: string;
}

interface TenantRow extends SummaryRow {
  readonly state: string;
  readonly generation: number;
  readonly devices: readonly DeviceJson[] | null;
  readonly bins: readonly BinJson[] | null;
  readonly pairs: readonly PairJson[] | null;
}

/** A call: items of bins that changed above the generation `known` are counted. */
interface Load {
  readonly id: string;
  readonly known: number;
}

/** Reads tenants for the actors, many in one statement. */
export class PostgresTenantLoader implements TenantLoader {
  /** Reloads of known tenants. Counting their bins may take long: other calls do not wait for them. */
  private readonly reloads: Batcher<Load, TenantRow | undefined>;
  /** First loads, and heads: the calls of a reconnect storm. */
  private readonly arrivals: Batcher<Load, TenantRow | undefined>;

  /** @param clock decides which pairings have expired, and times the pauses in a reconnect storm. */
  constructor(
    private readonly pool: pg.Pool,
    clock: Clock,
  ) {
    this.reloads = new Batcher(BATCH_MAX, (loads) => this.read(loads, clock.now()));
    const spacing = new Spacing();
    this.arrivals = new Batcher(HEADS_MAX, (loads) => this.read(loads, clock.now()), {
      pause: (asked) => {
        const ms = spacing.pause(clock.now());
        return asked >= STORM ? wait(clock, STORM_PAUSE_MS) : ms > 0 ? wait(clock, ms) : undefined;
      },
    });
  }

  async load(tenantId: string, known: number = NOT_KNOWN): Promise<TenantSnapshot | undefined> {
    const row = await (known === NOT_KNOWN ? this.arrivals : this.reloads).ask({ id: tenantId, known });
    return row === undefined ? undefined : snapshotOf(row);
  }

  async head(tenantId: string): Promise<Summary> {
    const row = await this.arrivals.ask({ id: tenantId, known: HEAD_ONLY });
    if (row === undefined) throw new ServiceError('tenant_not_found');
    return summaryOf(row);
  }

  /** Rows of these tenants, in order. Duplicate ids are read once. */
  private async read(loads: readonly Load[], now: number): Promise<(TenantRow | undefined)[]> {
    const whole = new Map<string, number>();
    const heads = new Set<string>();
    for (const { id, known } of loads) {
      if (known === HEAD_ONLY) heads.add(id);
      else whole.set(id, Math.min(known, whole.get(id) ?? Infinity));
    }
    const found = new Map<string, TenantRow>();
    const take = (rows: readonly TenantRow[]): void => {
      for (const row of rows) found.set(row.id, row);
    };
    const { pool } = this;
    if (whole.size === 0)
      take(await query<TenantRow>(pool, { name: 'heads', text: HEADS, values: [arrayOf([...heads])] }));
    const wanted = [...whole];
    // Calls for a head alone share the first statement.
    const besides = [...heads].filter((id) => !whole.has(id));
    for (let at = 0; at < wanted.length; at += BATCH_MAX) {
      const some = wanted.slice(at, at + BATCH_MAX);
      const ids = arrayOf(some.map(([id]) => id).concat(at === 0 ? besides : []));
      const known = arrayOf(
        some.map(([, generation]) => generation).concat(at === 0 ? besides.map(() => HEAD_ONLY) : []),
      );
      take(await query<TenantRow>(pool, { name: 'tenants', text: LOAD, values: [ids, now, known] }));
    }
    return loads.map(({ id }) => found.get(id));
  }

  positions(known: readonly KnownPosition[]): Promise<readonly StoredPosition[]> {
    const ids = arrayOf(known.map(({ tenantId }) => tenantId));
    const heads = arrayOf(known.map(({ delivered }) => delivered));
    const generations = arrayOf(known.map(({ generation }) => generation));
    return query<StoredPosition>(this.pool, { text: POSITIONS, values: [ids, heads, generations] });
  }
}

/** Most tenants have none: they share it. */
const NO_PAIRS: readonly PairRequest[] = [];

const bytes = (hex: string): Uint8Array => Buffer.from(hex, 'hex');
const bytesOrNull = (hex: string | null): Uint8Array | null => (hex === null ? null : bytes(hex));

const summaryOf = (row: SummaryRow): Summary => ({
  version: row.head,
  itemCount: row.item_count,
  versionSum: row.version_sum,
});

function snapshotOf(row: TenantRow): TenantSnapshot {
  return {
    tenantId: row.id,
    state: row.state,
    generation: row.generation,
    summary: summaryOf(row),
    devices: (row.devices ?? []).map(deviceOf),
    bins: (row.bins ?? []).map(binOf),
    pairRequests: row.pairs?.map(pairOf) ?? NO_PAIRS,
  };
}

function deviceOf(device: DeviceJson): TenantSnapshot['devices'][number] {
  const { id, name, glyph, pairedAt, tokenEpoch, keysPurged } = device;
  return {
    id,
    tokenEpoch,
    revoked: device.revokedAt !== null,
    keysPurged,
    // Decoded lazily: needed for the frame of a new device only, never for a first load.
    get view() {
      return { id, name, glyph, pubkey: bytes(device.pubkey), pairedAt, cert: bytesOrNull(device.cert) };
    },
  };
}

function binOf(bin: BinJson): BinChange {
  const { id, slug, createdAt, updatedAt, closedAt, deletedAt } = bin;
  const changedAtGeneration = bin.changedAt;
  if (deletedAt !== null) return { id, changedAtGeneration, open: false, deletedAt, view: null };
  const count = bin.itemCount === null ? {} : { itemCount: bin.itemCount };
  const view = { id, slug, meta: bytesOrNull(bin.meta), createdAt, updatedAt, ...count };
  return { id, changedAtGeneration, open: closedAt === null, deletedAt, view };
}

function pairOf(pair: PairJson): PairRequest {
  const { existingDevice, pubkey, attestation, ...plain } = pair;
  const { lookupId, expiresAt } = pair;
  const raw = { pubkey: bytes(pubkey), attestation: bytes(attestation) };
  return { lookupId, existingDevice, expiresAt, frame: { type: 'pair_request', ...plain, ...raw } };
}
