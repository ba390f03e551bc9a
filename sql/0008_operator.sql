-- What an operator does by hand (service-admin). Locks and verdicts as in 0003.

-- Suspends, activates or closes a tenant (reference, HTTP, States of a tenant). The generation rises: every instance judges
-- its callers anew.
CREATE FUNCTION set_tenant_state(p_tenant text, p_state text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  UPDATE tenants SET state = p_state, generation = generation + 1 WHERE id = p_tenant AND state <> p_state;
  RETURN 'ok';
END $$;

-- Deletes a tenant for good, at most p_limit items a call; `gone` once nothing is left. It is closed first, so that
-- nothing is written behind the deletion's back; whoever is cut off in between goes on with the next call.
CREATE FUNCTION delete_tenant(p_tenant text, p_limit integer, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_slug text;
BEGIN
  SELECT slug INTO v_slug FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  UPDATE tenants SET state = 'inactive', generation = generation + 1 WHERE id = p_tenant AND state <> 'inactive';
  DELETE FROM items i WHERE i.tenant_id = p_tenant AND i.id = ANY (ARRAY(
    SELECT o.id FROM items o WHERE o.tenant_id = p_tenant LIMIT p_limit));
  IF FOUND THEN
    RETURN 'more';
  END IF;
  DELETE FROM presence WHERE tenant_id = p_tenant;
  DELETE FROM tenants WHERE id = p_tenant;
  IF v_slug IS NOT NULL THEN
    INSERT INTO host_changes (slug, tenant_id, at) VALUES (v_slug, NULL, p_now);
  END IF;
  RETURN 'gone';
END $$;

-- Another claim token for a tenant that nobody has claimed: the first link was lost.
CREATE FUNCTION renew_claim_token(p_tenant text, p_claim_hash bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  UPDATE tenants SET claim_token_hash = p_claim_hash WHERE id = p_tenant AND claimed_at IS NULL;
  RETURN CASE WHEN FOUND THEN 'ok' ELSE 'bootstrap_already_done' END;
END $$;

-- Removes the account password. `password_set_at` stays: the next one gets a later time, so that tickets for the old
-- one never fit it.
CREATE FUNCTION remove_password(p_tenant text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenants WHERE id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'tenant_not_found';
  END IF;
  UPDATE tenants SET password_hash = NULL WHERE id = p_tenant;
  RETURN 'ok';
END $$;

-- Where a tenant's figures differ from what its rows say, and rows that belong to nobody. No rows: all is well.
CREATE FUNCTION discrepancies() RETURNS TABLE (tenant_id text, what text, stored bigint, counted bigint)
LANGUAGE sql STABLE AS $$
  WITH counted AS (
    SELECT i.tenant_id, max(i.version) AS head, count(*) FILTER (WHERE i.deleted_at IS NULL) AS items,
      coalesce(sum(i.version) FILTER (WHERE i.deleted_at IS NULL), 0)::bigint AS versions, sum(i.bytes)::bigint AS bytes
    FROM items i GROUP BY i.tenant_id
  ), blobbed AS (
    SELECT b.tenant_id, sum(b.size)::bigint AS bytes FROM blobs b GROUP BY b.tenant_id
  ), figures AS (
    SELECT t.id, t.head, t.item_count, t.version_sum, t.storage_bytes, coalesce(c.head, 0) AS c_head,
      coalesce(c.items, 0) AS c_items, coalesce(c.versions, 0) AS c_versions,
      coalesce(c.bytes, 0) + coalesce(b.bytes, 0) AS c_bytes
    FROM tenants t LEFT JOIN counted c ON c.tenant_id = t.id LEFT JOIN blobbed b ON b.tenant_id = t.id
  )
  SELECT id, 'items', item_count, c_items FROM figures WHERE item_count <> c_items
  UNION ALL SELECT id, 'version sum', version_sum, c_versions FROM figures WHERE version_sum <> c_versions
  UNION ALL SELECT id, 'storage bytes', storage_bytes, c_bytes FROM figures WHERE storage_bytes <> c_bytes
  -- The newest change may have been of an item that is newer still, but none may be above the head.
  UNION ALL SELECT id, 'head below a version', head, c_head FROM figures WHERE head < c_head
  UNION ALL SELECT c.tenant_id, 'items without a tenant', 0, c.items FROM counted c
    WHERE NOT EXISTS (SELECT 1 FROM tenants t WHERE t.id = c.tenant_id)
  UNION ALL SELECT i.tenant_id, 'items in a bin that never was', 0, count(*) FROM items i
    WHERE i.deleted_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM bins b WHERE b.tenant_id = i.tenant_id AND b.id = i.bin_id)
    GROUP BY i.tenant_id
$$;
