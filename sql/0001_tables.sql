-- Tables. Times are integer milliseconds given by the server, so that tests can set the clock.
-- Identifiers are text in byte order (COLLATE "C"): locks are taken in id order and must sort alike everywhere.

-- The history this database tells (reference, Sockets, Reset): new when the cluster, its timeline or the database is another.
CREATE TABLE installation (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch text NOT NULL,
  system_identifier text NOT NULL,
  timeline text NOT NULL,
  database_oid bigint NOT NULL
);

-- One row per tenant: its version counter, its sums and the lock that orders everything that changes it.
-- fillfactor leaves room for the next version of the row on the same page: it changes with every commit.
CREATE TABLE tenants (
  id text COLLATE "C" PRIMARY KEY,
  slug text COLLATE "C" UNIQUE,
  state text NOT NULL DEFAULT 'active',
  -- Rises under the row lock whenever devices, bins, pairings or state change: what a write was checked against (INST-11).
  generation bigint NOT NULL DEFAULT 1,
  head bigint NOT NULL DEFAULT 0,
  item_count bigint NOT NULL DEFAULT 0,
  version_sum bigint NOT NULL DEFAULT 0,
  storage_bytes bigint NOT NULL DEFAULT 0,
  claimed_at bigint,
  claim_token_hash bytea,
  recovery_pubkey bytea,
  password_hash text,
  password_set_at bigint,
  created_at bigint NOT NULL
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE devices (
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
  id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  glyph text NOT NULL,
  pubkey bytea NOT NULL,
  cert bytea,
  -- Part of every token: revoking raises it, so older tokens die (TOKEN-11).
  token_epoch integer NOT NULL DEFAULT 1,
  paired_at bigint NOT NULL,
  revoked_at bigint,
  last_seen_at bigint,
  -- False from a revocation until the device's entries are gone from the stored keys (reference, Pairing, Revoking).
  keys_purged boolean NOT NULL DEFAULT true,
  PRIMARY KEY (tenant_id, id)
);

CREATE TABLE bins (
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
  id text COLLATE "C" NOT NULL,
  slug text COLLATE "C" NOT NULL,
  meta bytea,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  -- Set first: writes are refused from then on, while the items are deleted in batches (reference, HTTP, Bins).
  closed_at bigint,
  deleted_at bigint,
  -- The tenant's generation when this row last changed: a reader finds what is new since the one it knows.
  changed_at_generation bigint NOT NULL,
  PRIMARY KEY (tenant_id, id)
);
-- A slug is unique among the bins that still exist.
CREATE UNIQUE INDEX bins_slug ON bins (tenant_id, slug) WHERE deleted_at IS NULL;

-- Items, tombstones included. Binary fields are raw bytes. `keys` and `blob_keys` are packed:
-- per entry 26 bytes of device id, a 2-byte big-endian length, the sealed key.
-- No foreign key: every writer holds the tenant's row lock, and the check would look that row up again for each item.
CREATE TABLE items (
  tenant_id text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  version bigint NOT NULL CHECK (version > 0),
  bin_id text COLLATE "C" NOT NULL,
  type text,
  ts bigint,
  sender_device text COLLATE "C",
  -- Who made this version: that device's sockets get no push of it.
  changed_by text COLLATE "C",
  deleted_at bigint,
  -- Hash of the write as received, and after it those of its last 31 re-wraps, 32 bytes each: they recognise the same
  -- write sent again (RETRY-01).
  write_hash bytea,
  ct bytea,
  nonce bytea,
  sig bytea,
  master bytea,
  keys bytea,
  blob_ref text COLLATE "C",
  blob_nonce bytea,
  blob_keys bytea,
  -- What this row counts towards the storage cap.
  bytes integer NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, id)
);
-- Ciphertext does not compress; trying costs a tenth of a write.
ALTER TABLE items ALTER COLUMN ct SET STORAGE EXTERNAL;
ALTER TABLE items ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE items ALTER COLUMN blob_keys SET STORAGE EXTERNAL;
-- Replay and GET /items read by version; uniqueness is a guarantee, not only a hope.
-- Partial, though every version is above 0: so only a query that says so can use it. A plan made on the statistics of
-- an empty table would otherwise look an item up by id through this index, reading the tenant's whole history for it.
-- It carries what counts of bins and the deletion of one look at: an index of their own is a third of a write's work.
CREATE UNIQUE INDEX items_version ON items (tenant_id, version) INCLUDE (bin_id, deleted_at) WHERE version > 0;

