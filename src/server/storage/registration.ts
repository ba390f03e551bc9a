/** The rows of the running instances: the status each reports with its heartbeat, and the operator's orders to it. */
import type pg from 'pg';
import { MINUTE_MS } from '../../protocol/clock.js';

/** An instance without a heartbeat for this time, ms, may have died without announcing its last changes. */
const SILENT_MS = 9_000;
/** After this time, ms, an instance counts as gone, together with its sockets. */
export const SEEN_MS = 15_000;
/** After this time, ms, its row is removed. */
const FORGET_MS = 10 * MINUTE_MS;

/** The time by the database's clock, ms since 1970: instances' clocks may differ. */
export const DATABASE_NOW = '(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

/** Status that an instance reports for the operator. */
export interface InstanceStatus {
  readonly host: string;
  readonly pid: number;
  /** 0: it does not listen yet. */
  readonly port: number;
  readonly version: string;
  readonly sockets: number;
  readonly draining: boolean;
  /** Fingerprint of its signing keys: instances with different ones refuse each other's tokens. */
  readonly secrets: string;
}

/** The operator's order to move the sockets to other instances. */
export interface DrainOrder {
  /** Over how long, ms. */
  readonly ms: number;
  /** The other processes on its port continue. */
  readonly alone: boolean;
}

/** The result of a heartbeat. */
export interface Registered extends DrainOrder {
  readonly fresh: boolean;
  /** The other instances that are up. */
  readonly others: readonly string[];
  /** Those of them whose signing keys are different. */
  readonly mismatched: readonly string[];
  /** Time of the last heartbeat of an instance that may be dead, by the database's clock. */
  readonly silent: number | null;
  readonly asked_at: number | null;
}

/** The fault of instances that cannot serve each other's devices. */
export const otherSecrets = (ids: readonly string[]): Error =>
  new Error(
    `Instances on this database have another TOKEN_SECRET or BLOB_URL_SECRET, and refuse the tokens or blob URLs of this ` +
      `one: ${ids.join(', ')}. Set the same ones on all; service-admin instances shows which have the same.`,
  );

const REGISTER = `
  WITH now AS (SELECT ${DATABASE_NOW} AS ms),
  gone AS (DELETE FROM instances i USING now WHERE i.seen_at < now.ms - ${FORGET_MS} RETURNING i.id),
  left_over AS (DELETE FROM presence p USING gone WHERE p.instance_id = gone.id),
  mine AS (
    INSERT INTO instances AS i (id, seen_at, host, pid, port, version, sockets, draining, secrets)
    SELECT $1, now.ms, $3, $4, $5, $6, $7, $8, $9 FROM now
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, host = excluded.host, pid = excluded.pid,
      port = excluded.port, version = excluded.version, sockets = excluded.sockets, draining = excluded.draining,
      secrets = excluded.secrets
    RETURNING xmax = 0 AS fresh, drain_asked_at, drain_ms, drain_alone
  ),
  notified AS (SELECT pg_notify($10, $2))
  SELECT mine.fresh, mine.drain_asked_at AS asked_at, coalesce(mine.drain_ms, 0) AS ms,
    coalesce(mine.drain_alone, false) AS alone, o.others, o.mismatched, o.silent
  FROM mine, notified, (
    SELECT coalesce(array_agg(i.id), '{}') AS others,
      -- An older version says nothing of its secrets.
      coalesce(array_agg(i.id) FILTER (WHERE i.secrets NOT IN ('', $9)), '{}') AS mismatched,
      max(i.seen_at) FILTER (WHERE i.seen_at < now.ms - ${SILENT_MS}) AS silent
    FROM instances i, now WHERE i.id <> $1 AND i.seen_at >= now.ms - ${SEEN_MS}
  ) AS o`;

/**
 * The statement of a heartbeat, which also reads the operator's orders. `signed`: the heartbeat as a notification, for
 * those who listen on `channel`.
 */
export const registration = (
  { host, pid, port, version, sockets, draining, secrets }: InstanceStatus,
  { id, channel, signed }: { readonly id: string; readonly channel: string; readonly signed: string },
): pg.QueryConfig => ({
  text: REGISTER,
  values: [id, signed, host, pid, port, version, sockets, draining, secrets, channel],
});
