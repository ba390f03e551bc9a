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
