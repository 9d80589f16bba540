//! Whether our roles may do what a move does.

use monarch_config::Graph;
use monarch_model::{StoreName, TableName};
use tokio_postgres::Row;

use super::finding::{Finding, Place};
use super::open::{Open, Side};
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Result};

/// What our role may do with one table.
struct TableAccess {
    table: TableName,
    store: StoreName,
    /// What of the wanted privileges is missing.
    missing: Vec<&'static str>,
    /// Its owner, if our role is not of it.
    foreign_owner: Option<String>,
    schema_usage: bool,
}

pub(super) async fn check(open: &Open<'_>, graph: &Graph) -> Result<Vec<Finding>> {
    let role = role(open).await?;
    let mut findings = Vec::new();
    let wanted: &[&str] = match open.side {
        Side::Source => &["select", "delete"],
        Side::Sink => &["select", "insert", "update", "delete"],
    };
    for access in tables(open, graph, wanted).await? {
        let place = open.place.table(&access.store, &access.table);
        findings.extend(privileges(&access, &role, &place));
        if open.side == Side::Source {
            findings.extend(ownership(&access, &role, &place));
        }
    }
    findings.extend(foreign_keys_off(open, &role).await?);
    match open.side {
        Side::Source => findings.extend(source(open, &role).await?),
        Side::Sink => findings.extend(sink(open, &role).await?),
    }
    Ok(findings)
}

async fn role(open: &Open<'_>) -> Result<String> {
    let doing = "read our role";
    let row = open
        .primary
        .query_one("select current_user::text", &[])
        .await
        .doing(doing)?;
    row.try_get(0).doing(doing)
}

const TABLES: &str = "
select asked.place,
       array(select wanted from unnest($2::text[]) as wanted
              where not has_table_privilege(c.oid, wanted)),
       case when not pg_has_role(c.relowner, 'usage') then pg_get_userbyid(c.relowner)::text end,
       has_schema_privilege(c.relnamespace, 'usage')
  from unnest($1::oid[]) with ordinality as asked(oid, place)
  join pg_catalog.pg_class c on c.oid = asked.oid
 order by asked.place";

async fn tables(
    open: &Open<'_>,
    graph: &Graph,
    wanted: &'static [&'static str],
) -> Result<Vec<TableAccess>> {
    let doing = "read our privileges on tables";
    let there: Vec<_> = open
        .tables(graph)
        .into_iter()
        .filter_map(|table| Some((table, open.catalog.relation(&table.name)?.oid)))
        .collect();
    let oids: Vec<u32> = there.iter().map(|(_, oid)| *oid).collect();
    let rows = open
        .primary
        .query(TABLES, &[&oids, &wanted])
        .await
        .doing(doing)?;
    rows.iter()
        .zip(&there)
        .map(|(row, (table, _))| access(row, &table.name, &table.store, wanted).doing(doing))
        .collect()
}

