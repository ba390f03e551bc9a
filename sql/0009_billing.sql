-- Billing: what the payment provider said of tenants' subscriptions, and what follows from it (reference, Billing).
-- Everything here is a fold: an event adds a fact, facts are kept as maxima, minima and sets, and the state is computed
-- from them. So events may come in any order and any number of times, and end in the same state.

-- What billing last judged of the tenant; null: never anything. An operator's hand may have set another `state`.
ALTER TABLE tenants ADD COLUMN billing_state text;
-- Of past_due and suspended: when the trouble began, ms. The sweep counts from it.
ALTER TABLE tenants ADD COLUMN billing_since bigint;
-- What an operator closed by hand; a payment does not open it again, the operator does.
ALTER TABLE tenants ADD COLUMN held_state text;
-- The last checkout that was made for it.
ALTER TABLE tenants ADD COLUMN checkout_id text;
-- SHA-256 of the token in the address that the checkout returns to.
ALTER TABLE tenants ADD COLUMN return_hash bytea;
-- The page after checkout looks its tenant up.
CREATE UNIQUE INDEX tenants_return ON tenants (return_hash) WHERE return_hash IS NOT NULL;
-- The sweep reads those whose time may have come, every half minute, on every instance.
CREATE INDEX tenants_in_trouble ON tenants (billing_since) WHERE billing_state IN ('past_due', 'suspended');

-- A pending tenant waits for a payment as an unclaimed one waits for its owner: both are counted and freed.
DROP INDEX tenants_unclaimed;
CREATE INDEX tenants_waiting ON tenants (created_at)
  WHERE (claimed_at IS NULL OR state = 'pending') AND slug IS NOT NULL;

-- Events that were applied, so that each is applied once.
CREATE TABLE webhook_events (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C",
  applied_at bigint NOT NULL
);
CREATE INDEX webhook_events_age ON webhook_events (applied_at);

-- Subscriptions as the events tell of them. Times are those of the events, ms.
CREATE TABLE subscriptions (
  id text COLLATE "C" PRIMARY KEY,
  -- Null: not known yet whose it is; the event that tells may come last.
  tenant_id text COLLATE "C" REFERENCES tenants ON DELETE CASCADE,
  customer_id text COLLATE "C" NOT NULL,
  -- The latest event that says: paid. Null: none did.
  good_at bigint,
  -- Events after it that say: not paid. Trouble began with the first of them.
  failed_at bigint[] NOT NULL DEFAULT '{}',
  -- The first event that says: over. There is no way back from that.
  ended_at bigint,
  -- When this row was made.
  seen_at bigint NOT NULL
);
CREATE INDEX subscriptions_tenant ON subscriptions (tenant_id);
CREATE INDEX subscriptions_customer ON subscriptions (customer_id);

-- What one subscription says of its tenant at p_now. Null: nothing, it was never paid.
CREATE FUNCTION subscription_state(p_good bigint, p_since bigint, p_ended bigint, p_grace bigint, p_now bigint)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN p_good IS NULL THEN NULL
    WHEN p_ended IS NOT NULL THEN 'inactive'
    WHEN p_since IS NULL THEN 'active'
    WHEN p_now < p_since + p_grace THEN 'past_due'
    -- Thirty days (reference, Billing, States).
    WHEN p_now < p_since + p_grace + 2592000000 THEN 'suspended'
    ELSE 'inactive'
  END
$$;

