-- Devices, bootstrap, password, recovery (reference, Pairing).
--
-- Every function that changes a tenant takes its row lock in the first statement and decides in later ones: at
-- READ COMMITTED those see what every earlier holder committed. A refusal is a verdict, named as in the error
-- catalogue (`ok` otherwise); nothing was changed then. `generation` rises whenever writes must be checked again or
-- sockets be told.

-- Adds a device. The caller holds the tenant's lock.
-- Its token epoch is the generation it joined at, and revoking sets it to a later one. So a device id that is used
-- again after a bootstrap restart starts above every epoch that its tokens ever had: the old ones stay dead.
CREATE FUNCTION add_device(
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
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  INSERT INTO devices (tenant_id, id, name, glyph, pubkey, cert, token_epoch, paired_at)
    VALUES (p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, v_generation, p_now);
  verdict := 'ok';
  epoch := v_generation;
END $$;

-- May the device act: it is the tenant's and not revoked? The caller holds the tenant's lock, and passes the device
-- that asked: its token was checked before the lock, and it may have been revoked since. Null may not.
CREATE FUNCTION device_stands(p_tenant text, p_device text) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device AND d.revoked_at IS NULL)
$$;

-- Is the second factor given: no password is set, or the ticket was made for this very password and is unspent?
-- The caller holds the tenant's lock; a ticket is good for one tenant only, so nobody spends it in between.
CREATE FUNCTION password_shown(p_tenant text, p_ticket text, p_ticket_set_at bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT t.password_hash IS NULL OR (
    p_ticket IS NOT NULL AND p_ticket_set_at IS NOT DISTINCT FROM t.password_set_at
    AND NOT EXISTS (SELECT 1 FROM spent_tickets s WHERE s.id = p_ticket)
  )
  FROM tenants t WHERE t.id = p_tenant
$$;

-- The tenant of single mode, made with its `inbox` on the first start. The advisory lock makes two instances agree.
CREATE FUNCTION single_tenant(p_fresh text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
BEGIN
  PERFORM pg_advisory_xact_lock(7265763010);
  SELECT id INTO v_id FROM tenants ORDER BY created_at, id LIMIT 1;
  IF NOT FOUND THEN
    v_id := p_fresh;
    INSERT INTO tenants (id, created_at) VALUES (v_id, p_now);
    INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
      VALUES (v_id, 'inbox', 'inbox', p_now, p_now, 1);
  END IF;
  RETURN v_id;
END $$;

-- Bootstrap: exactly one of any number of callers finds the tenant unclaimed. `p_admitted`: the caller showed the
-- operator's BOOTSTRAP_TOKEN, or none is asked. A tenant from signup has a claim token, spent in this transaction.
CREATE FUNCTION claim_tenant(
  p_tenant text, p_admitted boolean, p_claim_hash bytea, p_device text, p_name text, p_glyph text, p_pubkey bytea,
  p_cert bytea, p_recovery bytea, p_max integer, p_now bigint,
  OUT verdict text, OUT epoch integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_claimed bigint;
  v_hash bytea;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT t.claimed_at, t.claim_token_hash INTO v_claimed, v_hash FROM tenants t WHERE t.id = p_tenant;
  IF NOT FOUND THEN
    verdict := 'tenant_not_found';
    RETURN;
  END IF;
  IF v_claimed IS NOT NULL THEN
    verdict := 'bootstrap_already_done';
    RETURN;
  END IF;
  IF NOT p_admitted OR (v_hash IS NOT NULL AND v_hash IS DISTINCT FROM p_claim_hash) THEN
    verdict := 'forbidden';
    RETURN;
  END IF;
  SELECT a.verdict, a.epoch INTO verdict, epoch
    FROM add_device(p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, p_max, p_now) a;
  IF verdict <> 'ok' THEN
    RETURN;
  END IF;
  UPDATE tenants t SET claimed_at = p_now, claim_token_hash = NULL, recovery_pubkey = p_recovery WHERE t.id = p_tenant;
  INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
    SELECT p_tenant, 'inbox', 'inbox', p_now, p_now, t.generation FROM tenants t WHERE t.id = p_tenant
    ON CONFLICT DO NOTHING;
END $$;

-- Bootstrap restart: everything that lets anybody in goes; items and bins stay. `password_set_at` stays too: the next
-- password gets a later one, so that tickets of the old one never fit it.
CREATE FUNCTION restart_tenant(p_tenant text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  DELETE FROM pair_sessions WHERE tenant_id = p_tenant;
  DELETE FROM challenges WHERE tenant_id = p_tenant;
  DELETE FROM devices WHERE tenant_id = p_tenant;
  UPDATE tenants SET claimed_at = NULL, claim_token_hash = NULL, recovery_pubkey = NULL, password_hash = NULL,
    generation = generation + 1 WHERE id = p_tenant;
  RETURN 'ok';
END $$;

-- Changes what is given (null: left as it is; the certificate has a flag, since null removes it).
-- `p_by` is the caller; one that was revoked meanwhile may do nothing any more. `device`: as it is after `ok`.
CREATE FUNCTION patch_device(
  p_tenant text, p_device text, p_by text, p_name text, p_glyph text, p_set_cert boolean, p_cert bytea,
  OUT verdict text, OUT device devices
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  PERFORM 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device;
  IF NOT FOUND THEN
    verdict := 'device_not_found';
    RETURN;
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  verdict := 'ok';
  PERFORM 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device
    AND (d.name, d.glyph, d.cert) IS DISTINCT FROM (
      coalesce(p_name, d.name), coalesce(p_glyph, d.glyph), CASE WHEN p_set_cert THEN p_cert ELSE d.cert END);
  IF FOUND THEN
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant;
    UPDATE devices d SET name = coalesce(p_name, d.name), glyph = coalesce(p_glyph, d.glyph),
      cert = CASE WHEN p_set_cert THEN p_cert ELSE d.cert END
      WHERE d.tenant_id = p_tenant AND d.id = p_device;
  END IF;
  SELECT d.* INTO device FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device;
END $$;

-- Revokes a device: its tokens die by the new epoch, its pairings and challenges end. Two that revoke each other
-- meet in the lock: the second finds itself revoked, or the last one.
-- `p_by` is the caller; one that was revoked meanwhile may do nothing any more. `device`: as it is after `ok`.
CREATE FUNCTION revoke_device(
  p_tenant text, p_device text, p_by text, p_now bigint, OUT verdict text, OUT device devices
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_generation bigint;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT d.* INTO device FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device;
  IF NOT FOUND THEN
    verdict := 'device_not_found';
    RETURN;
  END IF;
  verdict := 'ok';
  IF device.revoked_at IS NOT NULL THEN
    RETURN;
  END IF;
  IF NOT EXISTS (
    SELECT 1 FROM devices d WHERE d.tenant_id = p_tenant AND d.id <> p_device AND d.revoked_at IS NULL
  ) THEN
    verdict := 'last_device';
    RETURN;
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    verdict := 'device_revoked';
    RETURN;
  END IF;
  UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant RETURNING t.generation INTO v_generation;
  UPDATE devices d SET revoked_at = p_now, token_epoch = v_generation, keys_purged = false
    WHERE d.tenant_id = p_tenant AND d.id = p_device;
  DELETE FROM pair_sessions s WHERE s.tenant_id = p_tenant
    AND (s.existing_device = p_device OR (s.state = 'wrapped' AND s.new_device = p_device));
  DELETE FROM challenges c WHERE c.tenant_id = p_tenant AND c.device_id = p_device;
  SELECT d.* INTO device FROM devices d WHERE d.tenant_id = p_tenant AND d.id = p_device;
END $$;

-- Sets the password. `p_known` is the `password_set_at` of the password that the caller has proven (null: there was
-- none): of two that change the same old password only one finds it still there.
-- The times rise strictly, since tickets name the password they are for by this time.
-- `p_by` is the device that asks: one that was revoked while its password was being hashed sets none.
CREATE FUNCTION set_password(
  p_tenant text, p_hash text, p_known bigint, p_by text, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_current bigint;
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  SELECT CASE WHEN password_hash IS NOT NULL THEN password_set_at END INTO v_current FROM tenants WHERE id = p_tenant;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  IF NOT device_stands(p_tenant, p_by) THEN
    RETURN 'device_revoked';
  END IF;
  IF v_current IS DISTINCT FROM p_known THEN
    RETURN 'password_invalid';
  END IF;
  UPDATE tenants SET password_hash = p_hash, password_set_at = greatest(p_now, coalesce(password_set_at, 0) + 1)
    WHERE id = p_tenant;
  RETURN 'ok';
END $$;

-- Keeps a challenge, and clears away some that ran out. Who holds a challenge that another instance's clock finds
-- expired is told so by that clock, not by this clean-up: hence the grace of ten minutes.
CREATE FUNCTION put_challenge(
  p_id text, p_tenant text, p_kind text, p_device text, p_secret bytea, p_expires bigint, p_now bigint
) RETURNS void LANGUAGE sql AS $$
  DELETE FROM challenges WHERE id IN (
    SELECT c.id FROM challenges c WHERE c.expires_at < p_now - 600000
    ORDER BY c.expires_at LIMIT 50 FOR UPDATE SKIP LOCKED
  );
  INSERT INTO challenges (id, tenant_id, kind, device_id, secret, expires_at)
    VALUES (p_id, p_tenant, p_kind, p_device, p_secret, p_expires);
$$;

-- Recovery: adds a device by the key that only the phrase gives. The signature was checked against `p_recovery`;
-- it must still be the tenant's key. The password ticket is spent here, so never without effect.
CREATE FUNCTION recover_device(
  p_tenant text, p_recovery bytea, p_ticket text, p_ticket_set_at bigint, p_ticket_expires bigint,
  p_device text, p_name text, p_glyph text, p_pubkey bytea, p_cert bytea, p_max integer, p_now bigint,
  OUT verdict text, OUT epoch integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_recovery bytea;
  v_password boolean;
BEGIN
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT t.recovery_pubkey, t.password_hash IS NOT NULL INTO v_recovery, v_password FROM tenants t WHERE t.id = p_tenant;
  IF NOT FOUND THEN
    verdict := 'tenant_not_found';
    RETURN;
  END IF;
  IF v_recovery IS NULL OR v_recovery <> p_recovery THEN
    verdict := 'forbidden';
    RETURN;
  END IF;
  IF NOT password_shown(p_tenant, p_ticket, p_ticket_set_at) THEN
    verdict := 'password_required';
    RETURN;
  END IF;
  SELECT a.verdict, a.epoch INTO verdict, epoch
    FROM add_device(p_tenant, p_device, p_name, p_glyph, p_pubkey, p_cert, p_max, p_now) a;
  IF verdict = 'ok' AND v_password THEN
    INSERT INTO spent_tickets (id, expires_at) VALUES (p_ticket, p_ticket_expires);
  END IF;
END $$;

-- Spends signed one-use tickets; returns those that nobody had spent. Rows in id order: two instances that spend the
-- same ones wait for each other in one direction only. Rows outlive their tickets by ten minutes, for an instance
-- whose clock is behind.
CREATE FUNCTION spend_tickets(p_ids text[], p_expires bigint[], p_now bigint) RETURNS SETOF text LANGUAGE sql AS $$
  DELETE FROM spent_tickets WHERE id IN (
    SELECT s.id FROM spent_tickets s WHERE s.expires_at < p_now - 600000
    ORDER BY s.expires_at LIMIT 500 FOR UPDATE SKIP LOCKED
  );
  INSERT INTO spent_tickets (id, expires_at)
    SELECT u.id, u.expires_at FROM unnest(p_ids, p_expires) AS u(id, expires_at) ORDER BY u.id
    ON CONFLICT DO NOTHING RETURNING id;
$$;

-- One use of a limited thing: at most p_limit in any p_window milliseconds. Returns 0 when admitted, else how long to
-- wait. A refused use is not counted. Times ahead of this instance's clock by more than the window are another
-- clock's fault and are dropped.
CREATE FUNCTION rate_take(p_key bytea, p_now bigint, p_window bigint, p_limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_wait bigint;
BEGIN
  DELETE FROM rate_limits WHERE key IN (
    SELECT r.key FROM rate_limits r WHERE r.expires_at < p_now - 600000
    ORDER BY r.expires_at LIMIT 20 FOR UPDATE SKIP LOCKED
  );
  -- The conflict's row is locked and seen in its latest form, so rivals are counted one after the other.
  INSERT INTO rate_limits AS r (key, used_at, expires_at) VALUES (p_key, ARRAY[p_now], p_now + p_window)
  ON CONFLICT (key) DO UPDATE SET expires_at = greatest(r.expires_at, excluded.expires_at), used_at = p_now || ARRAY(
      SELECT u FROM unnest(r.used_at) u WHERE u > p_now - p_window AND u < p_now + p_window)
    WHERE (SELECT count(*) FROM unnest(r.used_at) u WHERE u > p_now - p_window AND u < p_now + p_window) < p_limit;
  IF FOUND THEN
    RETURN 0;
  END IF;
  -- The use that has to leave the window before another fits.
  SELECT u + p_window - p_now INTO v_wait
    FROM rate_limits r, unnest(r.used_at) u
    WHERE r.key = p_key AND u > p_now - p_window AND u < p_now + p_window
    ORDER BY u DESC OFFSET p_limit - 1 LIMIT 1;
  RETURN greatest(coalesce(v_wait, 1), 1);
END $$;

-- When devices were last seen. No tenant lock: nothing is decided by it. A row that is busy is left for the next time.
CREATE FUNCTION touch_devices(p_tenants text[], p_devices text[], p_times bigint[]) RETURNS void LANGUAGE sql AS $$
  WITH free AS (
    SELECT d.tenant_id, d.id, u.seen_at
    FROM unnest(p_tenants, p_devices, p_times) AS u(tenant_id, id, seen_at)
    JOIN devices d ON d.tenant_id = u.tenant_id AND d.id = u.id
    WHERE d.last_seen_at IS NULL OR d.last_seen_at < u.seen_at
    FOR NO KEY UPDATE OF d SKIP LOCKED
  )
  UPDATE devices d SET last_seen_at = f.seen_at FROM free f WHERE d.tenant_id = f.tenant_id AND d.id = f.id;
$$;
