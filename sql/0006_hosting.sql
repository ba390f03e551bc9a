-- Hosting: tenants by host name, made by signup (reference, Billing, Signing up).

-- Where bills and notices go. Null in single mode.
ALTER TABLE tenants ADD COLUMN email text;
-- Until when the subscription is paid, ms; null: never was.
ALTER TABLE tenants ADD COLUMN paid_until bigint;
-- Signup counts the unclaimed, and the job that frees them finds them by age.
CREATE INDEX tenants_unclaimed ON tenants (created_at) WHERE claimed_at IS NULL AND slug IS NOT NULL;

-- Every change of what a host name leads to, so that each instance keeps the whole table in memory and reads on from
-- where it was. A sequence would not do: the lower number may be committed later. `xid` is the transaction that made the
-- change, and whoever has read with a snapshot whose xmin was X has missed nothing below X.
CREATE TABLE host_changes (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  slug text COLLATE "C" NOT NULL,
  -- Null: the name is free again.
  tenant_id text COLLATE "C",
  at bigint NOT NULL
);
CREATE INDEX host_changes_xid ON host_changes (xid);

-- Signup: the name is the tenant's from here on. One at a time, so that the bound on unclaimed tenants is exact;
-- signups are rare, and nothing else waits for this lock.
CREATE FUNCTION sign_up(
  p_tenant text, p_slug text, p_email text, p_claim_hash bytea, p_state text, p_unclaimed_max integer, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7265763011);
  IF EXISTS (SELECT 1 FROM tenants t WHERE t.slug = p_slug) THEN
    RETURN 'slug_taken';
  END IF;
  IF (SELECT count(*) FROM (
    SELECT 1 FROM tenants t WHERE t.claimed_at IS NULL AND t.slug IS NOT NULL LIMIT p_unclaimed_max) unclaimed
  ) >= p_unclaimed_max THEN
    RETURN 'unavailable';
  END IF;
  INSERT INTO tenants (id, slug, email, state, claim_token_hash, created_at)
    VALUES (p_tenant, p_slug, p_email, p_state, p_claim_hash, p_now);
  INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
    VALUES (p_tenant, 'inbox', 'inbox', p_now, p_now, 1);
  INSERT INTO host_changes (slug, tenant_id, at) VALUES (p_slug, p_tenant, p_now);
  RETURN 'ok';
END $$;

-- Frees tenants that nobody claimed in time, at most p_limit of them, and gives their number. One that is being claimed
-- at this moment is left alone: its row is locked. A tenant that pays is kept: somebody will come for it.
CREATE FUNCTION free_unclaimed(p_before bigint, p_limit integer, p_now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_freed integer;
BEGIN
  WITH old AS (
    SELECT t.id FROM tenants t
    WHERE t.claimed_at IS NULL AND t.slug IS NOT NULL AND t.created_at < p_before AND t.paid_until IS NULL
    ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), freed AS (
    DELETE FROM tenants t USING old WHERE t.id = old.id RETURNING t.slug
  ), told AS (
    INSERT INTO host_changes (slug, tenant_id, at) SELECT f.slug, NULL, p_now FROM freed f RETURNING 1
  )
  SELECT count(*)::integer INTO v_freed FROM told;
  RETURN v_freed;
END $$;
