-- The limit of certificates (rate_take in 0003) counts a name once, whichever instance is asked for it.

-- As rate_take for p_key, unless p_once was counted within p_once_window milliseconds: then -1, and nothing is counted. Rivals
-- for the same p_once wait for each other, since the first statement locks its row until the end.
CREATE FUNCTION rate_take_once(p_once bytea, p_once_window bigint, p_key bytea, p_now bigint, p_window bigint, p_limit integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_wait bigint;
BEGIN
  IF rate_take(p_once, p_now, p_once_window, 1) > 0 THEN
    RETURN -1;
  END IF;
  v_wait := rate_take(p_key, p_now, p_window, p_limit);
  IF v_wait > 0 THEN
    DELETE FROM rate_limits r WHERE r.key = p_once;
  END IF;
  RETURN v_wait;
END $$;
