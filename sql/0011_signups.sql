-- Signup from one network: an IPv4 /16 or an IPv6 /32 has a share of the names that wait for their owners.

-- The network that it was signed up from, such as 198.51.0.0/16. Null: from before this was asked, or single mode.
ALTER TABLE tenants ADD COLUMN signup_network text COLLATE "C";
-- Signup counts a network's waiting names.
CREATE INDEX tenants_waiting_network ON tenants (signup_network)
  WHERE (claimed_at IS NULL OR state = 'pending') AND slug IS NOT NULL;

-- Signup; see 0006 and 0009. What is older than p_free_before and waits still is freed first: the bounds count who may
-- still come, and no name waits for the night. One at a time, so that both bounds are exact on all instances together.
DROP FUNCTION sign_up;
CREATE FUNCTION sign_up(
  p_tenant text, p_slug text, p_email text, p_claim_hash bytea, p_return_hash bytea, p_state text, p_network text,
  p_unclaimed_max integer, p_network_max integer, p_free_before bigint, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7265763011);
  PERFORM free_unclaimed(p_free_before, p_unclaimed_max, p_now);
  IF EXISTS (SELECT 1 FROM tenants t WHERE t.slug = p_slug) THEN
    RETURN 'slug_taken';
  END IF;
  IF (SELECT count(*) FROM (
    SELECT 1 FROM tenants t WHERE (t.claimed_at IS NULL OR t.state = 'pending') AND t.slug IS NOT NULL
    LIMIT p_unclaimed_max) unclaimed
  ) >= p_unclaimed_max THEN
    RETURN 'unavailable';
  END IF;
  IF (SELECT count(*) FROM (
    SELECT 1 FROM tenants t WHERE (t.claimed_at IS NULL OR t.state = 'pending') AND t.slug IS NOT NULL
      AND t.signup_network = p_network LIMIT p_network_max) unclaimed
  ) >= p_network_max THEN
    RETURN 'rate_limited';
  END IF;
  INSERT INTO tenants (id, slug, email, state, claim_token_hash, return_hash, signup_network, created_at)
    VALUES (p_tenant, p_slug, p_email, p_state, p_claim_hash, p_return_hash, p_network, p_now);
  INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
    VALUES (p_tenant, 'inbox', 'inbox', p_now, p_now, 1);
  INSERT INTO host_changes (slug, tenant_id, at) VALUES (p_slug, p_tenant, p_now);
  RETURN 'ok';
END $$;
