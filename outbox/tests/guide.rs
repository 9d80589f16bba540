//! The guide's programs are true: each runs to its end on a server, and what it asserts holds.

use std::path::PathBuf;
use std::process::Command;

use monarch_harness::{PgVersion, Program, fresh_name, shared};

/// Where cargo puts a program of the guide. `cargo test` builds them with the tests, unless it is told
/// to build this test alone; then they are built here.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let folder = test.parent().and_then(|deps| deps.parent());
    let program = folder
        .map(|folder| folder.join("examples").join(name))
        .unwrap_or_default();
    if !program.exists() {
        let build = [
            "build",
            "--quiet",
            "--package",
            "monarch-outbox",
            "--examples",
        ];
        let status = Command::new(env!("CARGO")).args(build).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "build the guide's programs"
        );
    }
    program
}

async fn runs(name: &str) {
    let mut command = Command::new(example(name));
    let cluster = shared::cluster(PgVersion::V16).await;
    let database = cluster.create_database(&fresh_name("guide")).await;
    let dsn = database.unwrap_or_else(|error| panic!("{error:#}"));
    command.env("OUTBOX_DSN", dsn);
    let program = Program::start(name, &command).unwrap_or_else(|error| panic!("{error:#}"));
    let status = program.wait().await;
    let output = program.output().unwrap_or_default();
    assert_eq!(status.ok().flatten(), Some(0), "{name}:\n{output}");
}

macro_rules! guide {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                runs(stringify!($name)).await;
            }
        )*
    };
}

guide! {
    step1_first_message,
    step2_replicated_cell_model,
    step2_replicated_control_model,
    step3_categories,
    step4_receivers,
    step5_existing_model,
    step6_backfill,
    step7_testing,
    step8_operations,
    step9_before_you_ship,
}
