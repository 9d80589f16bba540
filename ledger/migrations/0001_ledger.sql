-- The ledger's first shape. A migration that was released is never edited: a new file follows it.

create table monarch_ledger.move (
    id              uuid primary key,
    org_id          text not null,
    source_cell     text not null,
    sink_cell       text not null,
    phase           text not null,
    -- How many transitions were made: tells a late request from a repeated one.
    step            bigint not null default 0,
    -- What the control plane compares before it changes the routing.
    token           uuid not null,
    workflow_id     text not null,
    run_id          text not null,
    options         jsonb not null,
    -- Also those that hold none of the organization's ids.
    spine_tables    text[] not null,
    spine_digest    text not null,
    reason_code     text,
    reason          text,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    fenced_at       timestamptz,
    flipped_at      timestamptz,
    write_pause_ms  bigint,
    ended_at        timestamptz,
    constraint move_phase check (phase in (
        'active', 'draining', 'flipping', 'cut_over', 'evicting', 'finalized',
        'aborting', 'failed', 'aborted')),
    constraint move_cells check (source_cell <> sink_cell),
    constraint move_ended check ((ended_at is not null) = (phase in ('finalized', 'aborted')))
);

-- The lease: one live move in the whole fleet.
create unique index move_one_live on monarch_ledger.move ((true))
    where phase not in ('finalized', 'aborted');
create index move_by_org on monarch_ledger.move (org_id, created_at desc);
create index move_by_age on monarch_ledger.move (created_at desc);

create table monarch_ledger.move_unit (
    move_id               uuid not null references monarch_ledger.move,
    store                 text not null,
    status                text not null default 'pending',
    epoch                 bigint not null default 0,
    slot_prefix           text not null,
    -- The slot of the copy that counts; null before the first.
    slot                  text,
    source_database       jsonb,
    sink_database         jsonb,
    consistent_point      pg_lsn,

    rows_copied           bigint not null default 0,
    bytes_copied          bigint not null default 0,
    rows_estimated        bigint,
    tables_done           integer not null default 0,
    tables_total          integer,
    copy_started_at       timestamptz,
    copied_at             timestamptz,

    received_lsn          pg_lsn,
    applied_lsn           pg_lsn,
    acknowledged_lsn      pg_lsn,
    source_head_lsn       pg_lsn,
    last_change_lsn       pg_lsn,
    last_change_commit_at timestamptz,
    changes_applied       bigint not null default 0,
    transactions_applied  bigint not null default 0,
    lag_bytes             bigint,
    retained_wal_bytes    bigint,
    heartbeat_at          timestamptz,

    barrier_nonce         uuid,
    barrier_lsn           pg_lsn,
    sealed_at             timestamptz,

    tail_snapshot         text,
    tail_lsn              pg_lsn,
    -- Table -> changes seen in scope behind the barrier. Never applied; they forbid eviction.
    late_changes          jsonb not null default '{}',
    -- Table -> rows deleted on the losing side.
    rows_evicted          jsonb not null default '{}',

    last_error_code       text,
    last_error            text,
    last_error_at         timestamptz,
    error_count           bigint not null default 0,

    primary key (move_id, store),
    constraint move_unit_status check (status in (
        'pending', 'copying', 'copied', 'streaming', 'slot_dropped', 'evicting', 'evicted')),
    constraint move_unit_barrier check ((barrier_nonce is null) = (barrier_lsn is null)),
    constraint move_unit_tail check ((tail_snapshot is null) = (tail_lsn is null))
);

-- Ids are compared as bytes, so that the database and the digest agree on their order.
create table monarch_ledger.move_spine (
    move_id    uuid not null references monarch_ledger.move,
    table_name text collate "C" not null,
    id         text collate "C" not null,
    primary key (move_id, table_name, id)
);

create table monarch_ledger.move_event (
    id      bigint generated always as identity primary key,
    move_id uuid not null references monarch_ledger.move,
    -- Null: the move as a whole.
    store   text,
    at      timestamptz not null default clock_timestamp(),
    kind    text not null,
    -- Phases where store is null, else statuses; null for what changed neither.
    before  text,
    after   text,
    detail  jsonb not null default '{}'
);
create index move_event_by_move on monarch_ledger.move_event (move_id, id);

create function monarch_ledger.refuse_change() returns trigger
    language plpgsql
    set search_path = pg_catalog
as $$
begin
    raise exception 'the journal is append-only'
        using errcode = 'insufficient_privilege', schema = tg_table_schema, table = tg_table_name;
end
$$;

create trigger move_event_is_append_only
    before update or delete or truncate on monarch_ledger.move_event
    for each statement execute function monarch_ledger.refuse_change();

create table monarch_ledger.blob_key (
    move_id     uuid not null references monarch_ledger.move,
    store       text not null,
    key         text collate "C" not null,
    table_name  text not null,
    recorded_at timestamptz not null default now(),
    size_bytes  bigint,
    sha256      text,
    copied_at   timestamptz,
    missing_at  timestamptz,
    primary key (move_id, store, key)
);
