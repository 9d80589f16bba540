//! Every version that a source may have, with every sink beside it.

use monarch_harness::PgVersion::{self, V14, V15, V16, V17, V18};

use crate::world::{Case, Move};

const PAIRS: &[(PgVersion, PgVersion)] = &[
    (V15, V14),
    (V15, V15),
    (V15, V16),
    (V16, V15),
    (V16, V17),
    (V17, V16),
    (V17, V18),
    (V18, V17),
    (V18, V18),
    (V15, V18),
    (V18, V14),
];

const CASE: Case<'static> = Case {
    manifest: "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  project:
    store: default
    primary_key: [id]
    static: true
    refs: {organization_id: {parent: organization}}
  issue:
    store: default
    primary_key: [id]
    refs: {project_id: {parent: project}}
  entry:
    store: default
    primary_key: [issue_id, at]
    refs: {issue_id: {parent: issue}}
  label:
    store: default
    primary_key: [id]
    refs: {issue_id: {parent: issue}}
",
    schema: "
create table organization (id bigint primary key, name text);
create table project (id bigint primary key, organization_id bigint references organization);
create table issue (id bigserial primary key, project_id bigint references project, title text,
  size int generated always as (length(title)) stored);
create table entry (issue_id bigint references issue on delete cascade, at timestamptz, body text,
  primary key (issue_id, at)) partition by range (at);
create table entry_old partition of entry for values from (minvalue) to ('2024-01-01');
create table entry_new partition of entry for values from ('2024-01-01') to (maxvalue);
create table label (id bigint generated always as identity (start 1000) primary key,
  issue_id bigint references issue on delete cascade, name text, tags text[]);
alter table label replica identity full",
    source: "alter database $DB set logical_decoding_work_mem = '64kB'",
    fill: "
insert into organization values ($ORG, 'o');
insert into project select $ORG * 10 + n, $ORG from generate_series(1, 3) n;
insert into issue (id, project_id, title)
  select $ORG * 100 + n, $ORG * 10 + 1 + n % 3, repeat('t', n) from generate_series(1, 9) n;
insert into entry select $ORG * 100 + n, '2023-12-30'::timestamptz + n * interval '1 day',
  repeat('body', 2000) from generate_series(1, 9) n;
insert into label (id, issue_id, name, tags) overriding system value
  select $ORG * 100 + n, $ORG * 100 + n, 'l', array['x', null] from generate_series(1, 9) n",
    owned: &[
        ("organization", "id = $ORG"),
        ("project", "organization_id = $ORG"),
        ("issue", "project_id / 10 = $ORG"),
        (
            "entry",
            "issue_id in (select id from issue where project_id / 10 = $ORG)",
        ),
        (
            "label",
            "issue_id in (select id from issue where project_id / 10 = $ORG)",
        ),
    ],
    ..Case::EMPTY
};

/// Guards the promise of versions: between any two, the whole of a move does the same.
#[tokio::test]
async fn a_move_is_the_same_between_all_versions() {
    for &(source, sink) in PAIRS {
        let mut it = Move::prepare(&CASE, source, sink).await;
        let whole = it
            .whole(&[
                "insert into issue (id, project_id, title)
                   select p * 10 + 5, p, 'new' from unnest(array[11, 21]) p;
                 insert into entry select p * 10 + 5, '2030-01-01', 'new'
                   from unnest(array[11, 21]) p",
                "update entry set at = at + interval '3 days';
                 update label set name = name || tags[1];
                 update issue set title = 'renamed' where id % 2 = 0",
                // Large enough to be streamed before its commit, with a part that comes to nothing.
                "begin; insert into label (issue_id, name)
                   select 101, repeat('n', 200) from generate_series(1, 2000);
                 savepoint s; delete from label; rollback to s;
                 update label set tags = '{a,b}' where issue_id = 101; commit",
                "delete from issue where id in (103, 203);
                 update label set issue_id = 201 where issue_id = 105;
                 update label set issue_id = 104 where issue_id = 205",
            ])
            .await;
        let pair = format!("{source} to {sink}");
        assert!(
            whole.comparison.is_equal(),
            "{pair}: {:?}",
            whole.comparison
        );
        assert!(whole.evicted > 2000, "{pair}");
    }
}
