-- What one tenant makes the database read must not grow with what the tenant has left behind: tenants are read together, and
-- wait for each other.

-- The latest of a tenant's deleted bins, which sockets are told of, without reading the others.
CREATE INDEX bins_deleted ON bins (tenant_id, changed_at_generation) WHERE deleted_at IS NOT NULL;

-- As in 0004, but a device's rejected sessions go too: a device that rejects as often as it may would leave hundreds of
-- thousands of them. Their code is as unknown afterwards as it was.
CREATE OR REPLACE FUNCTION pair_init(
  p_tenant text, p_device text, p_lookup text, p_code text, p_epk bytea, p_expires bigint, p_now bigint, OUT verdict text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_revoked bigint;
  v_requests integer;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT d.revoked_at INTO v_revoked FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device;
  IF NOT FOUND THEN
    verdict := 'bad_token';
    RETURN;
  END IF;
  IF v_revoked IS NOT NULL THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  DELETE FROM pair_sessions s WHERE s.tenant_id = p_tenant AND s.expires_at < p_now - 600000;
  IF EXISTS (
    SELECT 1 FROM pair_sessions s
    WHERE s.tenant_id = p_tenant AND s.code = p_code AND s.expires_at > p_now AND s.state <> 'rejected'
  ) THEN
    verdict := 'conflict';
    RETURN;
  END IF;
  WITH ended AS (
    DELETE FROM pair_sessions s
    WHERE s.tenant_id = p_tenant AND s.existing_device = p_device AND s.state <> 'wrapped' AND s.expires_at > p_now
    RETURNING s.state
  )
  SELECT count(*) FILTER (WHERE e.state = 'requested') INTO v_requests FROM ended e;
  INSERT INTO pair_sessions (tenant_id, lookup_id, code, state, existing_device, epk, expires_at)
    VALUES (p_tenant, p_lookup, p_code, 'open', p_device, p_epk, p_expires);
  IF v_requests > 0 THEN
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant;
  END IF;
  verdict := 'ok';
END $$;

-- As in 0003, but of a day only ten times as many devices as may stand. All of a tenant's devices are read when it is loaded,
-- revoked ones too, which stay: pairing and revoking without end would make each load of it take seconds, for all tenants.
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
  IF (SELECT count(*) FROM devices d WHERE d.tenant_id = p_tenant AND d.revoked_at IS NULL) >= p_max
    OR (SELECT count(*) FROM devices d WHERE d.tenant_id = p_tenant AND d.paired_at > p_now - 86400000) >= greatest(100, 10 * p_max)
  THEN
    verdict := 'device_limit';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO devices (tenant_id, id, name, glyph, pubkey, cert, token_epoch, paired_at)
    VALUES (p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, v_generation, p_now);
  verdict := 'ok';
  epoch := v_generation;
END $$;
