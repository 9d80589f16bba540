//! Whether the four commands can be run, before a move comes to need them in its write pause.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use monarch_config::Control;
use monarch_model::{CellName, OrgId, chain};
use monarch_postgres::preflight::{Finding, Place};

use super::commands::{Commands, Order};

/// The token of a look: no fence and no flip bears it.
const TOKEN: &str = "preflight/0";

/// What stands in the way of the commands on this machine: a program that cannot be run, or a
/// `where` that does not name the cell that the organization leaves. Nothing is fenced or flipped.
pub(crate) async fn preflight(
    control: &Control,
    from: &CellName,
    to: &CellName,
    org: &OrgId,
) -> Vec<Finding> {
    let Some(commands) = Commands::of(control) else {
        return Vec::new();
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&search).collect();
    let missing: BTreeSet<&str> = commands
        .programs()
        .filter(|program| !can_be_run(program, &folders))
        .collect();
    if !missing.is_empty() {
        return missing.into_iter().map(not_runnable).collect();
    }
    let order = Order {
        action: "where",
        organization: org.as_str(),
        from: from.as_str(),
        to: to.as_str(),
        move_token: TOKEN.to_owned(),
    };
    let found = match commands.run(&order).await {
        Ok(named) if named.trim() == from.as_str() => return Vec::new(),
        Ok(named) => Finding::refuse(
            "control-not-routed",
            place(),
            format!(
                "`where` names {:?}, and the organization is to leave {from}",
                named.trim().chars().take(64).collect::<String>()
            ),
            "The flip would be refused",
        )
        .mend("see where the organization lives, and name that cell with --from"),
        Err(error) => Finding::refuse(
            "control-where-failed",
            place(),
            chain(&error),
            "Without it nobody knows whether a flip was done",
        )
        .mend("run the command by hand, as docs/operations.md shows"),
    };
    vec![found]
}

fn place() -> Place {
    Place {
        database: Some("control".to_owned()),
        ..Place::default()
    }
}

fn not_runnable(program: &str) -> Finding {
    Finding::refuse(
        "control-program-missing",
        place(),
        format!("there is no program {program:?} that may be run"),
        "Workers of the queue `monarch` run it to fence, to flip and to read the routing",
    )
    .mend("install it there with the right to execute it, or correct `control` in fleet.yaml")
}

/// Whether a program is there and may be executed by somebody: by its path or, where its name has no
/// slash, in one of `folders`.
fn can_be_run(program: &str, folders: &[PathBuf]) -> bool {
    let is_executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return is_executable(Path::new(program));
    }
    folders
        .iter()
        .any(|folder| is_executable(&folder.join(program)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn control(program: &str, named: &str) -> Control {
        let command = |action: &str| vec![program.to_owned(), action.to_owned()];
        Control::Commands {
            fence: command("fence"),
            unfence: command("unfence"),
            flip: command("flip"),
            where_: vec!["sh".to_owned(), "-c".to_owned(), named.to_owned()],
            timeout: Duration::from_secs(10),
        }
    }

    async fn codes(control: &Control) -> Vec<String> {
        let (from, to) = ("us1".parse().unwrap(), "us2".parse().unwrap());
        let found = preflight(control, &from, &to, &"7".parse().unwrap()).await;
        found.iter().map(|one| one.code.to_string()).collect()
    }

    /// A command that is misspelled is found before a write pause has begun, and told once.
    #[tokio::test]
    async fn what_the_commands_lack_is_found_before_a_move() {
        let asked = "grep -q '\"organization\":\"7\"' && echo us1";
        let nothing: [&str; 0] = [];
        assert_eq!(codes(&control("true", asked)).await, nothing);
        for (program, named, expected) in [
            ("no-such-program", asked, "control-program-missing"),
            ("/etc/passwd", asked, "control-program-missing"),
            ("true", "echo us2", "control-not-routed"),
            ("true", "exit 1", "control-where-failed"),
            ("true", "exit 3", "control-where-failed"),
        ] {
            let found = codes(&control(program, named)).await;
            assert_eq!(found, [expected], "{program} {named}");
        }
    }
}
