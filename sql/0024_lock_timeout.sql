-- A batch of many tenants waits where another transaction has locked one of them. After this time it is decided again without
-- those that are still locked: the others would wait for as long as that transaction lasts. A deadlock is found earlier, after
-- a second, and ends without a failed write.
ALTER FUNCTION insert_changes SET lock_timeout = '3s';
ALTER FUNCTION commit_changes SET lock_timeout = '3s';
