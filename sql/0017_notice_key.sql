-- The key by which instances know each other's notifications: whoever may connect to the database can send one in any
-- name, who may read this table alone can make one that is believed.
CREATE TABLE notice_key (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  key bytea NOT NULL CHECK (length(key) = 32)
);

-- Of 244 random bits.
INSERT INTO notice_key (key) VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
