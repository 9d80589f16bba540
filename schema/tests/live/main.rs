//! Manifests for schemas that stand in real databases.

#![allow(clippy::unwrap_used)]

mod derive;
mod drift;

use monarch_config::Dsn;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use monarch_schema::Database;

/// What `schema` makes in a database of its own, as a database of `stores`.
async fn database(version: PgVersion, stores: &[&str], schema: &str) -> Database {
    let cluster = shared::cluster(version).await;
    let name = fresh_name("schema");
    let dsn = Dsn::new(cluster.create_database(&name).await.unwrap());
    let admin = cluster.admin(&name).await.unwrap();
    admin.batch_execute(schema).await.unwrap();
    let options = ConnectOptions::from_dsn(&dsn).unwrap();
    let purpose = SessionPurpose::reader("test");
    let session = Session::connect(&options, &purpose).await.unwrap();
    Database {
        stores: stores.iter().map(|store| store.parse().unwrap()).collect(),
        tables: monarch_schema::read(&*session).await.unwrap(),
    }
}
