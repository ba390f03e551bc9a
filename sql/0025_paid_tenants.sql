-- See 0009. A tenant that billing has judged has paid once, also where the event that said so did not name it: then
-- paid_until, which is set from events that do, is still null.
CREATE OR REPLACE FUNCTION free_unclaimed(p_before bigint, p_limit integer, p_now bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_freed integer;
BEGIN
  WITH old AS (
    SELECT t.id FROM tenants t
    WHERE (t.claimed_at IS NULL OR t.state = 'pending') AND t.slug IS NOT NULL
      AND t.created_at < p_before AND t.paid_until IS NULL AND t.billing_state IS NULL
    ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), freed AS (
    DELETE FROM tenants t USING old WHERE t.id = old.id RETURNING t.slug
  ), told AS (
    INSERT INTO host_changes (slug, tenant_id, at) SELECT f.slug, NULL, p_now FROM freed f RETURNING 1
  )
  SELECT count(*)::integer INTO v_freed FROM told;
  RETURN v_freed;
END $$;
