//! The password file: lines of `host:port:database:user:password`.

use std::fs;
use std::path::Path;

use super::options::Password;

/// What a line must match.
pub(super) struct Wanted<'a> {
    /// The host's name, its address if it has no name, or `localhost` for the default socket.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) dbname: &'a str,
    pub(super) user: &'a str,
}

/// The password of the first line that matches. As libpq does, a file that is missing is no
/// password, and one that others can read is not used, with a warning.
pub(super) fn look_up(path: &Path, wanted: &Wanted<'_>) -> Option<Password> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() {
        tracing::warn!(path = %path.display(), "the password file is not a plain file: not used");
        return None;
    }
    if open_to_others(&metadata) {
        tracing::warn!(
            path = %path.display(),
            "the password file can be read by group or others: not used; set its mode to 0600"
        );
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| password(line, wanted))
}

/// Whether anybody but the owner has a right to the file.
#[cfg(unix)]
fn open_to_others(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn open_to_others(_metadata: &fs::Metadata) -> bool {
    false
}

fn password(line: &str, wanted: &Wanted<'_>) -> Option<Password> {
    if line.starts_with('#') {
        return None;
    }
    let port = wanted.port.to_string();
    let mut rest = line;
    for expected in [wanted.host, port.as_str(), wanted.dbname, wanted.user] {
        if let Some(after) = rest.strip_prefix("*:") {
            rest = after;
            continue;
        }
        let (found, after) = field(rest);
        if found != expected {
            return None;
        }
        rest = after?;
    }
    let (password, _) = field(rest);
    (!password.is_empty()).then(|| Password::new(password))
}

/// A field with its backslashes resolved, and what follows its colon.
fn field(text: &str) -> (String, Option<&str>) {
    let mut field = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ':' => return (field, Some(&text[at + 1..])),
            '\\' => field.extend(chars.next().map(|(_, escaped)| escaped)),
            c => field.push(c),
        }
    }
    (field, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted<'_> = Wanted {
        host: "db.example",
        port: 5432,
        dbname: "a:b",
        user: "mover",
    };

    #[test]
    fn a_line_matches_by_all_four_fields_and_stars_match_anything() {
        let found = |line: &str| password(line, &WANTED).map(|p| p.expose().to_owned());
        let secret = Some(r"p:w\".to_owned());
        assert_eq!(found(r"db.example:5432:a\:b:mover:p\:w\\"), secret);
        assert_eq!(found(r"*:*:*:*:p\:w\\"), secret);
        for other in [
            r"db.other:5432:a\:b:mover:x",
            r"db.example:5433:a\:b:mover:x",
            r"db.example:5432:c:mover:x",
            r"db.example:5432:a\:b:other:x",
            r"\*:5432:a\:b:mover:x",
            r"#*:*:*:*:x",
            r"*:*:*:*:",
            r"*:*:*",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
