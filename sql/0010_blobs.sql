-- Blobs (reference, Blobs). Locks and verdicts as in 0003. Invariant: a tenant's storage_bytes is the sum
-- of its items' bytes and of the sizes of all its rows in `blobs`.

-- Reserves room for an upload. Under the tenant's lock, so that two uploads never pass the cap together.
-- Verdicts: ok, cap, too_many (so many uploads are open already), device_revoked, tenant_not_found.
CREATE FUNCTION reserve_blob(
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
  IF (SELECT count(*) FROM blobs b WHERE b.tenant_id = p_tenant AND b.state = 'reserved') >= p_open_max THEN
    RETURN 'too_many';
  END IF;
  INSERT INTO blobs (tenant_id, ref, size, state, created_at, content_type, expires_at, uploading_until)
    VALUES (p_tenant, p_ref, p_size, 'reserved', p_now, p_type, p_expires, p_uploading);
  UPDATE tenants t SET storage_bytes = t.storage_bytes + p_size WHERE t.id = p_tenant;
  RETURN 'ok';
END $$;

-- Marks blobs that nobody can use any more as dying, at most p_limit of them: those of items that were deleted or
-- replaced, and those that no item took before p_before. Those that are dying already come again: their objects may
-- still be there. Those that were tried longest ago come first, and none that was tried since p_since: a store that
-- will not remove some of them keeps no others from their turn. One that was tried after p_now, by a clock that has been
-- set back, counts as never tried. Under the tenants' locks: a commit that names one comes before, and then it is not
-- taken, or after, and then it is refused.
CREATE FUNCTION take_unused_blobs(p_before bigint, p_since bigint, p_now bigint, p_limit integer)
RETURNS TABLE (tenant_id text, ref text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_tenants text[];
  v_refs text[];
BEGIN
  SELECT array_agg(c.tenant_id), array_agg(c.ref) INTO v_tenants, v_refs FROM (
    SELECT b.tenant_id, b.ref FROM blobs b
    WHERE (b.state IN ('orphan', 'dying') OR (b.state = 'ready' AND b.item_id IS NULL AND b.created_at < p_before))
      AND (b.tried_at < p_since OR b.tried_at > p_now)
      AND NOT EXISTS (SELECT 1 FROM items i WHERE i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref)
    ORDER BY b.tried_at, b.created_at LIMIT p_limit
  ) c;
  PERFORM 1 FROM tenants t WHERE t.id = ANY (v_tenants) ORDER BY t.id FOR UPDATE;
  RETURN QUERY
  UPDATE blobs b SET state = 'dying', tried_at = p_now FROM unnest(v_tenants, v_refs) c (tenant_id, ref)
    WHERE b.tenant_id = c.tenant_id AND b.ref = c.ref
      AND (b.state IN ('orphan', 'dying') OR (b.state = 'ready' AND b.item_id IS NULL))
      -- Never one that a live item names, whatever its row says.
      AND NOT EXISTS (SELECT 1 FROM items i WHERE i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref)
    RETURNING b.tenant_id, b.ref;
END $$;

-- Their objects are gone: frees the rows, and their bytes, once. Gives the number of rows.
CREATE FUNCTION free_blobs(p_tenants text[], p_refs text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_done integer;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = ANY (p_tenants) ORDER BY t.id FOR UPDATE;
  WITH gone AS (
    DELETE FROM blobs b USING unnest(p_tenants, p_refs) c (tenant_id, ref)
      WHERE b.tenant_id = c.tenant_id AND b.ref = c.ref AND b.state = 'dying'
      RETURNING b.tenant_id, b.size
  ), freed AS (
    UPDATE tenants t SET storage_bytes = t.storage_bytes - g.size
      FROM (SELECT tenant_id, sum(size) AS size FROM gone GROUP BY tenant_id) g WHERE t.id = g.tenant_id
  )
  SELECT count(*)::integer INTO v_done FROM gone;
  RETURN v_done;
END $$;

-- Tenants that are gone and whose objects may still be there. Of a tenant that is neither here nor among these nothing
-- is ever removed from the store: a server on the wrong database would remove everything.
CREATE TABLE gone_tenants (
  tenant_id text COLLATE "C" PRIMARY KEY
);

CREATE FUNCTION note_gone_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM blobs b WHERE b.tenant_id = OLD.id) THEN
    INSERT INTO gone_tenants (tenant_id) VALUES (OLD.id) ON CONFLICT DO NOTHING;
  END IF;
  RETURN OLD;
END $$;

-- Before: the rows of its blobs go with it.
CREATE TRIGGER note_gone_tenant BEFORE DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION note_gone_tenant();