-- Judges a tenant whose row the caller has locked, and sets its state where the judgement is another one, or is that it
-- has paid. True: the state changed, and every instance has to hear of it (the generation has risen).
CREATE FUNCTION judge_billing(p_tenant text, p_grace bigint, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_state text;
  v_since bigint;
  v_before text;
BEGIN
  SELECT billing_state INTO v_before FROM tenants WHERE id = p_tenant;
  -- The best subscription counts: whoever has changed from one to another is served by the new one.
  SELECT j.state, j.since INTO v_state, v_since FROM (
    SELECT subscription_state(f.good_at, f.since, f.ended_at, p_grace, p_now) AS state, f.since
    FROM (
      SELECT s.good_at, s.ended_at, (SELECT min(a) FROM unnest(s.failed_at) a WHERE a > s.good_at) AS since
      FROM subscriptions s WHERE s.tenant_id = p_tenant
    ) f
  ) j
  WHERE j.state IS NOT NULL
  ORDER BY array_position(ARRAY['active', 'past_due', 'suspended', 'inactive'], j.state), j.since DESC LIMIT 1;
  IF v_state IS NULL THEN
    RETURN false;
  END IF;
  UPDATE tenants SET billing_state = v_state,
      billing_since = CASE WHEN v_state IN ('past_due', 'suspended') THEN v_since END
    WHERE id = p_tenant AND (billing_state, billing_since) IS DISTINCT FROM
      (v_state, CASE WHEN v_state IN ('past_due', 'suspended') THEN v_since END);
  UPDATE tenants SET state = v_state, generation = generation + 1
    WHERE id = p_tenant AND state <> v_state AND held_state IS NULL
      AND (v_before IS DISTINCT FROM v_state OR v_state = 'active');
  RETURN FOUND;
END $$;

-- One event, in one transaction: noted, its fact added, its tenant judged anew.
-- p_tenant: whom the event names, or null. p_fact: good, failed, ended, or seen (it tells only whose the subscription is).
-- verdict: changed, same, repeated (applied before), unknown (nobody's yet: the fact is kept for whoever it is).
CREATE FUNCTION apply_webhook(
  p_event text, p_tenant text, p_customer text, p_subscription text, p_fact text, p_at bigint, p_paid_until bigint,
  p_grace bigint, p_now bigint, OUT verdict text, OUT tenant text
) LANGUAGE plpgsql AS $$
DECLARE
  v_changed boolean;
BEGIN
  -- Events of one customer one after the other: the fact of one and the name in another must find each other.
  PERFORM pg_advisory_xact_lock(726576, hashtext(p_customer));
  SELECT t.id INTO tenant FROM tenants t WHERE t.id = p_tenant;
  IF tenant IS NULL THEN
    SELECT s.tenant_id INTO tenant FROM subscriptions s WHERE s.customer_id = p_customer AND s.tenant_id IS NOT NULL
      ORDER BY s.id = p_subscription DESC, s.seen_at DESC, s.id LIMIT 1;
  END IF;
  PERFORM 1 FROM tenants t WHERE t.id = tenant FOR UPDATE;
  IF NOT FOUND THEN
    tenant := NULL;
  END IF;
  -- Waits for another transaction that applies the same event, and finds it applied.
  INSERT INTO webhook_events (id, tenant_id, applied_at) VALUES (p_event, tenant, p_now) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    verdict := 'repeated';
    RETURN;
  END IF;
  INSERT INTO subscriptions AS s (id, tenant_id, customer_id, seen_at)
    VALUES (p_subscription, tenant, p_customer, p_now) ON CONFLICT DO NOTHING;
  UPDATE subscriptions s SET
      good_at = CASE WHEN p_fact = 'good' THEN greatest(s.good_at, p_at) ELSE s.good_at END,
      ended_at = CASE WHEN p_fact = 'ended' THEN least(s.ended_at, p_at) ELSE s.ended_at END,
      -- The latest 64 are kept: a provider tries a handful of times.
      failed_at = CASE WHEN p_fact <> 'failed' THEN s.failed_at ELSE ARRAY(
        SELECT DISTINCT f FROM unnest(s.failed_at || p_at) f ORDER BY f DESC LIMIT 64) END
    WHERE s.id = p_subscription;
  -- What was paid for is over: it can never count again, since good_at only rises.
  UPDATE subscriptions s SET failed_at = ARRAY(SELECT f FROM unnest(s.failed_at) f WHERE f > s.good_at)
    WHERE s.id = p_subscription AND s.good_at >= ANY (s.failed_at);
  IF tenant IS NULL THEN
    verdict := 'unknown';
    RETURN;
  END IF;
  UPDATE subscriptions s SET tenant_id = tenant WHERE s.customer_id = p_customer AND s.tenant_id IS NULL;
  IF p_fact = 'good' THEN
    UPDATE tenants t SET paid_until = greatest(t.paid_until, p_paid_until, p_at) WHERE t.id = tenant;
  END IF;
  v_changed := judge_billing(tenant, p_grace, p_now);
  verdict := CASE WHEN v_changed THEN 'changed' ELSE 'same' END;
END $$;

-- Whose grace or suspension is over, at most p_limit of them; gives those whose state changed. One that another
-- instance is at is left to it. Locks in id order, as everything that changes tenants.
CREATE FUNCTION sweep_billing(p_grace bigint, p_limit integer, p_now bigint) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  v_tenant text;
BEGIN
  FOR v_tenant IN
    SELECT t.id FROM tenants t
    WHERE (t.billing_state = 'past_due' AND t.billing_since <= p_now - p_grace)
       OR (t.billing_state = 'suspended' AND t.billing_since <= p_now - p_grace - 2592000000)
    ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
  LOOP
    IF judge_billing(v_tenant, p_grace, p_now) THEN
      RETURN NEXT v_tenant;
    END IF;
  END LOOP;
END $$;

-- Ids of events that no provider sends again, and what was said of subscriptions that turned out to be nobody's here.
CREATE FUNCTION clear_webhooks(p_before bigint, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_done integer;
  v_part integer;
BEGIN
  DELETE FROM webhook_events WHERE ctid = ANY (ARRAY(
    SELECT e.ctid FROM webhook_events e WHERE e.applied_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_done = ROW_COUNT;
  DELETE FROM subscriptions WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM subscriptions s WHERE s.tenant_id IS NULL AND s.seen_at < p_before LIMIT p_limit));
  GET DIAGNOSTICS v_part = ROW_COUNT;
  RETURN v_done + v_part;
END $$;

-- Signup, with the token of the page after checkout; see 0006. Null: no checkout.
DROP FUNCTION sign_up;
CREATE FUNCTION sign_up(
  p_tenant text, p_slug text, p_email text, p_claim_hash bytea, p_return_hash bytea, p_state text,
  p_unclaimed_max integer, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7265763011);
  IF EXISTS (SELECT 1 FROM tenants t WHERE t.slug = p_slug) THEN
    RETURN 'slug_taken';
  END IF;
  IF (SELECT count(*) FROM (
    SELECT 1 FROM tenants t WHERE (t.claimed_at IS NULL OR t.state = 'pending') AND t.slug IS NOT NULL
    LIMIT p_unclaimed_max) unclaimed
  ) >= p_unclaimed_max THEN
    RETURN 'unavailable';
  END IF;
  INSERT INTO tenants (id, slug, email, state, claim_token_hash, return_hash, created_at)
    VALUES (p_tenant, p_slug, p_email, p_state, p_claim_hash, p_return_hash, p_now);
  INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
    VALUES (p_tenant, 'inbox', 'inbox', p_now, p_now, 1);
  INSERT INTO host_changes (slug, tenant_id, at) VALUES (p_slug, p_tenant, p_now);
  RETURN 'ok';
END $$;

-- Takes a signup back whose checkout could not be made: the name is free again. Only of a tenant that nothing has
-- happened to yet.
CREATE FUNCTION undo_sign_up(p_tenant text, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  WITH undone AS (
    DELETE FROM tenants t
    WHERE t.id = p_tenant AND t.state = 'pending' AND t.claimed_at IS NULL AND t.billing_state IS NULL
    RETURNING t.slug
  )
  INSERT INTO host_changes (slug, tenant_id, at) SELECT u.slug, NULL, p_now FROM undone u;
  RETURN FOUND;
END $$;

-- See 0006; a pending tenant that nobody paid for is freed too, whether or not it was claimed.
CREATE OR REPLACE FUNCTION free_unclaimed(p_before bigint, p_limit integer, p_now bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_freed integer;
BEGIN
  WITH old AS (
    SELECT t.id FROM tenants t
    WHERE (t.claimed_at IS NULL OR t.state = 'pending') AND t.slug IS NOT NULL
      AND t.created_at < p_before AND t.paid_until IS NULL
    ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), freed AS (
    DELETE FROM tenants t USING old WHERE t.id = old.id RETURNING t.slug
  ), told AS (
    INSERT INTO host_changes (slug, tenant_id, at) SELECT f.slug, NULL, p_now FROM freed f RETURNING 1
  )
  SELECT count(*)::integer INTO v_freed FROM told;
  RETURN v_freed;
END $$;

-- See 0008; what an operator closes stays closed until an operator opens it.
CREATE OR REPLACE FUNCTION set_tenant_state(p_tenant text, p_state text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  UPDATE tenants SET held_state = CASE WHEN p_state IN ('suspended', 'inactive') THEN p_state END
    WHERE id = p_tenant;
  UPDATE tenants SET state = p_state, generation = generation + 1 WHERE id = p_tenant AND state <> p_state;
  RETURN 'ok';
END $$;
