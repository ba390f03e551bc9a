-- Bins (reference, HTTP, Bins). Rules of locks and verdicts: see 0003. `p_by` is the device that asks: one that was revoked
-- meanwhile may do nothing any more.

-- A new bin. The id of a deleted one may be used again; its row lives on. `bin`: as it is after `ok`.
CREATE FUNCTION create_bin(
  p_tenant text, p_bin text, p_by text, p_slug text, p_meta bytea, p_max integer, p_now bigint,
  OUT verdict text, OUT bin bins
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_generation bigint;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    verdict := 'tenant_not_found';
    RETURN;
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  IF EXISTS (SELECT 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin AND b.deleted_at IS NULL) THEN
    verdict := 'conflict';
    RETURN;
  END IF;
  IF EXISTS (SELECT 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.slug = p_slug AND b.deleted_at IS NULL) THEN
    verdict := 'slug_taken';
    RETURN;
  END IF;
  IF (SELECT count(*) FROM bins b WHERE b.tenant_id = p_tenant AND b.deleted_at IS NULL) >= p_max THEN
    verdict := 'bin_limit';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO bins AS b (tenant_id, id, slug, meta, created_at, updated_at, changed_at_generation)
    VALUES (p_tenant, p_bin, p_slug, p_meta, p_now, p_now, v_generation)
    ON CONFLICT (tenant_id, id) DO UPDATE SET slug = excluded.slug, meta = excluded.meta, created_at = excluded.created_at,
      updated_at = excluded.updated_at, closed_at = NULL, deleted_at = NULL,
      changed_at_generation = excluded.changed_at_generation;
  SELECT b.* INTO bin FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  verdict := 'ok';
END $$;

-- Changes what is given (null: left as it is; meta has a flag, since null removes it). `bin` and `item_count`, its
-- live items: as they are after `ok`.
CREATE FUNCTION patch_bin(
  p_tenant text, p_bin text, p_by text, p_slug text, p_set_meta boolean, p_meta bytea, p_now bigint,
  OUT verdict text, OUT bin bins, OUT item_count bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_generation bigint;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  PERFORM 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin AND b.deleted_at IS NULL AND b.closed_at IS NULL;
  IF NOT FOUND THEN
    verdict := 'bin_not_found';
    RETURN;
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  IF EXISTS (
    SELECT 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.slug = p_slug AND b.id <> p_bin AND b.deleted_at IS NULL
  ) THEN
    verdict := 'slug_taken';
    RETURN;
  END IF;
  verdict := 'ok';
  PERFORM 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin AND (b.slug, b.meta)
    IS DISTINCT FROM (coalesce(p_slug, b.slug), CASE WHEN p_set_meta THEN p_meta ELSE b.meta END);
  IF FOUND THEN
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
    UPDATE bins b SET slug = coalesce(p_slug, b.slug), meta = CASE WHEN p_set_meta THEN p_meta ELSE b.meta END,
      updated_at = greatest(p_now, b.updated_at), changed_at_generation = v_generation
      WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  END IF;
  SELECT b.* INTO bin FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  SELECT count(*) INTO item_count FROM items i
    WHERE i.tenant_id = p_tenant AND i.version > 0 AND i.bin_id = p_bin AND i.deleted_at IS NULL;
END $$;

-- First step of a deletion. `deleted`: it held no live item and is gone. `closed`: writes are refused from now on, and
-- its items have to be deleted. A bin that is closed already is on its way out: any further call goes on with it.
CREATE FUNCTION close_bin(
  p_tenant text, p_bin text, p_by text, p_force boolean, p_now bigint, OUT verdict text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_closed bigint;
  v_empty boolean;
  v_generation bigint;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT b.closed_at INTO v_closed FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin AND b.deleted_at IS NULL;
  IF NOT FOUND THEN
    verdict := 'bin_not_found';
    RETURN;
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  IF v_closed IS NOT NULL THEN
    verdict := 'closed';
    RETURN;
  END IF;
  v_empty := NOT EXISTS (
    SELECT 1 FROM items i WHERE i.tenant_id = p_tenant AND i.version > 0 AND i.bin_id = p_bin AND i.deleted_at IS NULL);
  IF NOT v_empty AND NOT p_force THEN
    verdict := 'conflict';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  UPDATE bins b SET closed_at = p_now, deleted_at = CASE WHEN v_empty THEN p_now END, updated_at = greatest(p_now, b.updated_at),
    changed_at_generation = v_generation WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  verdict := CASE WHEN v_empty THEN 'deleted' ELSE 'closed' END;
END $$;

-- Soft-deletes at most p_limit items of a closed bin, exactly as `commit_changes` deletes one: next versions, sums and
-- storage under the tenant's lock, blobs left to the reaper. When none is left the bin is deleted in the same
-- transaction: no write can have come in, since it is closed. `done`: nothing is left to do.
-- p_device: whose change it is; null: nobody's, where a deletion that was cut short goes on, so that every socket hears
-- of it.
-- p_after: looks above this version only; `last` is where the next call goes on. Deleted items move to the end of the
-- history and no others come into a closed bin, so one walk through it finds them all.
CREATE FUNCTION delete_bin_items(
  p_tenant text, p_bin text, p_after bigint, p_limit integer, p_now bigint, p_device text,
  OUT deleted integer, OUT last bigint, OUT done boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_head bigint;
  v_versions bigint;
  v_bytes bigint;
  v_generation bigint;
BEGIN
  deleted := 0;
  last := p_after;
  done := true;
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT t.head INTO v_head FROM tenants t WHERE t.id = p_tenant;
  PERFORM 1 FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin AND b.closed_at IS NOT NULL AND b.deleted_at IS NULL;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  WITH doomed AS MATERIALIZED (
    SELECT i.id, i.version, i.bytes, i.blob_ref, v_head + row_number() OVER (ORDER BY i.version) AS next
    FROM (
      SELECT i.id, i.version, i.bytes, i.blob_ref FROM items i
      WHERE i.tenant_id = p_tenant AND i.version > 0 AND i.version > p_after AND i.bin_id = p_bin AND i.deleted_at IS NULL
      ORDER BY i.version LIMIT p_limit
    ) i
  ), emptied AS (
    UPDATE items i SET version = d.next, changed_by = p_device, deleted_at = p_now, ct = NULL, nonce = NULL, sig = NULL,
      master = NULL, keys = NULL, blob_ref = NULL, blob_nonce = NULL, blob_keys = NULL, bytes = 0
    FROM doomed d WHERE i.tenant_id = p_tenant AND i.id = d.id
  ), blobs_left AS (
    UPDATE blobs b SET state = 'orphan' FROM doomed d WHERE b.tenant_id = p_tenant AND b.ref = d.blob_ref
  )
  SELECT count(*), max(d.version), coalesce(sum(d.version), 0), coalesce(sum(d.bytes), 0)
    INTO deleted, last, v_versions, v_bytes FROM doomed d;
  UPDATE tenants t SET head = t.head + deleted, item_count = t.item_count - deleted,
    version_sum = t.version_sum - v_versions, storage_bytes = t.storage_bytes - v_bytes
    WHERE t.id = p_tenant AND deleted > 0;
  last := coalesce(last, p_after);
  done := deleted < p_limit;
  IF done THEN
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
    UPDATE bins b SET deleted_at = p_now, updated_at = greatest(p_now, b.updated_at), changed_at_generation = v_generation
      WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  END IF;
END $$;
