//! The two forms of a connection string, taken apart as libpq does.
//!
//! Errors say where and what, never the text around it: it may be part of a password.

use super::error::DsnError;

/// The keys and values of a connection string, in order; the last of two equal keys counts.
pub(super) fn split(text: &str) -> Result<Vec<(String, String)>, DsnError> {
    for scheme in ["postgresql://", "postgres://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return uri(rest);
        }
    }
    key_values(text)
}

fn key_values(text: &str) -> Result<Vec<(String, String)>, DsnError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let word = pairs.len() + 1;
        let end = rest
            .find(|c: char| c == '=' || c.is_ascii_whitespace())
            .ok_or(DsnError::NoValue { word })?;
        let key = &rest[..end];
        let Some(after) = rest[end..].trim_start().strip_prefix('=') else {
            return Err(DsnError::NoValue { word });
        };
        let (value, after) =
            value(after.trim_start()).ok_or(DsnError::UnterminatedQuote { word })?;
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// One value and what follows it; none if its quote does not end. A backslash takes the next
/// character as it is, in quotes or not.
fn value(text: &str) -> Option<(String, &str)> {
    let (quoted, body) = match text.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Some((value, &body[at + 1..])),
            c if !quoted && c.is_ascii_whitespace() => return Some((value, &body[at..])),
            c => value.push(c),
        }
    }
    (!quoted).then_some((value, ""))
}

/// `[user[:password]@][host[:port],…][/dbname][?key=value&…]`
fn uri(text: &str) -> Result<Vec<(String, String)>, DsnError> {
    let mut pairs = Vec::new();
    let (text, query) = match text.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (text, None),
    };
    let (authority, dbname) = match text.split_once('/') {
        Some((authority, dbname)) => (authority, Some(dbname)),
        None => (text, None),
    };
    let hosts = match authority.split_once('@') {
        Some((credentials, hosts)) => {
            let (user, password) = match credentials.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (credentials, None),
            };
            push(&mut pairs, "user", "user", user)?;
            push(&mut pairs, "password", "password", password.unwrap_or(""))?;
            hosts
        }
        None => authority,
    };
    host_list(&mut pairs, hosts)?;
    push(&mut pairs, "dbname", "database name", dbname.unwrap_or(""))?;
    for parameter in query.unwrap_or("").split('&').filter(|p| !p.is_empty()) {
        parameters(&mut pairs, parameter)?;
    }
    Ok(pairs)
}

fn push(
    pairs: &mut Vec<(String, String)>,
    key: &str,
    part: &'static str,
    encoded: &str,
) -> Result<(), DsnError> {
    if !encoded.is_empty() {
        pairs.push((key.to_owned(), percent_decode(part, encoded)?));
    }
    Ok(())
}

fn host_list(pairs: &mut Vec<(String, String)>, hosts: &str) -> Result<(), DsnError> {
    if hosts.is_empty() {
        return Ok(());
    }
    // What stands before it is part of a password, and must not be taken for a host's name.
    if hosts.contains('@') {
        return Err(DsnError::Uri {
            part: "user and password",
            expected: "%40 for an @ in them",
        });
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(bracketed) => bracketed
                .split_once(']')
                .filter(|(_, port)| port.is_empty() || port.starts_with(':'))
                .map(|(name, port)| (name, port.strip_prefix(':').unwrap_or("")))
                .ok_or(DsnError::Uri {
                    part: "IPv6 address",
                    expected: "[address] or [address]:port",
                })?,
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(percent_decode("host", name)?);
        ports.push(percent_decode("port", port)?);
    }
    pairs.push(("host".to_owned(), names.join(",")));
    if ports.iter().any(|port| !port.is_empty()) {
        pairs.push(("port".to_owned(), ports.join(",")));
    }
    Ok(())
}

fn parameters(pairs: &mut Vec<(String, String)>, parameter: &str) -> Result<(), DsnError> {
    let malformed = DsnError::Uri {
        part: "query",
        expected: "key=value pairs separated by \"&\", each with one \"=\"",
    };
    let (key, value) = parameter.split_once('=').ok_or(malformed.clone())?;
    if value.contains('=') {
        return Err(malformed);
    }
    let key = percent_decode("query", key)?;
    let value = percent_decode("query", value)?;
    match (key.as_str(), value.as_str()) {
        // What JDBC writes, and libpq takes.
        ("ssl", "true") => pairs.push(("sslmode".to_owned(), "require".to_owned())),
        _ => pairs.push((key, value)),
    }
    Ok(())
}

fn percent_decode(part: &'static str, text: &str) -> Result<String, DsnError> {
    let malformed = || DsnError::Uri {
        part,
        expected: "percent-encoded UTF-8 without NUL",
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|&d| char::from(d).to_digit(16));
        match (digit(0), digit(1)) {
            (Some(high), Some(low)) if high + low > 0 => bytes.push((high * 16 + low) as u8),
            _ => return Err(malformed()),
        }
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        split(text).unwrap()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn key_values_may_be_quoted_escaped_and_spaced() {
        assert_eq!(
            pairs(r"  host = a.b  password='it\'s a \\ = secret' dbname='' user=x\ y"),
            owned(&[
                ("host", "a.b"),
                ("password", r"it's a \ = secret"),
                ("dbname", ""),
                ("user", "x y"),
            ])
        );
        assert_eq!(pairs(""), []);
    }

    #[test]
    fn a_uri_has_hosts_ports_and_percent_signs() {
        assert_eq!(
            pairs("postgresql://u%40x:p%3Aw%2F@h1:1,[::1]:2,%2Frun%2Fpg/my%20db?sslmode=require"),
            owned(&[
                ("user", "u@x"),
                ("password", "p:w/"),
                ("host", "h1,::1,/run/pg"),
                ("port", "1,2,"),
                ("dbname", "my db"),
                ("sslmode", "require"),
            ])
        );
        assert_eq!(
            pairs("postgres:///db?host=/tmp&ssl=true"),
            owned(&[("dbname", "db"), ("host", "/tmp"), ("sslmode", "require")])
        );
    }

    /// Guards promise 10: a malformed string is refused without being quoted.
    #[test]
    fn a_malformed_string_is_refused_without_quoting_it() {
        for bad in [
            "password=hunter2 hunter3",
            "host=a password='hunter2",
            "postgres://u:hunter2%zz@h/d",
            "postgres://u:hunter2%00@h/d",
            "postgres://u:p@h/d?password=hunter2=hunter3",
            "postgres://u:p@[::1hunter2/d",
            "postgres://u:hunter2@hunter3@h/d",
            "hunter2",
        ] {
            let error = split(bad).unwrap_err();
            assert!(
                !format!("{error} {error:?}").contains("hunter"),
                "{error:?}"
            );
        }
    }
}
