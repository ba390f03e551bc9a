-- What one tenant makes the database do must not grow without end: tenants are read together, and wait for each other's
-- statements.

-- Takes the place of patch_bin (0005), which older instances still call. That one counted the bin's items while it held the
-- tenant's lock: with a million of them for a tenth of a second, in which a commit lane that had a write of this tenant
-- waited, and with it the writes of all others.
--
-- Changes what is given (null: left as it is; meta has a flag, since null removes it). `bin`: as it is after `ok`.
CREATE FUNCTION change_bin(
  p_tenant text, p_bin text, p_by text, p_slug text, p_set_meta boolean, p_meta bytea, p_now bigint,
  OUT verdict text, OUT bin bins
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
END $$;

-- As in 0003, but of the revoked devices only the last thousand are kept: all of a tenant's devices are read whenever one
-- changes. One whose keys are not purged yet stays until then; where that are too many, no device may join.
CREATE OR REPLACE FUNCTION add_device(
  p_tenant text, p_device text, p_name text, p_glyph text, p_pubkey bytea, p_cert bytea, p_max integer, p_now bigint,
  OUT verdict text, OUT epoch integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_generation bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device) THEN
    verdict := 'device_exists';
    RETURN;
  END IF;
  IF (SELECT count(*) FROM devices d WHERE d.tenant_id = p_tenant AND d.revoked_at IS NULL) >= p_max THEN
    verdict := 'device_limit';
    RETURN;
  END IF;
  DELETE FROM devices d WHERE d.tenant_id = p_tenant AND d.keys_purged AND d.id IN (
    SELECT o.id FROM devices o WHERE o.tenant_id = p_tenant AND o.revoked_at IS NOT NULL
    ORDER BY o.revoked_at DESC, o.id OFFSET 1000 LIMIT 5000);
  IF (SELECT count(*) FROM devices d WHERE d.tenant_id = p_tenant AND d.revoked_at IS NOT NULL) >= 2000 THEN
    verdict := 'device_limit';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO devices (tenant_id, id, name, glyph, pubkey, cert, token_epoch, paired_at)
    VALUES (p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, v_generation, p_now);
  verdict := 'ok';
  epoch := v_generation;
END $$;

-- As in 0005, but of the deleted bins only the last thousand are kept; sockets are told of the last hundred.
CREATE OR REPLACE FUNCTION create_bin(
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
  DELETE FROM bins b WHERE b.tenant_id = p_tenant AND b.id IN (
    SELECT o.id FROM bins o WHERE o.tenant_id = p_tenant AND o.deleted_at IS NOT NULL
    ORDER BY o.changed_at_generation DESC OFFSET 1000 LIMIT 5000);
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO bins AS b (tenant_id, id, slug, meta, created_at, updated_at, changed_at_generation)
    VALUES (p_tenant, p_bin, p_slug, p_meta, p_now, p_now, v_generation)
    ON CONFLICT (tenant_id, id) DO UPDATE SET slug = excluded.slug, meta = excluded.meta, created_at = excluded.created_at,
      updated_at = excluded.updated_at, closed_at = NULL, deleted_at = NULL,
      changed_at_generation = excluded.changed_at_generation;
  SELECT b.* INTO bin FROM bins b WHERE b.tenant_id = p_tenant AND b.id = p_bin;
  verdict := 'ok';
END $$;
