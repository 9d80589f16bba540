//! What an operator asks of an outbox, and does to it.

use anyhow::{Result, ensure};
use monarch_config::Dsn;
use monarch_harness::shared;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use serde_json::json;

use crate::stage::{Stage, until_said};

/// A cell with an outbox: a shard of three messages, one of one, and one on backoff.
async fn cell() -> Result<(Stage, Session)> {
    let (stage, dsn) = Stage::with_ledger().await?;
    let purpose = SessionPurpose::writer("test").with("search_path", "public");
    let options = ConnectOptions::from_dsn(&Dsn::new(&dsn))?;
    let session = Session::connect(&options, &purpose).await?;
    let table = monarch_outbox::Table::<monarch_outbox::Cell>::default();
    session.batch_execute(&table.create_sql()).await?;
    session
        .batch_execute(
            "insert into sentry_regionoutbox
                 (shard_scope, shard_identifier, category, object_identifier, payload)
             select 0, greatest(n - 2, 1), 3, n, '{\"name\": \"nobody may see\"}'
             from generate_series(1, 4) n;
             insert into sentry_regionoutbox
                 (shard_scope, shard_identifier, category, object_identifier, scheduled_for)
             values (1, 9, 0, 9, now() + interval '1 minute')",
        )
        .await?;
    Ok((stage, session))
}

/// Each question is answered with names for numbers, and its SQL, pasted elsewhere, answers too.
#[tokio::test]
async fn an_outbox_is_asked_and_the_sql_can_be_pasted() -> Result<()> {
    let (stage, session) = cell().await?;
    for (words, expected) in [
        ("depths", "Organization (0)"),
        ("stuck", "UserUpdate (0)"),
        (
            "shard --scope organization --shard 1",
            "OrganizationMemberUpdate (3)",
        ),
        (
            "object --category organization_member_update --object 4",
            "Organization (0)",
        ),
        ("category --category 3", "4"),
    ] {
        let words = format!("outbox {words} --cell us1");
        let said = stage.run(words.split(' ')).await?;
        assert_eq!(said.code, 0, "{words}: {}", said.errors);
        ensure!(said.output.contains(expected), "{words}: {}", said.output);
        ensure!(!said.output.contains("nobody"), "{words}: {}", said.output);
        let sql = stage.run(words.split(' ').chain(["--sql"])).await?.output;
        ensure!(sql.starts_with("-- "), "{words}: {sql}");
        ensure!(!session.simple_query(&sql).await?.is_empty(), "{words}");
    }
    let words = [
        "outbox", "depths", "--cell", "us1", "--limit", "1", "--output", "json",
    ];
    let depths = stage.run(words).await?.json()?;
    assert_eq!(
        depths,
        json!([{"cell": null, "scope": 0, "shard": 1, "depth": 3}])
    );
    Ok(())
}

/// A switch keeps what else is in it; a gate is an option; both can be pasted.
#[tokio::test]
async fn a_shard_is_skipped_and_taken_up_again() -> Result<()> {
    let (stage, session) = cell().await?;
    let outbox = async |words: &str| {
        let words = format!("outbox {words} --cell us1");
        let said = stage.run(words.split(' ')).await?;
        ensure!(said.code == 0, "{words}: {}", said.errors);
        anyhow::Ok(said.output)
    };
    let option = async || {
        let value = "select string_agg(value::text, ' ' order by key) from monarch_outbox_option";
        anyhow::Ok(
            session
                .query_one(value, &[])
                .await?
                .get::<_, Option<String>>(0),
        )
    };
    for shard in [1, 2, 1] {
        outbox(&format!("skip --scope organization --shard {shard}")).await?;
    }
    assert_eq!(option().await?.as_deref(), Some("[1, 2]"));
    let sql = outbox("unskip --scope organization --shard 1 --sql").await?;
    assert_eq!(
        option().await?.as_deref(),
        Some("[1, 2]"),
        "it was only printed"
    );
    session.batch_execute(&sql).await?;
    outbox("unskip --scope organization --shard 1").await?;
    assert_eq!(option().await?.as_deref(), Some("[2]"));

    let backfills = monarch_outbox::Backfills::<monarch_outbox::Cell>::default();
    session.batch_execute(&backfills.create_sql()).await?;
    session
        .batch_execute("insert into monarch_outbox_watermark values ('member', 7, 2)")
        .await?;
    outbox("backfill --model member --version 2").await?;
    let shown = outbox("backfill").await?;
    ensure!(shown.contains("member") && shown.contains('7'), "{shown}");
    Ok(())
}

