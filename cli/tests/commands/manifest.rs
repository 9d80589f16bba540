//! A manifest from a live schema, and held against one.

use anyhow::{Result, ensure};
use monarch_config::Dsn;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};

use crate::stage::{SECRET, Stage};

/// A database with what the stage's manifest names, and its connection string.
async fn cell() -> Result<(Stage, String, Session)> {
    let cluster = shared::cluster(PgVersion::V17).await;
    let dsn = cluster.create_database(&fresh_name("cell")).await?;
    let options = ConnectOptions::from_dsn(&Dsn::new(&dsn))?;
    let purpose = SessionPurpose::writer("test").with("search_path", "public");
    let session = Session::connect(&options, &purpose).await?;
    session
        .batch_execute(
            "create table organization (id bigint primary key);
             create table issue (id bigint primary key,
                 organization_id bigint not null references organization);
             create table feature (id bigint primary key);",
        )
        .await?;
    Ok((Stage::new(&dsn)?, dsn, session))
}

/// The manifest alone goes to standard output, so that it can be sent to a file; it says of a schema
/// what the stage's own manifest says, so that the schema has not drifted from it.
#[tokio::test]
async fn a_manifest_is_derived_and_the_schema_has_not_drifted_from_it() -> Result<()> {
    let (stage, dsn, session) = cell().await?;
    let store = format!("default={dsn}");
    let derive = ["manifest", "derive", "--root", "organization", "--store"];
    let said = stage.run(derive.into_iter().chain([&*store])).await?;
    assert_eq!(said.code, 0, "{}", said.errors);
    ensure!(said.errors.contains("2 tables move"), "{}", said.errors);
    std::fs::write(stage.folder().join("derived.yaml"), &said.output)?;

    let diff = ["manifest", "diff", "--manifest", "derived.yaml"];
    let said = stage.run(diff).await?;
    assert_eq!(said.code, 0, "{}{}", said.output, said.errors);
    ensure!(
        said.output.contains("what the manifest says"),
        "{}",
        said.output
    );

    session
        .batch_execute(
            "create table added (id bigint primary key, issue_id bigint references issue)",
        )
        .await?;
    let said = stage
        .run(diff.into_iter().chain(["--output", "json"]))
        .await?;
    assert_eq!(said.code, 1, "{}", said.errors);
    let drift = &said.json()?["drift"][0];
    assert_eq!(drift["table"], "added");
    assert_eq!(drift["code"], "new-table");
    ensure!(drift["to_do"].is_string(), "{drift}");
    Ok(())
}

/// Two databases that would be one store, and a store without its database, are refused before any
/// manifest is made; no DSN is repeated.
#[tokio::test]
async fn what_cannot_be_derived_is_refused_without_a_dsn() -> Result<()> {
    let (stage, dsn, _) = cell().await?;
    let store = format!("one={dsn}");
    let root = ["manifest", "derive", "--root", "organization"];
    let twice = ["--store", &store, "--store", &store];
    let said = stage.run(root.into_iter().chain(twice)).await?;
    assert_eq!(said.code, 2);
    ensure!(said.errors.contains("named one"), "{}", said.errors);

    for unnamed in [
        "postgres://u:PASSWORD@h/d",
        "postgres://u:PASSWORD@h/d?sslmode=x",
    ] {
        let unnamed = unnamed.replace("PASSWORD", SECRET);
        let said = stage
            .run(root.into_iter().chain(["--store", &unnamed]))
            .await?;
        assert_eq!(said.code, 2);
        ensure!(!said.errors.contains(SECRET), "{}", said.errors);
    }

    let named = [
        "manifest",
        "derive",
        "--root",
        "organisation",
        "--dsn",
        &dsn,
    ];
    let said = stage.run(named).await?;
    assert_eq!(said.code, 2);
    ensure!(
        said.errors.contains("did you mean organization?"),
        "{}",
        said.errors
    );
    Ok(())
}
