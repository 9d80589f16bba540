-- Store `events`: what happened in the projects. The projects are in another database, so that no
-- foreign key can tie these tables to them.
create table event_group (
  id uuid primary key default gen_random_uuid(),
  project_id bigint not null,
  fingerprint text not null,
  times_seen bigint not null default 0,
  last_seen timestamptz not null default now()
);
create index on event_group (project_id);

create table event (
  id uuid not null default gen_random_uuid(),
  received date not null default current_date,
  group_id uuid not null references event_group,
  payload text not null,
  size_bytes integer not null,
  primary key (id, received)
) partition by range (received);
create index on event (group_id);
create table event_spring partition of event for values from ('2026-01-01') to ('2026-07-01');
create table event_autumn partition of event for values from ('2026-07-01') to ('2027-01-01');
create table event_other partition of event default;
alter table event_spring alter column payload set storage external;
alter table event_autumn alter column payload set storage external;

create table event_tag (
  group_id uuid not null references event_group,
  key text not null,
  value text not null,
  primary key (group_id, key)
);
alter table event_tag replica identity full;
