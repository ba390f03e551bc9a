-- A fingerprint of the signing keys of each instance: those with different keys refuse each other's tokens, and devices are
-- sent away by one that the other let in. '': an older version, which says nothing of them.
ALTER TABLE instances ADD COLUMN secrets text NOT NULL DEFAULT '';
