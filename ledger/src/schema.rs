//! The ledger's schema, made and brought up to date by `monarch ledger init`.

use monarch_postgres::sql::quote_ident;
use tokio_postgres::Transaction;

use crate::connection::Ledger;
use crate::error::LedgerError;

/// The migrations, in order; a migration's version is its place, counted from one. What was
/// released is never edited.
const MIGRATIONS: &[(&str, &str)] = &[
    ("ledger", include_str!("../migrations/0001_ledger.sql")),
    ("blobs", include_str!("../migrations/0002_blobs.sql")),
    (
        "verifications",
        include_str!("../migrations/0003_verifications.sql"),
    ),
    (
        "blob_units",
        include_str!("../migrations/0004_blob_units.sql"),
    ),
];

/// The schema version that this program reads and writes.
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// The key of the advisory lock under which the schema is made: `monarch` in ASCII.
const INIT_LOCK: i64 = 0x006d_6f6e_6172_6368;

/// What a role needs to work with the ledger, as SQL for its owner to run. Deliberately without
/// `delete` and `truncate` anywhere, and without `update` on the journal and the spine: a worker
/// can neither forget a move nor edit what happened.
pub fn worker_grants(role: &str) -> String {
    let role = quote_ident(role);
    format!(
        "{reads}\
         grant insert, update on monarch_ledger.move, monarch_ledger.move_unit,\n    \
             monarch_ledger.blob_key, monarch_ledger.verification to {role};\n\
         grant insert on monarch_ledger.move_spine, monarch_ledger.move_event to {role};\n",
        reads = reader_grants(&role)
    )
}

fn reader_grants(quoted_role: &str) -> String {
    format!(
        "grant usage on schema monarch_ledger to {quoted_role};\n\
         grant select on all tables in schema monarch_ledger to {quoted_role};\n"
    )
}

impl Ledger {
    /// Makes the schema, or brings it up to date, and returns its version. Run again it changes
    /// nothing; two that run at once take turns. Needs `create` on the database the first time, and
    /// the schema's owner afterwards.
    ///
    /// What a role was granted for its work holds for the tables of a newer version as well: a
    /// worker of the new build must not be refused by what the old one's grants could not name.
    pub async fn init(&self) -> Result<i32, LedgerError> {
        const DOING: &str = "make the ledger's schema";
        // Not what a worker's role lacks, whatever the server's reason.
        let failed = || {
            |error: tokio_postgres::Error| LedgerError::Database {
                doing: DOING,
                source: error.into(),
            }
        };
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        tx.batch_execute("set local lock_timeout = '5min'; set local statement_timeout = '5min'")
            .await
            .map_err(failed())?;
        tx.execute("select pg_advisory_xact_lock($1)", &[&INIT_LOCK])
            .await
            .map_err(failed())?;
        ensure_schema(&tx).await.map_err(failed())?;
        let found = version(&tx).await.map_err(failed())?;
        if found > SCHEMA_VERSION {
            return Err(LedgerError::SchemaTooNew {
                found,
                known: SCHEMA_VERSION,
            });
        }
        for (version, (name, sql)) in (1..).zip(MIGRATIONS).skip_while(|(v, _)| *v <= found) {
            migrate(&tx, version, name, sql).await.map_err(failed())?;
        }
        for grants in grants_in_force(&tx).await.map_err(failed())? {
            tx.batch_execute(&grants).await.map_err(failed())?;
        }
        tx.commit().await.map_err(failed())?;
        lease.give_back();
        Ok(SCHEMA_VERSION)
    }

    /// The version of the schema, which is this program's; or why it is not.
    pub async fn schema_version(&self) -> Result<i32, LedgerError> {
        const DOING: &str = "read the ledger's schema version";
        let lease = self.lease().await?;
        let found: i32 = lease
            .client()
            .query_one(VERSION, &[])
            .await
            .and_then(|row| row.try_get(0))
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        match found {
            0 => Err(LedgerError::NotInitialised),
            found if found < SCHEMA_VERSION => Err(LedgerError::SchemaTooOld {
                found,
                needed: SCHEMA_VERSION,
            }),
            found if found > SCHEMA_VERSION => Err(LedgerError::SchemaTooNew {
                found,
                known: SCHEMA_VERSION,
            }),
            found => Ok(found),
        }
    }
}

const VERSION: &str = "select coalesce(max(version), 0) from monarch_ledger.schema_version";

/// Looks before it creates: `if not exists` asks for the right to create even where it does not.
async fn ensure_schema(tx: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let exists: bool = tx
        .query_one(
            "select to_regclass('monarch_ledger.schema_version') is not null",
            &[],
        )
        .await?
        .try_get(0)?;
    if exists {
        return Ok(());
    }
    tx.batch_execute(
        "create schema if not exists monarch_ledger;
         create table monarch_ledger.schema_version (
             version integer primary key,
             name text not null,
             applied_at timestamptz not null default now()
         )",
    )
    .await
}

/// The grants of each role that has some on the ledger's units: a worker's if it may write there,
/// else a reader's. None where the caller is not the owner, who alone can grant.
async fn grants_in_force(tx: &Transaction<'_>) -> Result<Vec<String>, tokio_postgres::Error> {
    let rows = tx
        .query(
            "select r.rolname::text,
                    bool_or(g.privilege_type = 'INSERT') and bool_or(g.privilege_type = 'UPDATE')
                    and bool_or(g.privilege_type = 'SELECT') as works,
                    bool_or(g.privilege_type = 'SELECT') as reads
               from pg_catalog.pg_class c
               cross join lateral pg_catalog.aclexplode(c.relacl) g
               join pg_catalog.pg_roles r on r.oid = g.grantee
              where c.oid = 'monarch_ledger.move_unit'::regclass and g.grantee <> c.relowner
                and pg_catalog.pg_has_role(c.relowner, 'usage')
              group by r.rolname order by r.rolname",
            &[],
        )
        .await?;
    let mut grants = Vec::new();
    for row in rows {
        let role: String = row.try_get(0)?;
        match (row.try_get(1)?, row.try_get(2)?) {
            (true, _) => grants.push(worker_grants(&role)),
            (false, true) => grants.push(reader_grants(&quote_ident(&role))),
            (false, false) => {}
        }
    }
    Ok(grants)
}

async fn version(tx: &Transaction<'_>) -> Result<i32, tokio_postgres::Error> {
    tx.query_one(VERSION, &[]).await?.try_get(0)
}

async fn migrate(
    tx: &Transaction<'_>,
    version: i32,
    name: &str,
    sql: &str,
) -> Result<(), tokio_postgres::Error> {
    tx.batch_execute(sql).await?;
    tx.execute(
        "insert into monarch_ledger.schema_version (version, name) values ($1, $2)",
        &[&version, &name],
    )
    .await?;
    Ok(())
}
