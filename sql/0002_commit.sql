-- The commit of item changes (reference, HTTP, Writing an item). One call decides and applies a batch for many tenants:
-- `insert_changes` the plain new items, `commit_changes` everything else.

-- Device ids in a packed key list.
CREATE FUNCTION key_devices(packed bytea) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  at integer := 1;
  found text[] := '{}';
BEGIN
  WHILE at <= octet_length(packed) LOOP
    found := found || convert_from(substr(packed, at, 26), 'UTF8');
    at := at + 28 + get_byte(packed, at + 25) * 256 + get_byte(packed, at + 26);
  END LOOP;
  RETURN found;
END $$;

-- The packed key list without one device's entry.
CREATE FUNCTION drop_key(packed bytea, device text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  at integer := 1;
  size integer;
  kept bytea := '';
BEGIN
  WHILE at <= octet_length(packed) LOOP
    size := 28 + get_byte(packed, at + 25) * 256 + get_byte(packed, at + 26);
    IF convert_from(substr(packed, at, 26), 'UTF8') <> device THEN
      kept := kept || substr(packed, at, size);
    END IF;
    at := at + size;
  END LOOP;
  RETURN kept;
END $$;

-- A field of a packed row: 4 bytes of length, then the bytes; length -1 for NULL. Inlined by the planner.
CREATE FUNCTION lp(field bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(int4send(octet_length(field)) || field, '\xffffffff'::bytea)
$$;

-- A stored item as one byte string, read by src/postgres/packing.ts: numbers, names, then its bytes as a change's lie (see
-- `commit_changes`, from the nonce on). A page of items comes as one value: a driver's work per field and row is most of the
-- cost of a replay otherwise. Identifiers hold no backslash, so `decode` gives their bytes. It takes columns, not the row: a
-- whole row would fetch its large values before the page's size is known.
CREATE FUNCTION packed_item(
  version bigint, ts bigint, deleted_at bigint, id text, bin_id text, type text, sender_device text, changed_by text,
  blob_ref text, nonce bytea, sig bytea, master bytea, blob_nonce bytea, blob_keys bytea, keys bytea, ct bytea
) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT int8send(version) || int8send(coalesce(ts, -1)) || int8send(coalesce(deleted_at, -1))
    || int4send((nonce IS NOT NULL)::integer + 2 * (sig IS NOT NULL)::integer + 4 * (master IS NOT NULL)::integer
      + 8 * (blob_nonce IS NOT NULL)::integer + 16 * (ct IS NOT NULL)::integer)
    || int4send(coalesce(octet_length(ct), 0)) || int4send(coalesce(octet_length(keys), 0))
    || int4send(coalesce(octet_length(blob_keys), 0))
    || decode(id, 'escape') || lp(decode(bin_id, 'escape')) || lp(decode(type, 'escape'))
    || lp(decode(sender_device, 'escape')) || lp(decode(changed_by, 'escape')) || lp(decode(blob_ref, 'escape'))
    || coalesce(nonce, decode(repeat('00', 24), 'hex')) || coalesce(sig, decode(repeat('00', 32), 'hex'))
    || coalesce(master, decode(repeat('00', 72), 'hex')) || coalesce(blob_nonce, decode(repeat('00', 24), 'hex'))
    || (coalesce(ct, '') || coalesce(keys, '') || coalesce(blob_keys, ''))
$$;

-- insert_changes: the common case of a batch, done in a third of the work: tenants whose every change is a write of an inline
-- item that is not stored yet, without a condition that forbids that. Per tenant all of its changes are inserted, or none
-- is: where an item is stored already, the generation is another, the cap would be passed or the tenant is gone, nothing
-- is done and `heads` has NULL in its place. Then `commit_changes` decides.
--
-- Per tenant (arrays of one length, in id order, which is the order of their locks): p_tenants; p_generation what its changes
-- were checked against; p_count how many they are; p_size what they add to the storage.
-- Per change (arrays of one length): p_tenant index into p_tenants (1-based), p_rank its place among its tenant's changes
-- (1-based), and the columns and places of its bytes as in `commit_changes`.
-- Returns per tenant head, count and version sum after its changes: version of a change = head - count + rank.
--
-- That an item is not stored is seen without a lock. Whoever stores it in between makes the insert fail at the primary key
-- (unique_violation), and nothing is done. Generation and cap are looked at by the UPDATE, which holds the row.
CREATE FUNCTION insert_changes(
  p_cap bigint, p_tenants text[], p_generation bigint[], p_count integer[], p_size bigint[],
  p_tenant integer[], p_rank integer[], p_id text[], p_device text[], p_bin text[], p_type text[], p_ts bigint[],
  p_has integer[], p_at integer[], p_ct integer[], p_keys integer[], p_bytes bytea,
  OUT heads bigint[], OUT item_counts bigint[], OUT version_sums bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_stored integer[];
  v_counted integer[];
BEGIN
  SELECT array_agg(u.tenant) INTO v_stored FROM unnest(p_tenant, p_id) u (tenant, id)
    WHERE EXISTS (SELECT 1 FROM items i WHERE i.tenant_id = p_tenants[u.tenant] AND i.id = u.id OFFSET 0);

  WITH counted AS (
    -- The sum of `count` versions that follow `head`.
    UPDATE tenants t SET head = t.head + w.count, item_count = t.item_count + w.count,
      version_sum = t.version_sum + t.head * w.count + w.count * (w.count + 1) / 2, storage_bytes = t.storage_bytes + w.size
    FROM unnest(p_tenants, p_generation, p_count, p_size) WITH ORDINALITY w (id, generation, count, size, n)
    WHERE t.id = w.id AND t.generation = w.generation AND (p_cap = 0 OR t.storage_bytes + w.size <= p_cap)
      AND (v_stored IS NULL OR w.n <> ALL (v_stored))
    RETURNING w.n, t.head, t.item_count, t.version_sum
  )
  SELECT array_agg(c.n), array_agg(c.head), array_agg(c.item_count), array_agg(c.version_sum)
    INTO v_counted, heads, item_counts, version_sums FROM counted c;

  -- Each tenant's at its place. Mostly all are counted, in order, and nothing has to be moved.
  IF v_counted IS DISTINCT FROM ARRAY(SELECT generate_series(1, cardinality(p_tenants))) THEN
    SELECT array_agg(c.head ORDER BY n), array_agg(c.item_count ORDER BY n), array_agg(c.version_sum ORDER BY n)
      INTO heads, item_counts, version_sums
      FROM generate_series(1, cardinality(p_tenants)) n
      LEFT JOIN unnest(v_counted, heads, item_counts, version_sums) c (n, head, item_count, version_sum) USING (n);
  END IF;

  INSERT INTO items (tenant_id, id, version, bin_id, type, ts, sender_device, changed_by, write_hash, nonce, sig, master,
    ct, keys, bytes)
  SELECT p_tenants[u.tenant], u.id, heads[u.tenant] - p_count[u.tenant] + u.rank, u.bin, u.type, u.ts, u.device, u.device,
    substr(p_bytes, u.at + 1, 32), substr(p_bytes, u.at + 33, 24),
    CASE WHEN u.has & 2 > 0 THEN substr(p_bytes, u.at + 57, 32) END,
    CASE WHEN u.has & 4 > 0 THEN substr(p_bytes, u.at + 89, 72) END,
    substr(p_bytes, u.at + 185, u.ct), substr(p_bytes, u.at + 185 + u.ct, u.keys), u.ct + u.keys
  FROM unnest(p_tenant, p_rank, p_id, p_device, p_bin, p_type, p_ts, p_has, p_at, p_ct, p_keys)
    AS u (tenant, rank, id, device, bin, type, ts, has, at, ct, keys)
  WHERE heads[u.tenant] IS NOT NULL;
END $$;

-- commit_changes: at most one change per (tenant, id) and one write per (tenant, blob).
--
-- p_tenants: the tenants of the batch.
-- Per change (arrays of one length): p_tenant index into p_tenants (1-based); p_generation what it was checked against;
-- p_kind w write, d delete, m move;
-- p_refused: 0 no; 2 the server would refuse it, so apply nothing, but still answer a retry of what is stored; 1 the same, but
-- only for the bin it names: a re-wrap of an item that is in another bin does not apply that (RETRY-04);
-- p_at, p_ct, p_keys, p_blob_keys: where its bytes begin in p_bytes (0-based), and the lengths of the three long ones;
-- p_has: which fixed fields are there (1 nonce, 2 sig, 4 master, 8 blob nonce, 16 inline payload).
-- A change's bytes: hash 32, nonce 24, sig 32, master 72, blob nonce 24 (absent ones zero), ct, keys, blob keys.
--
-- Returns one row per change: verdict, the item's version and ts, the tenant's head and sums after the batch, and the
-- packed item after a re-wrap or a move, of which the caller knows only a part.
-- Verdicts: stale (check again against the current generation), same (nothing changed), insert, replace, rewrap, delete, move,
-- conflict, missing, refused, no_blob, cap, alone (would pass the cap together with others: ask again alone).
--
-- The first statement takes the locks. Only the second one decides: at READ COMMITTED its snapshot is taken after the
-- locks are held, so it sees what every earlier holder committed. In one statement two retries would both win.
CREATE FUNCTION commit_changes(
  p_tenants text[], p_now bigint, p_cap bigint,
  p_tenant integer[], p_generation bigint[], p_kind text[], p_id text[], p_device text[], p_bin text[], p_type text[], p_ts bigint[],
  p_if_version bigint[], p_refused integer[], p_blob_ref text[], p_has integer[],
  p_at integer[], p_ct integer[], p_keys integer[], p_blob_keys integer[], p_bytes bytea
) RETURNS TABLE (
  n bigint, verdict text, version bigint, ts bigint,
  head bigint, item_count bigint, version_sum bigint, generation bigint, stored bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = ANY (p_tenants) ORDER BY t.id FOR UPDATE;

  -- Small columns only: payload bytes are cut out of p_bytes where they are compared or stored, once. One chain without
  -- joins between its parts: a generic plan knows nothing of array lengths and would join them row by row.
  RETURN QUERY
  WITH known AS MATERIALIZED (
    SELECT u.n, p_tenants[u.tenant] AS tenant_id, u.generation, u.kind, u.id, u.device, u.bin_id, u.type, u.ts,
      u.if_version, u.refused, u.blob_ref, u.has, u.at, u.ct, u.keys, u.blob_keys, u.ct + u.keys + u.blob_keys AS bytes,
      t.generation AS current_generation, t.head, t.item_count, t.version_sum, t.storage_bytes,
      i.id AS old_id, i.version AS old_version, i.ts AS old_ts, i.bytes AS old_bytes, i.deleted_at AS old_deleted_at,
      i.blob_ref AS old_blob_ref, i.type IS NULL AS purged, i.bin_id = u.bin_id AS same_bin,
      -- At a multiple of 32: between two hashes nothing is found by accident.
      position(substr(p_bytes, u.at + 1, 32) IN i.write_hash) % 32 = 1 AS same_write,
      u.kind = 'm' AND i.sig IS NOT DISTINCT FROM substr(p_bytes, u.at + 57, 32) AS same_sig,
      CASE WHEN u.kind = 'w' AND i.id IS NOT NULL THEN
        (i.type, i.ts, i.blob_ref, i.ct, i.nonce, i.blob_nonce) IS NOT DISTINCT FROM (u.type, u.ts, u.blob_ref,
          CASE WHEN u.has & 16 > 0 THEN substr(p_bytes, u.at + 185, u.ct) END,
          CASE WHEN u.has & 1 > 0 THEN substr(p_bytes, u.at + 33, 24) END,
          CASE WHEN u.has & 8 > 0 THEN substr(p_bytes, u.at + 161, 24) END)
      END AS same_content,
      -- Does the write bring a wrap that is not stored yet? Only asked where nothing else differs.
      i.master, i.keys AS old_keys, i.blob_keys AS old_blob_keys
    FROM unnest(p_tenant, p_generation, p_kind, p_id, p_device, p_bin, p_type, p_ts, p_if_version, p_refused, p_blob_ref,
      p_has, p_at, p_ct, p_keys, p_blob_keys) WITH ORDINALITY
      AS u(tenant, generation, kind, id, device, bin_id, type, ts, if_version, refused, blob_ref,
        has, at, ct, keys, blob_keys, n)
    LEFT JOIN tenants t ON t.id = p_tenants[u.tenant]
    -- OFFSET keeps this a lookup per change: joined, a plan made on the statistics of an empty table reads all of it.
    LEFT JOIN LATERAL (
      SELECT * FROM items WHERE tenant_id = p_tenants[u.tenant] AND id = u.id OFFSET 0
    ) i ON true
  ), ruled AS MATERIALIZED (
    -- The order of decisions, RETRY-01 to 06; the first that fits. Materialized, as the next step: inlined, the decision would
    -- be written out and prepared again for every mention of its result.
    SELECT k.*, CASE
      WHEN k.current_generation IS DISTINCT FROM k.generation THEN 'stale'
      WHEN k.kind = 'w' THEN CASE
        WHEN k.old_id IS NULL THEN CASE
          WHEN coalesce(k.if_version, 0) <> 0 THEN 'conflict'
          WHEN k.refused > 0 THEN 'refused'
          ELSE 'insert' END
        WHEN k.same_write THEN 'same'
        WHEN k.old_deleted_at IS NOT NULL THEN 'conflict'
        WHEN k.if_version IS NOT NULL AND k.if_version <> k.old_version THEN 'conflict'
        WHEN k.same_content THEN CASE
          WHEN NOT (
            (k.master IS NULL AND k.has & 4 > 0)
            OR (k.keys > 0 AND NOT key_devices(substr(p_bytes, k.at + 185 + k.ct, k.keys))
              <@ key_devices(coalesce(k.old_keys, '')))
            OR (k.same_bin AND k.blob_keys > 0 AND NOT key_devices(substr(p_bytes, k.at + 185 + k.ct + k.keys, k.blob_keys))
              <@ key_devices(coalesce(k.old_blob_keys, '')))
          ) THEN 'same'
          WHEN k.refused = 2 OR (k.refused = 1 AND k.same_bin) THEN 'refused'
          ELSE 'rewrap' END
        WHEN k.ts <= k.old_ts THEN 'conflict'
        WHEN k.refused > 0 THEN 'refused'
        ELSE 'replace' END
      WHEN k.old_id IS NULL OR k.purged THEN 'missing'
      WHEN k.kind = 'd' THEN CASE
        WHEN k.old_deleted_at IS NOT NULL THEN 'same'
        WHEN k.refused > 0 THEN 'refused'
        ELSE 'delete' END
      WHEN k.old_deleted_at IS NOT NULL THEN 'conflict'
      WHEN k.same_bin AND k.same_sig THEN 'same'
      WHEN k.if_version <> k.old_version THEN 'conflict'
      WHEN k.refused > 0 THEN 'refused'
      ELSE 'move' END AS rule
    FROM known k
  ), weighed AS MATERIALIZED (
    SELECT r.*, CASE
        WHEN r.rule NOT IN ('insert', 'replace') OR r.blob_ref IS NULL OR EXISTS (
          SELECT 1 FROM blobs b WHERE b.tenant_id = r.tenant_id AND b.ref = r.blob_ref AND b.state = 'ready'
            AND (b.item_id IS NULL OR b.item_id = r.id)
        ) THEN r.rule
        ELSE 'no_blob' END AS allowed,
      CASE
        WHEN r.rule = 'delete' THEN -r.old_bytes
        WHEN r.rule = 'insert' THEN r.bytes
        WHEN r.rule = 'replace' OR r.rule = 'rewrap' AND r.same_bin THEN r.bytes - r.old_bytes
        -- Of an item that was moved the blob's keys stay as they are.
        WHEN r.rule = 'rewrap' THEN r.ct + r.keys + coalesce(octet_length(r.old_blob_keys), 0) - r.old_bytes
        ELSE 0 END AS grows
    FROM ruled r
  ), capped AS (
    SELECT w.*, CASE
        WHEN p_cap = 0 OR w.grows <= 0 OR w.allowed NOT IN ('insert', 'replace', 'rewrap') THEN w.allowed
        WHEN w.storage_bytes + sum(greatest(w.grows, 0))
          FILTER (WHERE w.allowed IN ('insert', 'replace', 'rewrap')) OVER of_tenant <= p_cap THEN w.allowed
        WHEN w.storage_bytes + w.grows > p_cap THEN 'cap'
        ELSE 'alone' END AS verdict
    FROM weighed w
    WINDOW of_tenant AS (PARTITION BY w.tenant_id)
  ), decided AS MATERIALIZED (
    SELECT c.*, c.verdict IN ('insert', 'replace', 'rewrap', 'delete', 'move') AS applies,
      c.head + count(*) FILTER (WHERE c.verdict IN ('insert', 'replace', 'rewrap', 'delete', 'move'))
        OVER (PARTITION BY c.tenant_id ORDER BY c.n) AS version
    FROM capped c
  ), inserted AS (
    INSERT INTO items (tenant_id, id, version, bin_id, type, ts, sender_device, changed_by, write_hash,
      nonce, sig, master, ct, keys, blob_ref, blob_nonce, blob_keys, bytes)
    SELECT d.tenant_id, d.id, d.version, d.bin_id, d.type, d.ts, d.device, d.device, substr(p_bytes, d.at + 1, 32),
      CASE WHEN d.has & 1 > 0 THEN substr(p_bytes, d.at + 33, 24) END,
      CASE WHEN d.has & 2 > 0 THEN substr(p_bytes, d.at + 57, 32) END,
      CASE WHEN d.has & 4 > 0 THEN substr(p_bytes, d.at + 89, 72) END,
      CASE WHEN d.has & 16 > 0 THEN substr(p_bytes, d.at + 185, d.ct) END,
      CASE WHEN d.has & 16 > 0 THEN substr(p_bytes, d.at + 185 + d.ct, d.keys) END,
      d.blob_ref,
      CASE WHEN d.has & 8 > 0 THEN substr(p_bytes, d.at + 161, 24) END,
      CASE WHEN d.has & 8 > 0 THEN substr(p_bytes, d.at + 185 + d.ct + d.keys, d.blob_keys) END,
      d.bytes
    FROM decided d WHERE d.verdict = 'insert'
  ), replaced AS (
    UPDATE items i SET version = d.version, bin_id = d.bin_id, type = d.type, ts = d.ts,
      sender_device = d.device, changed_by = d.device, write_hash = substr(p_bytes, d.at + 1, 32),
      nonce = CASE WHEN d.has & 1 > 0 THEN substr(p_bytes, d.at + 33, 24) END,
      sig = CASE WHEN d.has & 2 > 0 THEN substr(p_bytes, d.at + 57, 32) END,
      master = CASE WHEN d.has & 4 > 0 THEN substr(p_bytes, d.at + 89, 72) END,
      ct = CASE WHEN d.has & 16 > 0 THEN substr(p_bytes, d.at + 185, d.ct) END,
      keys = CASE WHEN d.has & 16 > 0 THEN substr(p_bytes, d.at + 185 + d.ct, d.keys) END,
      blob_ref = d.blob_ref,
      blob_nonce = CASE WHEN d.has & 8 > 0 THEN substr(p_bytes, d.at + 161, 24) END,
      blob_keys = CASE WHEN d.has & 8 > 0 THEN substr(p_bytes, d.at + 185 + d.ct + d.keys, d.blob_keys) END,
      bytes = d.bytes
    FROM decided d
    WHERE d.verdict = 'replace' AND i.tenant_id = d.tenant_id AND i.id = d.id
  ), rewrapped AS (
    -- The sender stays. A wrap is never lost. `sig` covers the bin and the blob's keys, so where the item was moved
    -- meanwhile the stored ones stay: the new ones would not verify. Each of these writes may be sent again, with the
    -- version that it was made against, which is no longer the current one: so the hash of the content and those of the last
    -- 31 re-wraps stay. A device that sends an older one again was away for 31 joins of others.
    UPDATE items i SET version = d.version, changed_by = d.device, bytes = i.bytes + d.grows,
      write_hash = substr(i.write_hash, 1, 32) || substr(i.write_hash, greatest(33, octet_length(i.write_hash) - 959))
        || substr(p_bytes, d.at + 1, 32),
      keys = CASE WHEN d.has & 16 > 0 THEN substr(p_bytes, d.at + 185 + d.ct, d.keys) END,
      master = CASE WHEN d.has & 4 > 0 THEN substr(p_bytes, d.at + 89, 72) ELSE i.master END,
      sig = CASE WHEN d.same_bin AND d.has & 2 > 0 THEN substr(p_bytes, d.at + 57, 32) ELSE i.sig END,
      blob_keys = CASE WHEN d.same_bin AND d.has & 8 > 0
        THEN substr(p_bytes, d.at + 185 + d.ct + d.keys, d.blob_keys) ELSE i.blob_keys END
    FROM decided d
    WHERE d.verdict = 'rewrap' AND i.tenant_id = d.tenant_id AND i.id = d.id
    RETURNING d.n, packed_item(i.version, i.ts, i.deleted_at, i.id, i.bin_id, i.type, i.sender_device, i.changed_by,
      i.blob_ref, i.nonce, i.sig, i.master, i.blob_nonce, i.blob_keys, i.keys, i.ct) AS stored
  ), moved AS (
    UPDATE items i SET version = d.version, changed_by = d.device, bin_id = d.bin_id, sig = substr(p_bytes, d.at + 57, 32)
    FROM decided d
    WHERE d.verdict = 'move' AND i.tenant_id = d.tenant_id AND i.id = d.id
    RETURNING d.n, packed_item(i.version, i.ts, i.deleted_at, i.id, i.bin_id, i.type, i.sender_device, i.changed_by,
      i.blob_ref, i.nonce, i.sig, i.master, i.blob_nonce, i.blob_keys, i.keys, i.ct) AS stored
  ), deleted AS (
    UPDATE items i SET version = d.version, changed_by = d.device, deleted_at = p_now, bytes = 0,
      sig = CASE WHEN d.has & 2 > 0 THEN substr(p_bytes, d.at + 57, 32) END,
      ct = NULL, nonce = NULL, master = NULL, keys = NULL, blob_ref = NULL, blob_nonce = NULL, blob_keys = NULL
    FROM decided d
    WHERE d.verdict = 'delete' AND i.tenant_id = d.tenant_id AND i.id = d.id
  ), blobs_taken AS (
    UPDATE blobs b SET item_id = d.id
    FROM decided d
    WHERE d.verdict IN ('insert', 'replace') AND b.tenant_id = d.tenant_id AND b.ref = d.blob_ref
  ), blobs_left AS (
    -- Its bytes count until the object is gone (reference, Blobs).
    UPDATE blobs b SET state = 'orphan'
    FROM decided d
    WHERE d.verdict IN ('replace', 'delete') AND b.tenant_id = d.tenant_id AND b.ref = d.old_blob_ref
      AND (d.verdict = 'delete' OR b.ref IS DISTINCT FROM d.blob_ref)
  ), sums AS MATERIALIZED (
    SELECT d.tenant_id, max(d.version) AS head, sum(d.grows) AS grows,
      count(*) FILTER (WHERE d.verdict = 'insert') - count(*) FILTER (WHERE d.verdict = 'delete') AS items,
      sum(CASE d.verdict WHEN 'insert' THEN d.version WHEN 'delete' THEN -d.old_version ELSE d.version - d.old_version END)
        AS versions
    FROM decided d WHERE d.applies GROUP BY d.tenant_id
  ), counted AS (
    UPDATE tenants t SET head = s.head, item_count = t.item_count + s.items, version_sum = t.version_sum + s.versions,
      storage_bytes = t.storage_bytes + s.grows
    FROM sums s WHERE t.id = s.tenant_id
  )
  SELECT d.n, d.verdict, CASE WHEN d.applies THEN d.version ELSE d.old_version END, d.old_ts,
    max(d.version) OVER of_tenant,
    (d.item_count + sum(CASE d.verdict WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 ELSE 0 END) OVER of_tenant)::bigint,
    (d.version_sum + sum(CASE d.verdict
      WHEN 'insert' THEN d.version WHEN 'delete' THEN -d.old_version
      WHEN 'replace' THEN d.version - d.old_version WHEN 'rewrap' THEN d.version - d.old_version
      WHEN 'move' THEN d.version - d.old_version ELSE 0 END) OVER of_tenant)::bigint,
    d.current_generation, kept.stored
  FROM decided d
  LEFT JOIN (SELECT n, stored FROM rewrapped UNION ALL SELECT n, stored FROM moved) kept ON kept.n = d.n
  WINDOW of_tenant AS (PARTITION BY d.tenant_id)
  ORDER BY d.n;
END $$;

-- The epoch of this database's history. Compared at every connection: another cluster, timeline or database than
-- the one the epoch was made for means the history may have been rewound, so it gets the fresh epoch offered.
CREATE FUNCTION claim_epoch(p_fresh text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_system text := (SELECT system_identifier::text FROM pg_control_system());
  -- The write position's file name begins with the timeline, already right after a promotion.
  v_timeline text := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
  v_database bigint := (SELECT oid::bigint FROM pg_database WHERE datname = current_database());
  v_epoch text;
BEGIN
  SELECT epoch INTO v_epoch FROM installation
    WHERE system_identifier = v_system AND timeline = v_timeline AND database_oid = v_database;
  IF FOUND THEN
    RETURN v_epoch;
  END IF;
  INSERT INTO installation (epoch, system_identifier, timeline, database_oid)
    VALUES (p_fresh, v_system, v_timeline, v_database)
  ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch, system_identifier = excluded.system_identifier,
      timeline = excluded.timeline, database_oid = excluded.database_oid
    WHERE (installation.system_identifier, installation.timeline, installation.database_oid)
      IS DISTINCT FROM (excluded.system_identifier, excluded.timeline, excluded.database_oid);
  SELECT epoch INTO v_epoch FROM installation;
  RETURN v_epoch;
END $$;

-- Removes a revoked device's entries from stored inline keys, up to p_limit items above p_after in id order.
-- No new version: nothing changes for anybody who may read. Returns the last id looked at, or null when all are done;
-- then the device is marked as purged.
CREATE FUNCTION purge_device_keys(p_tenant text, p_device text, p_after text, p_limit integer)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_last text;
  v_freed bigint;
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT EXISTS (SELECT 1 FROM devices WHERE tenant_id = p_tenant AND id = p_device AND revoked_at IS NOT NULL) THEN
    RETURN NULL;
  END IF;
  SELECT max(page.id) INTO v_last
    FROM (SELECT id FROM items WHERE tenant_id = p_tenant AND id > p_after ORDER BY id LIMIT p_limit) page;
  IF v_last IS NULL THEN
    UPDATE devices SET keys_purged = true WHERE tenant_id = p_tenant AND id = p_device;
    RETURN NULL;
  END IF;
  WITH shorter AS (
    SELECT id, drop_key(keys, p_device) AS kept, octet_length(keys) AS before FROM items
    WHERE tenant_id = p_tenant AND id > p_after AND id <= v_last AND p_device = ANY (key_devices(keys))
  ), done AS (
    UPDATE items i SET keys = s.kept, bytes = i.bytes - (s.before - octet_length(s.kept))
    FROM shorter s WHERE i.tenant_id = p_tenant AND i.id = s.id
  )
  SELECT sum(before - octet_length(kept)) INTO v_freed FROM shorter;
  UPDATE tenants SET storage_bytes = storage_bytes - v_freed WHERE id = p_tenant AND v_freed > 0;
  RETURN v_last;
END $$;
