//! What the ledger alone can answer, while Temporal is away.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use monarch_config::Dsn;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_ledger::{Ledger, NewMove, Registration};
use monarch_model::MoveId;
use monarch_postgres::spine::Spine;
use uuid::Uuid;

use crate::stage::{SECRET, Stage, in_ledger};

/// Registers a move of an organization, as the activity does.
pub(crate) async fn register(dsn: &str, org: &str) -> Result<MoveId> {
    let ledger = Ledger::connect(&Dsn::new(dsn)).await?;
    let ids = BTreeSet::from([org.to_owned()]);
    let id = MoveId(Uuid::from_u128(7));
    let new = NewMove {
        id,
        org: org.parse()?,
        source_cell: "us1".parse()?,
        sink_cell: "us2".parse()?,
        workflow_id: format!("org-move-{org}"),
        run_id: "run".to_owned(),
        stores: vec!["default".parse()?],
        blob_stores: Vec::new(),
        spine: Spine::from_ids(BTreeMap::from([("organization".parse()?, ids)])),
        options: serde_json::json!({ "org_id": org }),
        token: Uuid::from_u128(0xdead_beef),
    };
    let registered = ledger.register(&new).await?;
    assert!(matches!(registered, Registration::Registered(_)));
    Ok(id)
}

/// The ledger's own state is told apart from its absence, with the command that mends it.
#[tokio::test]
async fn a_ledger_without_a_schema_is_not_ready_until_it_is_made() -> Result<()> {
    let (stage, _) = Stage::with_ledger().await?;
    let before = stage.run(["move", "list"]).await?;
    assert_eq!(before.code, 3, "{}", before.errors);
    assert!(
        before.errors.contains("monarch ledger init"),
        "{}",
        before.errors
    );

    for _ in 0..2 {
        let made = stage.run(["ledger", "init"]).await?;
        assert_eq!(made.code, 0, "{}", made.errors);
    }
    let grants = stage
        .run(["ledger", "init", "--grants-for", "mover"])
        .await?;
    assert!(grants.output.contains("to \"mover\";"), "{}", grants.output);
    let after = stage.run(["move", "list"]).await?;
    assert_eq!((after.code, after.output.as_str()), (0, "no move yet\n"));
    Ok(())
}

/// A role that may not do its work is told which command prints its grants.
#[tokio::test]
async fn a_role_without_grants_is_told_how_to_come_by_them() -> Result<()> {
    let (owner, dsn) = Stage::with_ledger().await?;
    owner.run(["ledger", "init"]).await?;
    let role = fresh_name("reader");
    in_ledger(&dsn, &format!("create role {role} login password 'reader'")).await?;
    let stage = Stage::new(&format!("{dsn} user={role} password=reader"))?;
    let grants = "monarch ledger init --grants-for";
    let list = stage.run(["move", "list"]).await?;
    assert_eq!(list.code, 1, "{}", list.errors);
    assert!(list.errors.contains(grants), "{}", list.errors);
    let preflight = stage.run(["preflight", "--org", "1"]).await?;
    assert!(
        preflight.output.contains("[ledger-privilege]"),
        "{}",
        preflight.output
    );
    assert!(preflight.output.contains(grants), "{}", preflight.output);
    let init = stage.run(["ledger", "init"]).await?;
    assert!(!init.errors.contains(grants), "{}", init.errors);
    Ok(())
}

/// The codes of what preflight and plan find, which agree.
async fn codes(stage: &Stage, org: &str) -> Result<Vec<String>> {
    let mut codes = Vec::new();
    for command in ["preflight", "plan"] {
        let said = stage
            .run([command, "--org", org, "--output", "json"])
            .await?;
        assert_eq!(said.code, 1, "{}", said.errors);
        let found = said.json()?;
        let found = found["findings"].as_array().into_iter().flatten();
        let found = found.filter_map(|one| one["code"].as_str().map(str::to_owned));
        let found: Vec<String> = found.collect();
        assert!(codes.is_empty() || codes == found, "{codes:?}, {found:?}");
        codes = found;
    }
    Ok(codes)
}

