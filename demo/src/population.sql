-- store default
insert into organization (id, slug, name, plan, joined_at)
values ({org}, '{slug}', '{slug} Ltd. "quoted" \ and	tabbed', 'enterprise', '2020-02-29 12:00+02');
insert into project (id, organization_id, slug, settings)
select id, {org}, 'project-' || id, jsonb_build_object('dsn', id, 'nested', jsonb_build_array(null, 1.50))
from unnest({projects}) id;
insert into team (id, organization_id, name, labels)
select {base} + n, {org}, 'team ' || n, array['a,b', null, 'it''s "' || n || '"']
from generate_series(1, greatest({rows} / 50, 2)) n;
insert into team_member (team_id, user_id, role)
select {base} + 1 + n % greatest({rows} / 50, 2), {base} + n, 'member' from generate_series(0, {rows} / 5) n;
insert into invitation (id, team_id, email)
select {base} + n, case when n % 4 > 0 then {base} + 1 + n % greatest({rows} / 50, 2) end, n || '@{slug}.example'
from generate_series(1, {rows} / 10) n;
insert into "Issue" (id, project_id, "shortId", title, state, weight, labels)
select {base} + n, ({projects})[1 + n % 3], n, '問題 ' || n || E' \\. \t🙂',
       (enum_range(null::issue_state))[1 + n % 3], n * 1.0001, array['l' || n % 7]
from generate_series(1, {rows}) n;
insert into comment (issue_id, body, meta)
select {base} + 1 + n % {rows},
       case when n % 20 = 0 then (select string_agg(md5(n || ':' || i), '') from generate_series(1, 150) i)
            else 'comment ' || n end,
       jsonb_build_object('n', n)
from generate_series(1, 2 * {rows}) n;
insert into app.setting (organization_id, name, value)
select {org}, 'setting ' || n, to_jsonb(n) from generate_series(1, 20) n;
-- store events
insert into event_group (project_id, fingerprint, times_seen, last_seen)
select ({projects})[1 + n % 3], 'f' || n, n, 'epoch'::timestamptz + n * interval '1 h'
from generate_series(1, {rows} / 5 + 1) n;
insert into event (received, group_id, payload, size_bytes)
select date '2026-01-01' + n % 400, g.id,
       case when n % 20 = 0 then (select string_agg(md5(n || ':' || i), '') from generate_series(1, 150) i)
            else 'event ' || n end, n
from event_group g, generate_series(1, 10) n where project_id = any ({projects});
insert into event_tag (group_id, key, value)
select id, 'k' || n, 'v' || n from event_group, generate_series(1, 2) n where project_id = any ({projects});
-- store metrics
insert into metric_series (id, project_id, name, aggregation) overriding system value
select {base} + n, ({projects})[1 + n % 3], 'series ' || n, (enum_range(null::aggregation))[1 + n % 3]
from generate_series(1, {rows} / 20 + 1) n;
insert into sample (series_id, at, value, error)
select s.id, timestamptz '2026-03-01' + n * interval '1 min', n * 1e20 + 0.1, 1.0 / n
from metric_series s, generate_series(1, 40) n where project_id = any ({projects});
insert into alert_rule (project_id, thresholds, "window", condition)
select ({projects})[1 + n % 3], array[n, null, 'NaN'::numeric], n * interval '1 day 1 min', '{"when": "always"}'
from generate_series(1, 15) n;
insert into quota (organization_id, used, "limit") values ({org}, 0, 1000000);