/// What cannot be done is said with what to do, and changes nothing.
#[tokio::test]
async fn what_nobody_here_receives_is_not_drained() -> Result<()> {
    let (stage, session) = cell().await?;
    for (words, code, expected) in [
        ("drain --cell us1", 2, "nobody here receives"),
        ("depths", 2, "--cell"),
        ("depths --cell us9", 2, "us1"),
        ("depths --control", 2, "control: {dsn"),
        ("depths --cell us1 --table nowhere", 3, "--table"),
        (
            "category --cell us1 --category nonsense",
            2,
            "OrganizationUpdate",
        ),
        (
            "skip --cell us1 --scope audit_log --shard 1",
            2,
            "no switch",
        ),
    ] {
        let said = stage.run(format!("outbox {words}").split(' ')).await?;
        assert_eq!(said.code, code, "{words}: {}", said.errors);
        ensure!(said.errors.contains(expected), "{words}: {}", said.errors);
    }
    let left = session.query_one("select count(*) from sentry_regionoutbox", &[]);
    assert_eq!(left.await?.get::<_, i64>(0), 5);
    Ok(())
}

/// Writes down what it is given, much of what it says before it has read any of it, and takes
/// delivery unless it is of object 2.
const TAKE_ALL_BUT_2: &str = r#"
head -c 200000 /dev/zero
order=$(cat)
echo "$order" >> taken
case $order in *'"object_identifier":"2"'*) exit 1;; esac
"#;

/// What the program was given, in order.
fn taken(stage: &Stage) -> Result<Vec<serde_json::Value>> {
    let taken = std::fs::read_to_string(stage.folder().join("taken"))?;
    let orders = taken.lines().map(serde_json::from_str);
    Ok(orders.collect::<Result<_, _>>()?)
}

/// An application in another language has its messages delivered by a program, in their order, with
/// the same backoff and the same switches.
#[tokio::test]
async fn a_program_takes_an_applications_messages() -> Result<()> {
    let (stage, session) = cell().await?;
    session
        .batch_execute(
            "update sentry_regionoutbox set payload = to_jsonb(repeat('x', 200000)) where id = 3;
             insert into sentry_regionoutbox
                 (shard_scope, shard_identifier, category, object_identifier)
             values (77, 9007199254740993, 99, -9007199254740993)",
        )
        .await?;
    stage.deliver_by(TAKE_ALL_BUT_2)?;
    let drain = async |words: &str, code: i32| {
        let words = format!("outbox {words} --cell us1 --output json");
        let said = stage.run(words.split(' ')).await?;
        ensure!(said.code == code, "{words}: {}", said.errors);
        ensure!(!said.output.contains("nobody"), "{words}: {}", said.output);
        said.json()
    };
    drain("skip --scope organization --shard 2", 0).await?;
    let report = drain("drain", 1).await?;
    let count = |what: &str| report[what].as_u64();
    assert_eq!(
        ["delivered", "failed", "skipped"].map(count),
        [Some(2), Some(1), Some(1)]
    );
    let why = "the `deliver` command ended with exit code 1";
    ensure!(report["errors"].to_string().contains(why), "{report}");
    let orders = taken(&stage)?;
    let objects = orders.iter().map(|order| &order["object_identifier"]);
    assert!(objects.eq(["1", "2", "-9007199254740993"]), "{orders:?}");
    assert_eq!(orders[0]["payload"], json!({"name": "nobody may see"}));
    assert_eq!(orders[0]["outbox"], "cell");
    let unknown = ["category", "scope", "shard_identifier"].map(|key| &orders[2][key]);
    assert_eq!(
        unknown,
        [&json!(99), &json!(77), &json!("9007199254740993")]
    );

    // Repaired: by hand the shard is delivered before its time.
    stage.deliver_by("cat >> taken; echo >> taken")?;
    let report = drain("drain --scope 0 --shard 1", 0).await?;
    assert_eq!(report["delivered"], 2);
    let last = taken(&stage)?.pop();
    let payload = last.as_ref().and_then(|order| order["payload"].as_str());
    assert_eq!(payload.map(str::len), Some(200_000));
    Ok(())
}

/// What no commit delivered, a schedule does, for each cell whose application has a program.
#[tokio::test]
async fn a_schedule_delivers_a_cells_messages() -> Result<()> {
    let (stage, session) = cell().await?;
    let (stage, namespace) = stage.with_temporal().await?;
    stage.deliver_by("cat >> taken; echo >> taken")?;
    ensure!(stage.run(["ledger", "init"]).await?.code == 0);
    let worker = stage.worker(&["--queue", "monarch", "--grace", "1"])?;
    until_said(&worker, "polling").await?;
    let trigger = [
        "schedule",
        "trigger",
        "--schedule-id",
        "monarch-outbox-cell-us1",
    ];
    let triggered = shared::temporal().await.cli(&namespace, trigger).await?;
    ensure!(triggered.status.success(), "{triggered:?}");
    let waiting = "select count(*) from sentry_regionoutbox where shard_scope = 0";
    while session.query_one(waiting, &[]).await?.get::<_, i64>(0) > 0 {
        ensure!(worker.is_alive(), "the worker ended: {}", worker.output()?);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let mut objects: Vec<String> = taken(&stage)?
        .iter()
        .map(|order| order["object_identifier"].to_string())
        .collect();
    objects.sort();
    assert_eq!(objects, ["\"1\"", "\"2\"", "\"3\"", "\"4\""]);
    assert_eq!(worker.terminate().await?, Some(0), "{}", worker.output()?);
    Ok(())
}
