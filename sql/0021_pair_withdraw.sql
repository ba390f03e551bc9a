-- The new device withdraws from a pairing (reference, Pairing). Rules of locks and verdicts: see 0003; sessions: see 0004.

-- Its session ends as by a reject. Nothing changes where it is bound to another device's key, or is decided already.
CREATE FUNCTION pair_withdraw(p_tenant text, p_code text, p_npk bytea, p_now bigint, OUT withdrawn boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_session pair_sessions;
BEGIN
  withdrawn := false;
  PERFORM 1 FROM tenants t WHERE t.id = p_tenant FOR UPDATE;
  SELECT * INTO v_session FROM find_pair_session(p_tenant, p_code, p_now);
  IF FOUND AND v_session.state = 'requested' AND v_session.npk = p_npk THEN
    UPDATE pair_sessions s SET state = 'rejected' WHERE s.lookup_id = v_session.lookup_id;
    UPDATE tenants t SET generation = t.generation + 1 WHERE t.id = p_tenant;
    withdrawn := true;
  END IF;
END $$;
