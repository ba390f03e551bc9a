-- Blobs that no item has named: open uploads and complete ones. Each may have a single byte, of which neither a row nor a file
-- has any notion: the cap bounds their bytes and not their number. Those of deleted items do not count: a user who removes
-- many files may go on at once, and the nightly job removes them.
CREATE INDEX blobs_unnamed ON blobs (tenant_id) WHERE item_id IS NULL AND state IN ('reserved', 'ready');

-- As in 0010, but ten times as many as may be open may be there without an item; no more are counted.
CREATE OR REPLACE FUNCTION reserve_blob(
  p_tenant text, p_by text, p_ref text, p_size bigint, p_type text, p_cap bigint, p_open_max integer,
  p_now bigint, p_expires bigint, p_uploading bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_used bigint;
BEGIN
  SELECT t.storage_bytes INTO v_used FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    RETURN 'device_revoked';
  END IF;
  IF p_cap > 0 AND v_used + p_size > p_cap THEN
    RETURN 'cap';
  END IF;
  IF (SELECT count(*) FROM blobs b WHERE b.tenant_id = p_tenant AND b.state = 'reserved') >= p_open_max
    OR (
      SELECT count(*) FROM (
        SELECT FROM blobs b WHERE b.tenant_id = p_tenant AND b.item_id IS NULL AND b.state IN ('reserved', 'ready')
        LIMIT 10 * p_open_max
      ) AS unnamed
    ) >= 10 * p_open_max
  THEN
    RETURN 'too_many';
  END IF;
  INSERT INTO blobs (tenant_id, ref, size, state, created_at, content_type, expires_at, uploading_until)
    VALUES (p_tenant, p_ref, p_size, 'reserved', p_now, p_type, p_expires, p_uploading);
  UPDATE tenants t SET storage_bytes = t.storage_bytes + p_size WHERE t.id = p_tenant;
  RETURN 'ok';
END $$;
