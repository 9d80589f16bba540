-- Store `metrics`: numbers over time, and what is done when they are too high.
create type aggregation as enum ('sum', 'max', 'p95');

create table metric_series (
  id integer generated always as identity primary key,
  project_id bigint not null,
  name text not null,
  aggregation aggregation not null default 'sum',
  unique (project_id, name)
);

create table sample (
  series_id integer not null references metric_series,
  at timestamptz not null,
  value numeric not null,
  error double precision,
  primary key (series_id, at)
);

create table alert_rule (
  id uuid primary key default gen_random_uuid(),
  project_id bigint not null,
  thresholds numeric[] not null,
  "window" interval not null,
  condition jsonb not null default '{}'
);
create index on alert_rule (project_id);

create table quota (
  organization_id bigint primary key,
  used bigint not null default 0,
  "limit" bigint not null
);
