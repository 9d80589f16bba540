-- What years of other migrations made of the sink: another column order, a dropped column, and
-- partitions of another size.
alter table app.setting drop column value;
alter table app.setting add column value jsonb not null;

alter table team add column obsolete text;
alter table team drop column obsolete;

drop table event_spring, event_autumn;
create table event_2026 partition of event for values from ('2026-01-01') to ('2027-01-01');