/// What a healthy move has brought to the sink is no finding: whoever followed its advice would give
/// the move up.
#[tokio::test]
async fn a_look_knows_what_a_live_move_does_itself() -> Result<()> {
    let cluster = shared::cluster(PgVersion::V17).await;
    let mut dsns = Vec::new();
    for side in ["source", "sink"] {
        let name = fresh_name(side);
        dsns.push(cluster.create_database(&name).await?);
        cluster
            .admin(&name)
            .await?
            .batch_execute(
                "create table organization (id bigint primary key);
                 create table issue (id bigint primary key, organization_id bigint);
                 create table feature (id bigint primary key);
                 insert into organization values (1), (2);
                 insert into issue values (1, 1), (2, 2)",
            )
            .await?;
    }
    let (ledger, ledger_dsn) = Stage::with_ledger().await?;
    let stage = Stage::of(&dsns[0], &dsns[1], &ledger_dsn)?;
    let held = |codes: &[String]| {
        let on_sink = |code: &&String| *code == "sink-holds-organization";
        codes.iter().filter(on_sink).count()
    };

    let before = codes(&stage, "1").await?;
    assert!(
        before.contains(&"ledger-not-initialised".to_owned()),
        "{before:?}"
    );
    assert_eq!(held(&before), 2, "{before:?}");
    let text = stage.run(["preflight", "--org", "1"]).await?.output;
    assert!(text.contains("2 tables: issue, organization\n"), "{text}");

    ledger.run(["ledger", "init"]).await?;
    register(&ledger_dsn, "1").await?;
    let its_own = codes(&stage, "1").await?;
    let live = |codes: &[String]| codes.iter().filter(|code| *code == "live-move").count();
    assert_eq!((live(&its_own), held(&its_own)), (1, 0), "{its_own:?}");
    let text = stage.run(["plan", "--org", "1"]).await?.output;
    for words in ["is active", "monarch move status --org 1"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("abort"), "{text}");
    let another = codes(&stage, "2").await?;
    assert_eq!((live(&another), held(&another)), (1, 2), "{another:?}");
    Ok(())
}

/// At three in the morning, with Temporal down, the ledger still says where the move stands.
#[tokio::test]
async fn a_move_is_seen_from_the_ledger_while_temporal_is_away() -> Result<()> {
    let (stage, dsn) = Stage::with_ledger().await?;
    stage.run(["ledger", "init"]).await?;
    let id = register(&dsn, "evil-corp").await?.to_string();

    let live = stage.run(["move", "status"]).await?;
    assert_eq!(live.code, 0, "{}", live.errors);
    for part in [
        "active: organization evil-corp from us1 to us2",
        "default",
        "pending",
    ] {
        assert!(
            live.output.contains(part),
            "{part} is missing: {}",
            live.output
        );
    }
    assert!(
        live.output.contains("from the ledger alone"),
        "{}",
        live.output
    );

    let status = ["move", "status", "--move", &id, "--output", "json"];
    let json = stage.run(status).await?.json()?;
    assert_eq!(json["move"]["phase"], "active");
    assert_eq!(json["units"][0]["status"], "pending");
    assert!(
        json["move"].get("token").is_none(),
        "the control plane's token is told to nobody"
    );

    let events = stage.run(["move", "events", "--org", "evil-corp"]).await?;
    assert!(events.output.contains("registered"), "{}", events.output);
    let list = stage
        .run(["move", "list", "--output", "json"])
        .await?
        .json()?;
    assert_eq!(list[0]["id"], id.as_str());

    let nobody = stage.run(["move", "status", "--org", "nobody"]).await?;
    assert_eq!(nobody.code, 3, "{}", nobody.output);
    assert!(
        nobody.errors.contains("no move of organization nobody"),
        "{}",
        nobody.errors
    );
    Ok(())
}

/// Nobody who looks takes a pause for a move that goes on, or asks for a comparison that was made.
#[tokio::test]
async fn a_pause_and_what_was_verified_are_seen() -> Result<()> {
    let (stage, dsn) = Stage::with_ledger().await?;
    stage.run(["ledger", "init"]).await?;
    let id = register(&dsn, "evil-corp").await?.to_string();
    let status = async || -> Result<String> { Ok(stage.run(["move", "status"]).await?.output) };
    in_ledger(
        &dsn,
        &format!(
            "update monarch_ledger.move_unit set status = 'streaming', epoch = 3;
             insert into monarch_ledger.verification
                    (move_id, store, number, epoch, begun_at, ended_at, outcome, detail)
             values ('{id}', 'default', 1, 3, now(), now(), 'equal', '{{\"source\": {{\"rows\": 1234}}}}')"
        ),
    )
    .await?;
    let text = status().await?;
    let equal = "default: verification 1 found both sides equal in 1,234 rows";
    assert!(text.contains(equal) && !text.contains("paused"), "{text}");

    in_ledger(
        &dsn,
        &format!(
            "insert into monarch_ledger.move_event (move_id, store, kind, detail)
             values ('{id}', 'default', 'held', '{{\"epoch\": 3}}');
             insert into monarch_ledger.verification
                    (move_id, store, number, epoch, begun_at, ended_at, outcome, detail)
             values ('{id}', 'default', 2, 3, now(), now(), 'differs',
                     '{{\"differences\": [\"issue differs: 3 rows on the source, 2 on the sink\"]}}')"
        ),
    )
    .await?;
    let text = status().await?;
    for part in [
        "active, paused: organization evil-corp",
        "monarch move resume --org evil-corp",
        "default: verification 2 found at",
        "issue differs: 3 rows on the source",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("streaming"), "{text}");

    // The mover of a resume takes another epoch.
    in_ledger(&dsn, "update monarch_ledger.move_unit set epoch = 4").await?;
    let text = status().await?;
    assert!(
        !text.contains("paused") && text.contains("streaming"),
        "{text}"
    );
    Ok(())
}

