-- What each instance says of itself with its heartbeat, and what the operator asks of it. An instance reads its own row
-- with each heartbeat: a notification could be sent by anybody who may connect, a row is written by those only who may
-- write the tables. An older version leaves all of it as it is.
ALTER TABLE instances
  ADD COLUMN host text NOT NULL DEFAULT '',
  ADD COLUMN pid integer NOT NULL DEFAULT 0,
  ADD COLUMN port integer NOT NULL DEFAULT 0,
  ADD COLUMN version text NOT NULL DEFAULT '',
  ADD COLUMN sockets integer NOT NULL DEFAULT 0,
  ADD COLUMN draining boolean NOT NULL DEFAULT false,
  -- The order to drain: when it was given (null: never; another time is another order), over how long, and whether the
  -- other processes on its port go on.
  ADD COLUMN drain_asked_at bigint,
  ADD COLUMN drain_ms bigint,
  ADD COLUMN drain_alone boolean;
