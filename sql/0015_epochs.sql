-- Every epoch that this database ever had. A server that has seen an epoch uses no database that never had it: that is a
-- former primary, whose history ended where another one was promoted, or one that has nothing to do with it.
CREATE TABLE epochs (
  epoch text COLLATE "C" PRIMARY KEY
);

INSERT INTO epochs (epoch) SELECT epoch FROM installation;

CREATE FUNCTION keep_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO epochs (epoch) VALUES (new.epoch) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;

CREATE TRIGGER keep_epoch AFTER INSERT OR UPDATE OF epoch ON installation FOR EACH ROW EXECUTE FUNCTION keep_epoch();

-- As `claim_epoch(text)`, for a caller that has seen the epoch p_seen (empty: none). NULL, and nothing is claimed, where
-- that is no part of this database's history.
CREATE FUNCTION claim_epoch(p_fresh text, p_seen text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF p_seen <> '' AND NOT EXISTS (SELECT FROM epochs e WHERE e.epoch = p_seen) THEN
    RETURN NULL;
  END IF;
  -- A server that was just promoted may have no standby yet to wait for: until there is one it can be read.
  PERFORM set_config('synchronous_commit', 'local', true);
  RETURN claim_epoch(p_fresh);
END $$;
