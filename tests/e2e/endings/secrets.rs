//! Promise 10, from outside: values stand in every table of the organization, moves fail of them in
//! the ways in which a server quotes what it refuses, one succeeds, and nothing that Monarch or
//! Temporal keeps or says has one of them.

use anyhow::{Context as _, Result, ensure};
use monarch_demo::{Organization, tables};
use monarch_harness::{PASSWORD, Program};
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left, org_on, tells};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Stands in every column that holds text, and in keys.
const SECRET: &str = "s3cr3t-Vv8";
/// The same for numbers.
const NUMBER: &str = "80414243";

/// Puts them into every table, before the move begins.
const SEED: [(&str, &str); 3] = [
    (
        "default",
        r#"update organization set slug = 's3cr3t-Vv8', name = 's3cr3t-Vv8' where id = 1;
        update project set slug = 's3cr3t-Vv8-' || id, settings = '{"s3cr3t-Vv8": 80414243}'
          where organization_id = 1;
        update team set name = 's3cr3t-Vv8 ' || id, labels = array['s3cr3t-Vv8']
          where organization_id = 1;
        update team_member set role = 's3cr3t-Vv8', user_id = user_id + 80414243000
          where team_id in (select id from team where organization_id = 1);
        update invitation set email = 's3cr3t-Vv8@' || id
          where team_id in (select id from team where organization_id = 1);
        update "Issue" set title = 's3cr3t-Vv8 ' || id, labels = array['s3cr3t-Vv8'],
          weight = 80414243 where project_id in (select id from project where organization_id = 1);
        update comment set body = 's3cr3t-Vv8 ' || body, meta = '"s3cr3t-Vv8"' where issue_id in
          (select i.id from "Issue" i join project p on p.id = project_id where organization_id = 1);
        update app.setting set name = 's3cr3t-Vv8 ' || name, value = '80414243'
          where organization_id = 1"#,
    ),
    (
        "events",
        "update event_group set fingerprint = 's3cr3t-Vv8 ' || fingerprint
          where project_id in (11, 12, 13);
        update event set payload = 's3cr3t-Vv8 ' || payload, size_bytes = 80414243 where group_id in
          (select id from event_group where project_id in (11, 12, 13));
        update event_tag set key = 's3cr3t-Vv8 ' || key, value = 's3cr3t-Vv8' where group_id in
          (select id from event_group where project_id in (11, 12, 13))",
    ),
    (
        "metrics",
        r#"update metric_series set name = 's3cr3t-Vv8 ' || name where project_id in (11, 12, 13);
        update sample set value = 80414243 where series_id in
          (select id from metric_series where project_id in (11, 12, 13));
        update alert_rule set condition = '{"s3cr3t-Vv8": 1}' where project_id in (11, 12, 13);
        update quota set used = 80414243 where organization_id = 1"#,
    ),
];

/// Why the sink refuses what comes, each quoting the row in its message or detail: what is done
/// there once the units stream, what comes then, and what takes the first back.
const REFUSALS: [(&str, &str, &str); 3] = [
    // A unique violation: another tenant has the name already.
    (
        "create unique index secret_name on team (name);
         insert into team (id, organization_id, name) values (777001, 3, 's3cr3t-Vv8-taken')",
        "insert into team (organization_id, name) values (1, 's3cr3t-Vv8-taken')",
        "drop index secret_name; delete from team where id = 777001",
    ),
    // A cast that fails.
    (
        "create index as_number on team ((name::integer)) where name like '%-late'",
        "update team set name = 's3cr3t-Vv8-late'
           where id = (select min(id) from team where organization_id = 1)",
        "drop index as_number",
    ),
    // A check.
    (
        "alter table comment add constraint no_secret check (body not like '%s3cr3t-Vv8-new%')
           not valid",
        r#"insert into comment (issue_id, body) select min(i.id), 's3cr3t-Vv8-new 80414243'
             from "Issue" i join project p on p.id = project_id where organization_id = 1"#,
        "alter table comment drop constraint no_secret",
    ),
];

/// All that was said and kept, place by place.
struct Heard<'a> {
    scene: &'a Scene<'a>,
    texts: Vec<(&'static str, String)>,
}

