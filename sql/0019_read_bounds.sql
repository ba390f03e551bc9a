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

-- Do as many devices stand as may, or have `p_times` as many joined within a day as may be paired? All of a tenant's
-- devices are read when it is loaded, revoked ones too, which stay: pairing and revoking without end would make each load
-- of it take seconds, for all tenants.
CREATE FUNCTION devices_full(p_tenant text, p_max integer, p_now bigint, p_times integer) RETURNS boolean LANGUAGE sql AS $$
  SELECT count(*) FILTER (WHERE d.revoked_at IS NULL) >= p_max
    OR count(*) FILTER (WHERE d.paired_at > p_now - 86400000) >= p_times * greatest(100, 10 * p_max)
  FROM devices d WHERE d.tenant_id = p_tenant
$$;

-- As in 0003, but of a day only twice as many devices as may be paired: whoever has a device cannot use up what is left
-- for those that the owner recovers with the phrase.
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
  IF devices_full(p_tenant, p_max, p_now, 2) THEN
    verdict := 'device_limit';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO devices (tenant_id, id, name, glyph, pubkey, cert, token_epoch, paired_at)
    VALUES (p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, v_generation, p_now);
  verdict := 'ok';
  epoch := v_generation;
END $$;

-- As in 0004, but no further request where as many devices as may be paired have joined within a day. One that was
-- accepted is not refused at its end: a device has one session at most, so that this is no more than once as many as stand.
CREATE OR REPLACE FUNCTION pair_join(
  p_tenant text, p_code text, p_device text, p_host text, p_npk bytea, p_name text, p_glyph text, p_attestation bytea,
  p_ticket text, p_ticket_set_at bigint, p_ticket_expires bigint, p_max integer, p_now bigint,
  OUT verdict text, OUT lookup_id text, OUT fresh boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_session pair_sessions;
  v_password bigint;
BEGIN
  fresh := false;
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT * INTO v_session FROM find_pair_session(p_tenant, p_code, p_now);
  IF NOT FOUND OR v_session.state = 'rejected' THEN
    verdict := 'pair_invalid';
    RETURN;
  END IF;
  -- Also past its time: it was answered in time.
  IF v_session.state = 'wrapped' AND v_session.npk = p_npk THEN
    verdict := 'ok';
    lookup_id := v_session.lookup_id;
    RETURN;
  END IF;
  IF v_session.expires_at <= p_now THEN
    verdict := 'pair_expired';
    RETURN;
  END IF;
  IF v_session.state <> 'open' AND v_session.npk <> p_npk THEN
    verdict := 'pair_invalid';
    RETURN;
  END IF;
  verdict := 'ok';
  lookup_id := v_session.lookup_id;
  SELECT CASE WHEN t.password_hash IS NOT NULL THEN t.password_set_at END INTO v_password FROM tenants t WHERE t.id = p_tenant;
  IF v_password IS NOT NULL AND v_session.password_proof IS DISTINCT FROM v_password
    AND NOT password_shown(p_tenant, p_ticket, p_ticket_set_at) THEN
    verdict := 'password_required';
    RETURN;
  END IF;
  IF v_session.state = 'open' THEN
    IF EXISTS (SELECT 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device) THEN
      verdict := 'device_exists';
      RETURN;
    END IF;
    IF devices_full(p_tenant, p_max, p_now, 1) THEN
      verdict := 'device_limit';
      RETURN;
    END IF;
  END IF;
  IF v_password IS NOT NULL AND v_session.password_proof IS DISTINCT FROM v_password THEN
    INSERT INTO spent_tickets (id, expires_at) VALUES (p_ticket, p_ticket_expires);
    UPDATE pair_sessions s SET password_proof = v_password WHERE s.lookup_id = v_session.lookup_id;
  END IF;
  IF v_session.state = 'open' THEN
    UPDATE pair_sessions s SET state = 'requested', new_device = p_device, host = p_host, npk = p_npk, name = p_name,
      glyph = p_glyph, attestation = p_attestation WHERE s.lookup_id = v_session.lookup_id;
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant;
    fresh := true;
  END IF;
END $$;