fn access(
    row: &Row,
    table: &TableName,
    store: &StoreName,
    wanted: &[&'static str],
) -> std::result::Result<TableAccess, tokio_postgres::Error> {
    let missing: Vec<String> = row.try_get(1)?;
    let is_missing = |privilege: &&&str| missing.iter().any(|m| m == **privilege);
    Ok(TableAccess {
        table: table.clone(),
        store: store.clone(),
        missing: wanted.iter().filter(is_missing).copied().collect(),
        foreign_owner: row.try_get(2)?,
        schema_usage: row.try_get(3)?,
    })
}

fn privileges(access: &TableAccess, role: &str, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    let schema = quote_ident(access.table.schema());
    if !access.schema_usage {
        let what = format!("role {role} may not use schema {}", access.table.schema());
        let why = "None of its tables can be reached";
        let finding = Finding::refuse("no-schema-usage", place.clone(), what, why);
        let mend = format!("grant usage on schema {schema} to {}", quote_ident(role));
        findings.push(finding.mend(mend));
    }
    if !access.missing.is_empty() {
        let missing = access.missing.join(", ");
        let finding = Finding::refuse(
            "no-table-privilege",
            place.clone(),
            format!("role {role} may not {missing}"),
            "Rows are read from the source and deleted there at the end, and written on the sink",
        );
        findings.push(finding.mend(format!(
            "grant {missing} on {} to {}",
            qualified(&access.table),
            quote_ident(role)
        )));
    }
    findings
}

/// A table is added to a publication by its owner.
fn ownership(access: &TableAccess, role: &str, place: &Place) -> Option<Finding> {
    let owner = access.foreign_owner.as_ref()?;
    let finding = Finding::refuse(
        "cannot-publish",
        place.clone(),
        format!("role {role} is not of the table's owner, {owner}"),
        "Only its owner, or a superuser, may add a table to a publication",
    );
    Some(finding.mend(format!(
        "grant {} to {}",
        quote_ident(owner),
        quote_ident(role)
    )))
}

/// Rows are deleted with foreign keys on, whatever is the role's default.
async fn foreign_keys_off(open: &Open<'_>, role: &str) -> Result<Option<Finding>> {
    let doing = "read the role's session_replication_role";
    let sql = "select current_setting('session_replication_role') <> 'origin'";
    let row = open.primary.query_one(sql, &[]).await.doing(doing)?;
    let off: bool = row.try_get(0).doing(doing)?;
    if !off || open.may_set_replication_role().await? {
        return Ok(None);
    }
    let finding = Finding::refuse(
        "foreign-keys-off",
        open.place.clone(),
        format!("session_replication_role of role {role} is not origin, and it may not set it"),
        "Rows would be deleted with foreign keys off, and leave orphans behind",
    );
    let mend = format!(
        "alter role {} reset session_replication_role",
        quote_ident(role)
    );
    Ok(Some(finding.mend(mend)))
}

const SOURCE: &str = "
select (select rolsuper or rolreplication from pg_catalog.pg_roles where rolname = current_user),
       has_database_privilege(current_database(), 'create'),
       pg_has_role('pg_read_all_stats', 'usage'),
       current_database()::text";

async fn source(open: &Open<'_>, role: &str) -> Result<Vec<Finding>> {
    let doing = "read our rights on the source";
    let row = open.primary.query_one(SOURCE, &[]).await.doing(doing)?;
    let get = |column: usize| row.try_get::<_, bool>(column).doing(doing);
    let database: String = row.try_get(3).doing(doing)?;
    let (ident, place) = (quote_ident(role), &open.place);
    let mut findings = Vec::new();
    if !get(0)? {
        let finding = Finding::refuse(
            "no-replication-attribute",
            place.clone(),
            format!("role {role} has not the attribute replication"),
            "Without it no slot can be made and no change be read",
        );
        findings.push(finding.mend(format!("alter role {ident} replication")));
    }
    if !get(1)? {
        let finding = Finding::refuse(
            "cannot-publish",
            place.clone(),
            format!("role {role} may not create in the database"),
            "Without it no publication can be made",
        );
        let mend = format!(
            "grant create on database {} to {ident}",
            quote_ident(&database)
        );
        findings.push(finding.mend(mend));
    }
    if !get(2)? {
        let finding = Finding::warn(
            "cannot-see-sessions",
            place.clone(),
            format!("role {role} may not see what other sessions do"),
            "Who blocks a slot or a drain is told without age, and more is waited for than need be",
        );
        findings.push(finding.mend(format!("grant pg_read_all_stats to {ident}")));
    }
    findings.extend(standby_snapshots(open, role).await?);
    Ok(findings)
}

/// A standby's slot waits for a record that the primary writes when it is asked to.
async fn standby_snapshots(open: &Open<'_>, role: &str) -> Result<Option<Finding>> {
    if open.standby.is_none() {
        return Ok(None);
    }
    let doing = "read our rights on the source";
    let sql = "select coalesce(has_function_privilege(to_regprocedure(
                 'pg_catalog.pg_log_standby_snapshot()')::oid, 'execute'), true)";
    let row = open.primary.query_one(sql, &[]).await.doing(doing)?;
    if row.try_get(0).doing(doing)? {
        return Ok(None);
    }
    let finding = Finding::refuse(
        "cannot-log-standby-snapshot",
        open.place.clone(),
        format!("role {role} may not call pg_log_standby_snapshot()"),
        "On a quiet primary the making of a slot on its standby would wait for minutes",
    );
    Ok(Some(finding.mend(format!(
        "grant execute on function pg_catalog.pg_log_standby_snapshot() to {}",
        quote_ident(role)
    ))))
}

/// A schema without its tables is not enough: they are made by whoever may make the schema.
const SINK: &str = "
select (select count(*) = 2 from pg_catalog.pg_class c
         where c.relnamespace = to_regnamespace('monarch')::oid
           and c.relname in ('unit', 'sealed_membership')),
       coalesce(has_schema_privilege(to_regnamespace('monarch')::oid, 'usage'), true)
         and not exists (
           select from pg_catalog.pg_class c
            where c.relnamespace = to_regnamespace('monarch')::oid and c.relkind = 'r'
              and exists (select from unnest(array['select', 'insert', 'update', 'delete']) as p
                           where not has_table_privilege(c.oid, p))),
       has_database_privilege(current_database(), 'create'),
       current_database()::text";

async fn sink(open: &Open<'_>, role: &str) -> Result<Vec<Finding>> {
    let doing = "read our rights on the sink";
    let row = open.primary.query_one(SINK, &[]).await.doing(doing)?;
    let get = |column: usize| row.try_get::<_, bool>(column).doing(doing);
    let database: String = row.try_get(3).doing(doing)?;
    let ident = quote_ident(role);
    let why = "Each unit's position is kept there, in the transactions that apply its changes";
    let refuse = |what: String| Finding::refuse("no-state-schema", open.place.clone(), what, why);
    Ok(match (get(0)?, get(1)?, get(2)?) {
        (true, false, _) => vec![
            refuse(format!("role {role} may not use the schema monarch")).mend(format!(
                "grant usage on schema monarch to {ident}; \
                 grant select, insert, update, delete on all tables in schema monarch to {ident}"
            )),
        ],
        (false, _, false) => vec![
            refuse(format!("role {role} may not create the schema monarch")).mend(format!(
                "grant create on database {} to {ident}",
                quote_ident(&database)
            )),
        ],
        _ => Vec::new(),
    })
}
