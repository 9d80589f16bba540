-- Comparisons of both sides while a unit streams: asked for by an operator, answered by its mover.

create table monarch_ledger.verification (
    move_id    uuid not null,
    store      text not null,
    -- Counted within the unit, from one.
    number     integer not null,
    asked_at   timestamptz not null default clock_timestamp(),
    -- The mover that took it up.
    epoch      bigint,
    begun_at   timestamptz,
    ended_at   timestamptz,
    outcome    text,
    -- Where in the source's log the state is that was compared.
    lsn        pg_lsn,
    -- Rows and digests of both sides, and which tables differ; or why there was no answer.
    detail     jsonb not null default '{}',

    primary key (move_id, store, number),
    foreign key (move_id, store) references monarch_ledger.move_unit,
    constraint verification_outcome check (outcome in ('equal', 'differs', 'unanswered')),
    constraint verification_begun check ((epoch is null) = (begun_at is null)),
    constraint verification_ended check ((outcome is null) = (ended_at is null))
);

-- Who asks while one waits to be taken up waits for that one.
create unique index verification_waiting on monarch_ledger.verification (move_id, store)
    where begun_at is null and ended_at is null;