/// A worker without a ledger would fail everything that it takes on: it takes nothing, and whoever
/// started it is told why.
#[tokio::test]
async fn a_worker_looks_at_its_ledger_before_it_takes_work() -> Result<()> {
    let nowhere = Stage::alone()?.run(["worker"]).await?;
    assert_eq!(nowhere.code, 4, "{}", nowhere.errors);
    assert!(nowhere.errors.contains("ledger.dsn"), "{}", nowhere.errors);
    assert!(!nowhere.errors.contains(SECRET), "{}", nowhere.errors);

    let (stage, dsn) = Stage::with_ledger().await?;
    let bare = stage.run(["worker"]).await?;
    assert_eq!(bare.code, 3, "{}", bare.errors);
    assert!(
        bare.errors.contains("monarch ledger init"),
        "{}",
        bare.errors
    );

    stage.run(["ledger", "init"]).await?;
    let newer = "insert into monarch_ledger.schema_version (version, name) values (99, 'later')";
    in_ledger(&dsn, newer).await?;
    let newer = stage.run(["worker"]).await?;
    assert_eq!(newer.code, 3, "{}", newer.errors);
    assert!(newer.errors.contains("99"), "{}", newer.errors);
    Ok(())
}

/// What a plan says comes from the databases that the move would use, and it leaves no trace there.
#[tokio::test]
async fn a_plan_is_made_from_the_source_and_changes_nothing() -> Result<()> {
    let cluster = shared::cluster(PgVersion::V17).await;
    let (source, sink) = (fresh_name("source"), fresh_name("sink"));
    let dsns = [
        cluster.create_database(&source).await?,
        cluster.create_database(&sink).await?,
    ];
    for database in [&source, &sink] {
        let client = cluster.admin(database).await?;
        client
            .batch_execute(
                "create table organization (id bigint primary key);
                 create table issue (id bigint primary key, organization_id bigint);
                 create table feature (id bigint primary key)",
            )
            .await?;
    }
    let client = cluster.admin(&source).await?;
    client
        .batch_execute(
            "insert into organization values (1), (2);
             insert into issue select n, 1 + n % 2 from generate_series(1, 1000) n",
        )
        .await?;
    let (ledger, ledger_dsn) = Stage::with_ledger().await?;
    ledger.run(["ledger", "init"]).await?;
    let stage = Stage::of(&dsns[0], &dsns[1], &ledger_dsn)?;

    let plan = ["plan", "--org", "1", "--output", "json"];
    let said = stage.run(plan).await?.json()?;
    assert!(said["not_planned"].is_null(), "{said}");
    let tables = &said["stores"][0]["tables"];
    assert_eq!(tables[0]["table"], "organization");
    assert_eq!(tables[1]["scope"], "organization_id is the organization");
    assert_eq!(tables[1]["rows_estimated"], 500);
    let statements = said["stores"][0]["publications"].to_string();
    assert!(statements.contains("create publication"), "{statements}");
    let text = stage.run(["plan", "--org", "1"]).await?;
    for part in [
        "no scope edge, so not moved: feature",
        "never analyzed, so some of it was read: organization, issue",
    ] {
        assert!(text.output.contains(part), "{part}: {}", text.output);
    }

    let left = client
        .query_one(
            "select (select count(*) from pg_publication)
                  + (select count(*) from pg_replication_slots where database = current_database())",
            &[],
        )
        .await?;
    assert_eq!(left.get::<_, i64>(0), 0);

    let nobody = stage.run(["plan", "--org", "9"]).await?;
    assert_eq!(nobody.code, 1, "{}", nobody.output);
    Ok(())
}
