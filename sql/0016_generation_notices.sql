-- Devices, bins and the state of a tenant decide who may read and write. Their changes raise its generation, and tell the
-- instances in the transaction itself: a notification that is sent after the commit could be lost with its sender. Heads,
-- which rise with every write, are announced after the commit, since NOTIFY holds a database-wide lock until its end.
CREATE FUNCTION notify_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Whoever reads a tenant that is gone finds that out, whatever the number.
  PERFORM pg_notify('service_generations', old.id || ' ' || CASE TG_OP WHEN 'DELETE' THEN old.generation + 1 ELSE new.generation END);
  RETURN NULL;
END $$;

CREATE TRIGGER notify_generation AFTER UPDATE OF generation OR DELETE ON tenants
  FOR EACH ROW EXECUTE FUNCTION notify_generation();
