-- Settings of the commit functions, for the time of a call: a connection keeps none, so that it may go through a pooler
-- that gives each transaction another session. Their plans are made once, maybe while the tables are still empty, and
-- kept: they must use the indexes, however small the tables were at that moment. Planning for each call would cost more
-- than a small batch.
ALTER FUNCTION insert_changes
  SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET work_mem = '32MB';
ALTER FUNCTION commit_changes
  SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET work_mem = '32MB';
