-- The nightly jobs (reference, HTTP, What the server stores). Each call does at most p_limit rows and gives their
-- number, so that no lock is held for long and a night that is cut off goes on where it stopped.

-- When the jobs were last through, so that a night that was slept through is made up for.
CREATE TABLE job_runs (
  name text PRIMARY KEY,
  finished_at bigint NOT NULL
);

-- Deletes that are not hard yet.
CREATE INDEX items_soft_deleted ON items (deleted_at) WHERE deleted_at IS NOT NULL AND type IS NOT NULL;

-- Hard delete: what is left is the tombstone (id, bin, version, time, delete tag), by which a device that was away for
-- a year still learns of it. The tenants' locks are taken first, as for every change of items; no version rises, since
-- nothing changes that a device may read.
CREATE FUNCTION empty_deleted(p_before bigint, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_tenants text[];
  v_done integer;
BEGIN
  SELECT array_agg(DISTINCT old.tenant_id) INTO v_tenants FROM (
    SELECT i.tenant_id FROM items i WHERE i.deleted_at < p_before AND i.type IS NOT NULL ORDER BY i.deleted_at LIMIT p_limit
  ) old;
  PERFORM 1 FROM tenants t WHERE t.id = ANY (v_tenants) ORDER BY t.id FOR UPDATE;
  WITH old AS (
    SELECT i.tenant_id, i.id FROM items i
    WHERE i.deleted_at < p_before AND i.type IS NOT NULL AND i.tenant_id = ANY (v_tenants)
    ORDER BY i.deleted_at LIMIT p_limit
  )
  UPDATE items i SET type = NULL, ts = NULL, sender_device = NULL, changed_by = NULL, write_hash = NULL
    FROM old WHERE i.tenant_id = old.tenant_id AND i.id = old.id;
  GET DIAGNOSTICS v_done = ROW_COUNT;
  RETURN v_done;
END $$;

-- What has run out: pairings, challenges, tickets, counts of limits, changes of host names that every instance has read.
CREATE FUNCTION clear_expired(p_before bigint, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_done integer := 0;
  v_part integer;
BEGIN
  DELETE FROM pair_sessions WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM pair_sessions s WHERE s.expires_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  v_done := v_done + v_part;
  DELETE FROM challenges WHERE ctid = ANY (ARRAY(
    SELECT c.ctid FROM challenges c WHERE c.expires_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  v_done := v_done + v_part;
  DELETE FROM spent_tickets WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM spent_tickets s WHERE s.expires_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  v_done := v_done + v_part;
  DELETE FROM rate_limits WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM rate_limits r WHERE r.expires_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  v_done := v_done + v_part;
  DELETE FROM host_changes WHERE ctid = ANY (ARRAY(
    SELECT h.ctid FROM host_changes h WHERE h.at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  RETURN v_done + v_part;
END $$;

-- Revoked devices whose entries are still in stored keys: what the purge that began with the revocation left behind.
CREATE FUNCTION devices_to_purge(p_limit integer) RETURNS TABLE (tenant_id text, device_id text) LANGUAGE sql STABLE AS $$
  SELECT d.tenant_id, d.id FROM devices d WHERE d.revoked_at IS NOT NULL AND NOT d.keys_purged LIMIT p_limit
$$;
CREATE INDEX devices_to_purge ON devices (tenant_id) WHERE revoked_at IS NOT NULL AND NOT keys_purged;
