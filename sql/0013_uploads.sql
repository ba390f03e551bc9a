-- Uploads in parts (reference, Blobs). A row that is reserved may be continued until expires_at, which moves with it.
ALTER TABLE blobs
  -- What the store knows an upload in parts by: the id of S3, the URI of Google's session, which is a right by itself, or
  -- empty in a folder. Null: one PUT, of which the store keeps nothing before its end; and of every upload that has ended.
  ADD COLUMN session text,
  -- Bytes from the beginning that the store keeps durably, as far as the server knows.
  ADD COLUMN kept bigint NOT NULL DEFAULT 0;