impl Heard<'_> {
    /// Reads all that is kept of the newest move, and what the commands say of it.
    async fn listen(&mut self) -> Result<()> {
        let scene = self.scene;
        let of_workflow = async |verb: &str| {
            let words = ["workflow", verb, "--workflow-id", "org-move-1"];
            let words = words.into_iter().chain(["--output", "json"]);
            anyhow::Ok(scene.operator.temporal(words).await?.text())
        };
        self.texts.push(("the history", of_workflow("show").await?));
        self.texts
            .push(("the description", of_workflow("describe").await?));
        let ledger = "select string_agg(t::text, '') from (
            select m::text from monarch_ledger.move m union all
            select u::text from monarch_ledger.move_unit u union all
            select s::text from monarch_ledger.move_spine s union all
            select e::text from monarch_ledger.move_event e) t";
        let ledger = scene.operator.ledger(ledger).await?.unwrap_or_default();
        self.texts.push(("the ledger", ledger));
        for words in [
            "move status --org 1",
            "move status --org 1 --output json",
            "move events --org 1",
            "move list --output json",
            "preflight --org 1",
            "plan --org 1 --output json",
        ] {
            let said = scene.operator.monarch(words.split(' ')).await?;
            self.texts.push(("a command", said.text()));
        }
        Ok(())
    }

    fn assert_silent(&self) {
        for (place, text) in &self.texts {
            for secret in [SECRET, NUMBER, PASSWORD] {
                if tells(text, secret) {
                    let at = text.find(secret).unwrap_or_default();
                    let before: String = text[..at].chars().rev().take(300).collect();
                    let before: String = before.chars().rev().collect();
                    panic!("{place} tells {secret}: {before}");
                }
            }
        }
    }

    fn has(&self, place: &str, words: &str) -> bool {
        let mut of_place = self.texts.iter().filter(|(of, _)| *of == place);
        of_place.any(|(_, text)| tells(text, words))
    }
}

/// The worker's metrics, from where its log says that it serves them.
async fn metrics(worker: &Program) -> Result<String> {
    let log = worker.output()?;
    let line = log.lines().find(|line| line.contains("serving metrics"));
    let line: serde_json::Value = serde_json::from_str(line.context("no metrics are served")?)?;
    let address = line["address"].as_str().context("an address")?;
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Each table of the organization has a value that must not be told.
async fn seed(scene: &Scene<'_>) -> Result<()> {
    for (store, sql) in SEED {
        let seeded = scene.source(store).await?.batch_execute(sql).await;
        seeded.with_context(|| format!("seed {store}"))?;
    }
    for table in tables(&Organization::EVIL_CORP) {
        let source = scene.source(&table.store).await?;
        let query = format!(
            "select count(*) from {} as t where ({}) and t::text ~ '{SECRET}|{NUMBER}'",
            table.name, table.predicate
        );
        let rows: i64 = source.query_one(&query, &[]).await?.get(0);
        ensure!(rows > 0, "no secret in {}", table.name);
    }
    Ok(())
}

/// Waits until the move has failed, and gives it up.
async fn fails(scene: &Scene<'_>, worker: &Program, heard: &mut Heard<'_>) -> Result<()> {
    scene.until("failed", worker).await?;
    heard.listen().await?;
    scene.abort("clean up").await?;
    scene.until("aborted", worker).await?;
    let result = scene.result("org-move-1").await?.to_string();
    ensure!(
        result.contains("team") || result.contains("comment"),
        "{result}"
    );
    heard.texts.push(("the result", result));
    heard.listen().await
}

/// Guards promise 10 wherever Monarch writes, and in what Temporal keeps of it.
#[tokio::test]
async fn no_value_is_told_by_a_whole_move_or_by_one_that_fails() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    seed(&scene).await?;
    let heard = &mut Heard {
        scene: &scene,
        texts: Vec::new(),
    };
    let worker = scene
        .operator
        .worker_logging("trace", ["--metrics", "127.0.0.1:0"])?;
    let (source, sink) = (scene.source("default").await?, scene.sink().await?);

    // In the stream.
    for (before, change, after) in REFUSALS {
        scene.stream(&worker, json!({})).await?;
        heard.listen().await?;
        sink.batch_execute(before).await?;
        source.batch_execute(change).await?;
        fails(&scene, &worker, heard).await?;
        sink.batch_execute(after).await?;
        source
            .batch_execute("delete from team where name = 's3cr3t-Vv8-taken'")
            .await?;
    }
    // In the copy, which the sink refuses with the whole line.
    sink.batch_execute(REFUSALS[2].0).await?;
    scene.start(json!({})).await?;
    fails(&scene, &worker, heard).await?;
    sink.batch_execute(REFUSALS[2].2).await?;

    // And one that ends well.
    scene.stream(&worker, json!({})).await?;
    source
        .batch_execute("update team set name = name || '!' where organization_id = 1")
        .await?;
    scene
        .operator
        .until(
            "(select bool_or(changes_applied > 0) from monarch_ledger.move_unit)",
            &worker,
            PATIENCE,
        )
        .await?;
    heard.listen().await?;
    scene.cut_over().await?;
    heard.listen().await?;
    let moved = org_on(&scene.fleet.source).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, moved);
    heard.listen().await?;
    heard.texts.push(("the metrics", metrics(&worker).await?));
    heard.texts.push(("the log", worker.output()?));

    heard.assert_silent();
    // What is searched is what it seems to be: with payloads, and with every level of the log.
    for (place, words) in [
        ("the history", "consistent_point"),
        ("the description", "heartbeatDetails"),
        ("the metrics", "temporal_"),
        ("the log", "TRACE"),
        ("the ledger", "row-refused"),
    ] {
        assert!(heard.has(place, words), "{place} has no {words}");
    }
    assert_nothing_left(&scene.fleet).await
}
