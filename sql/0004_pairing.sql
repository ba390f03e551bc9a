-- Pairing between two devices (reference, Pairing). Rules of locks and verdicts: see 0003.
-- A session: open -> requested (bound to one new device's key) -> wrapped | rejected. Rows stay at least ten minutes
-- after their time, so that a late code is told apart from a wrong one, and so that a new device whose reply was lost
-- still gets its wrapped key: it exists by then, and nobody could hand it the key again.

-- Which password the new device has proven, named by its `password_set_at`.
ALTER TABLE pair_sessions ADD COLUMN password_proof bigint;

-- The session that a code means: one that lives before one that is over.
CREATE FUNCTION find_pair_session(p_tenant text, p_code text, p_now bigint) RETURNS SETOF pair_sessions LANGUAGE sql AS $$
  SELECT * FROM pair_sessions s WHERE s.tenant_id = p_tenant AND s.code = p_code
  ORDER BY s.expires_at > p_now DESC, s.state = 'rejected', s.expires_at DESC, s.lookup_id DESC LIMIT 1
$$;

-- Step 1: the existing device opens a session. Its older one ends, unless that has a wrapped key waiting: the new
-- device exists already then, and nobody could hand it the master key again.
CREATE FUNCTION pair_init(
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
    WHERE s.tenant_id = p_tenant AND s.existing_device = p_device AND s.state IN ('open', 'requested') AND s.expires_at > p_now
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

-- Step 3: the new device asks to join. `ok` with `fresh`: the existing device must be told; without: the same key asks
-- again and goes on waiting, or the session is decided. Nothing but the first request binds the session.
-- A ticket is spent only when it proves the password for this session.
CREATE FUNCTION pair_join(
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
    IF (SELECT count(*) FROM devices d WHERE d.tenant_id = p_tenant AND d.revoked_at IS NULL) >= p_max THEN
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

-- Step 4: the existing device hands over the wrapped master key, or rejects. The new device comes to be here, under
-- the lock: a write that was checked before it finds another generation.
CREATE FUNCTION pair_wrap(
  p_tenant text, p_device text, p_code text, p_reject boolean, p_wrapped bytea, p_cert bytea, p_confirmation bytea,
  p_max integer, p_now bigint, OUT verdict text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_session pair_sessions;
  v_password bigint;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  IF NOT EXISTS (
    SELECT 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device AND d.revoked_at IS NULL
  ) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  SELECT * INTO v_session FROM find_pair_session(p_tenant, p_code, p_now);
  IF NOT FOUND OR v_session.existing_device <> p_device THEN
    verdict := 'pair_invalid';
    RETURN;
  END IF;
  -- The same again, as after a lost reply.
  IF v_session.state = 'rejected' THEN
    verdict := CASE WHEN p_reject THEN 'ok' ELSE 'pair_invalid' END;
    RETURN;
  END IF;
  IF v_session.state = 'wrapped' THEN
    verdict := CASE WHEN NOT p_reject AND (v_session.wrapped_master_key, v_session.device_cert, v_session.confirmation)
      IS NOT DISTINCT FROM (p_wrapped, p_cert, p_confirmation) THEN 'ok' ELSE 'conflict' END;
    RETURN;
  END IF;
  IF v_session.expires_at <= p_now THEN
    verdict := 'pair_expired';
    RETURN;
  END IF;
  IF p_reject THEN
    UPDATE pair_sessions s SET state = 'rejected' WHERE s.lookup_id = v_session.lookup_id;
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant;
    verdict := 'ok';
    RETURN;
  END IF;
  IF v_session.state <> 'requested' THEN
    verdict := 'pair_invalid';
    RETURN;
  END IF;
  -- A password set or changed since the request: the new device has to show it first.
  SELECT CASE WHEN t.password_hash IS NOT NULL THEN t.password_set_at END INTO v_password FROM tenants t WHERE t.id = p_tenant;
  IF v_password IS NOT NULL AND v_session.password_proof IS DISTINCT FROM v_password THEN
    verdict := 'password_required';
    RETURN;
  END IF;
  SELECT a.verdict INTO verdict FROM add_device(
    p_tenant, v_session.new_device, v_session.name, v_session.glyph, v_session.npk, p_cert, p_max, p_now) a;
  IF verdict = 'ok' THEN
    UPDATE pair_sessions s SET state = 'wrapped', wrapped_master_key = p_wrapped, device_cert = p_cert,
      confirmation = p_confirmation WHERE s.lookup_id = v_session.lookup_id;
  END IF;
END $$;