-- Blobs by name; their bytes lie in the object store (reference, Blobs). Every row's size counts in its tenant's
-- storage_bytes, from the reservation until the object is gone. States:
--   reserved  an upload URL was given
--   ready     uploaded with its declared size; only such a blob may be named by an item
--   orphan    its item was deleted or replaced
--   dying     the object is being removed; nobody may name it any more
CREATE TABLE blobs (
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
  ref text COLLATE "C" NOT NULL,
  size bigint NOT NULL,
  state text NOT NULL,
  item_id text COLLATE "C",
  created_at bigint NOT NULL,
  content_type text NOT NULL DEFAULT 'application/octet-stream',
  -- So long is the upload URL good.
  expires_at bigint NOT NULL DEFAULT 0,
  -- So long does an upload count as under way. Through this server it moves on while bytes come; past it, to a bucket,
  -- nobody tells of them, and it is set with the reservation.
  uploading_until bigint NOT NULL DEFAULT 0,
  -- When the store was last asked about it for the sake of its removal: what the store refuses waits behind the others.
  tried_at bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, ref)
);
CREATE INDEX blobs_reserved ON blobs (tenant_id, expires_at) WHERE state = 'reserved';
-- What the nightly job may have to remove.
CREATE INDEX blobs_unused ON blobs (tried_at, created_at)
  WHERE state IN ('orphan', 'dying') OR (state = 'ready' AND item_id IS NULL);

-- Pairing between two devices (reference, Pairing). Rows outlive their session by a little, so that a late code is told
-- apart from a wrong one.
CREATE TABLE pair_sessions (
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
  lookup_id text COLLATE "C" PRIMARY KEY,
  code text NOT NULL,
  -- open -> requested -> wrapped | rejected
  state text NOT NULL,
  existing_device text COLLATE "C" NOT NULL,
  epk bytea NOT NULL,
  expires_at bigint NOT NULL,
  new_device text COLLATE "C",
  host text,
  npk bytea,
  name text,
  glyph text,
  attestation bytea,
  wrapped_master_key bytea,
  device_cert bytea,
  confirmation bytea
);
CREATE INDEX pair_sessions_code ON pair_sessions (code);
CREATE INDEX pair_sessions_device ON pair_sessions (tenant_id, existing_device);

-- Challenges for re-authentication and recovery: one use, two minutes. `secret` is what the answer is checked with.
CREATE TABLE challenges (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
  kind text NOT NULL,
  device_id text COLLATE "C",
  secret bytea NOT NULL,
  expires_at bigint NOT NULL
);
CREATE INDEX challenges_expiry ON challenges (expires_at);

-- Signed one-use tickets that were used (socket and password tickets), until they would have expired anyway.
CREATE TABLE spent_tickets (
  id text COLLATE "C" PRIMARY KEY,
  expires_at bigint NOT NULL
);
CREATE INDEX spent_tickets_expiry ON spent_tickets (expires_at);

-- Limits that hold across instances: the times of the last uses per key (a hash of purpose and address).
CREATE TABLE rate_limits (
  key bytea PRIMARY KEY,
  used_at bigint[] NOT NULL,
  expires_at bigint NOT NULL
);
CREATE INDEX rate_limits_expiry ON rate_limits (expires_at);

-- Who is up, and which devices hold a socket where. Lost in a crash, which is right: sockets are lost with it.
CREATE UNLOGGED TABLE instances (
  id text COLLATE "C" PRIMARY KEY,
  seen_at bigint NOT NULL
);
CREATE UNLOGGED TABLE presence (
  instance_id text COLLATE "C" NOT NULL,
  tenant_id text COLLATE "C" NOT NULL,
  device_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant_id, device_id, instance_id)
);
