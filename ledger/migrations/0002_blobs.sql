-- What becomes of each key. Nothing was ever written to the table in its first shape.

alter table monarch_ledger.blob_key
    drop constraint blob_key_pkey,
    -- sha256 of the key. A key is any text of the source's rows: one that no bucket could hold, and
    -- no index either, is recorded all the same, to be refused by name.
    add column digest bytea not null,
    -- Set before the sink is written, when it had no such object: what a scrub may take back.
    add column put_at timestamptz,
    -- What the source said of the object that was copied: eviction deletes no other.
    add column source_tag text,
    -- What the sink said of the copy, or null: a scrub takes back no other.
    add column sink_tag text,
    -- Why the key cannot be copied, as a word.
    add column problem text,
    add column problem_at timestamptz,
    add column verified_at timestamptz,
    add column evicted_at timestamptz,
    add column scrubbed_at timestamptz,
    add primary key (move_id, store, digest),
    add constraint blob_key_copied check (
        (copied_at is null) = (sha256 is null) and (copied_at is null) = (size_bytes is null)),
    add constraint blob_key_problem check ((problem is null) = (problem_at is null));

create index blob_key_uncopied on monarch_ledger.blob_key (move_id, store, digest)
    where copied_at is null;
create index blob_key_troubled on monarch_ledger.blob_key (move_id, store, digest)
    where missing_at is not null or problem is not null;
