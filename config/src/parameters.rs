//! Connection strings, read as libpq reads them.
//!
//! One table ([`KEYS`]) has every parameter that libpq knows: what it may hold, which environment
//! variable stands for it, and, if Monarch does not support it, why. A parameter is used or refused
//! by name, never passed over: an ignored one could weaken the connection unseen.
//!
//! It is here, and not where connections are made, so that a fault in a connection string is told
//! with all the other faults of the fleet, by the very code that reads it before connecting. What
//! the parameters mean is up to whoever connects.

mod error;
mod syntax;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::dsn::Env;
use crate::fault::near_miss;

pub use error::DsnError;

const DEFAULT_PORT: u16 = 5432;

/// What a parameter may hold.
enum Rule {
    Text,
    /// A whole number.
    Number,
    /// One of these words, told as the second says.
    Word(&'static [&'static str], &'static str),
    /// A list of which the hosts are made.
    Hosts,
    /// Only these values, which say what Monarch does anyhow.
    Only(&'static [&'static str], &'static str),
    Refused(&'static str),
}

use Rule::{Hosts, Number, Only, Refused, Text, Word};

const NO_GSS: &str = "GSSAPI is not supported";
const NO_OAUTH: &str = "OAuth is not supported";
const TLS_VERSION: Rule = Word(&["TLSv1.2", "TLSv1.3"], "TLSv1.2 or TLSv1.3");

/// Every parameter of libpq 18: its name, its environment variable, and what it may hold.
#[rustfmt::skip]
const KEYS: &[(&str, &str, Rule)] = &[
    ("service", "PGSERVICE", Refused("write the service's parameters into the connection string")),
    ("servicefile", "", Refused("write the service's parameters into the connection string")),
    ("host", "PGHOST", Hosts),
    ("hostaddr", "PGHOSTADDR", Hosts),
    ("port", "PGPORT", Hosts),
    ("dbname", "PGDATABASE", Text),
    ("user", "PGUSER", Text),
    ("password", "PGPASSWORD", Text),
    ("passfile", "PGPASSFILE", Text),
    ("channel_binding", "PGCHANNELBINDING",
        Word(&["disable", "prefer", "require"], "disable, prefer or require")),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Number),
    ("options", "PGOPTIONS", Text),
    // Sessions name themselves after their move, so that a successor finds them.
    ("application_name", "PGAPPNAME", Text),
    ("fallback_application_name", "", Text),
    ("keepalives", "", Number),
    ("keepalives_idle", "", Number),
    ("keepalives_interval", "", Number),
    ("keepalives_count", "", Number),
    ("tcp_user_timeout", "", Number),
    ("target_session_attrs", "PGTARGETSESSIONATTRS",
        Word(&["any", "read-write", "read-only", "primary", "standby", "prefer-standby"],
            "any, read-write, read-only, primary, standby or prefer-standby")),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Word(&["disable", "random"], "disable or random")),
    ("sslmode", "PGSSLMODE",
        Word(&["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
            "disable, allow, prefer, require, verify-ca or verify-full")),
    ("sslnegotiation", "PGSSLNEGOTIATION", Word(&["postgres", "direct"], "postgres or direct")),
    ("sslrootcert", "PGSSLROOTCERT", Text),
    ("sslcert", "PGSSLCERT", Text),
    ("sslkey", "PGSSLKEY", Text),
    ("sslcrl", "PGSSLCRL", Text),
    ("sslsni", "PGSSLSNI", Number),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", TLS_VERSION),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", TLS_VERSION),
    ("client_encoding", "PGCLIENTENCODING", Only(&["utf8", "utf-8", "auto"], "UTF8")),
    ("gssencmode", "PGGSSENCMODE", Only(&["disable", "prefer"], "disable or prefer")),
    ("gssdelegation", "PGGSSDELEGATION", Only(&["0"], "0")),
    ("sslcompression", "PGSSLCOMPRESSION", Only(&["0"], "0")),
    ("sslcertmode", "PGSSLCERTMODE", Only(&["allow"], "allow")),
    ("min_protocol_version", "PGMINPROTOCOLVERSION", Only(&["3.0"], "3.0")),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION", Only(&["3.0", "3.2", "latest"], "3.0 or later")),
    ("requiressl", "PGREQUIRESSL", Refused("use sslmode=require")),
    ("sslpassword", "", Refused("keep the client's key unencrypted, readable by its owner only")),
    ("sslcrldir", "PGSSLCRLDIR", Refused("use sslcrl")),
    ("sslkeylogfile", "", Refused("keys of a connection are not written to files")),
    ("requirepeer", "PGREQUIREPEER", Refused("the server's user cannot be checked; use TLS")),
    ("require_auth", "PGREQUIREAUTH", Refused("use channel_binding=require to insist on SCRAM")),
    ("replication", "", Refused("it is set where it is needed")),
    ("krbsrvname", "PGKRBSRVNAME", Refused(NO_GSS)),
    ("gsslib", "PGGSSLIB", Refused(NO_GSS)),
    ("scram_client_key", "", Refused("give the password")),
    ("scram_server_key", "", Refused("give the password")),
    ("oauth_issuer", "", Refused(NO_OAUTH)),
    ("oauth_client_id", "", Refused(NO_OAUTH)),
    ("oauth_client_secret", "", Refused(NO_OAUTH)),
    ("oauth_scope", "", Refused(NO_OAUTH)),
];

/// A connection string taken apart and checked, with what the environment adds to it.
///
/// It may hold a password, so nothing prints it.
pub struct Parameters {
    /// By key: where the value came from, and the value.
    given: BTreeMap<&'static str, (String, String)>,
    hosts: Vec<HostParameters>,
}

/// One of the hosts of a connection string, of which there is always one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostParameters {
    /// Name or address, or the directory of the socket, if given.
    pub name: Option<String>,
    /// Where to connect instead of looking up the name.
    pub address: Option<IpAddr>,
    /// 5432 unless given.
    pub port: u16,
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parameters(…)")
    }
}

impl Parameters {
    /// Takes a connection string apart, a URI or key=value words, and checks every value; `env`
    /// gives what the string does not name.
    ///
    /// # Errors
    ///
    /// Everything for which libpq would not take it, or that Monarch does not support; at least
    /// one.
    pub fn read(text: &str, env: &Env<'_>) -> Result<Self, Vec<DsnError>> {
        let mut faults = Vec::new();
        let mut given = named(text, &mut faults);
        for (name, variable, _) in KEYS.iter().filter(|(_, variable, _)| !variable.is_empty()) {
            if !given.contains_key(name)
                && let Some(value) = env(variable)
            {
                given.insert(*name, ((*variable).to_owned(), value));
            }
        }
        let mut read = Self {
            given,
            hosts: Vec::new(),
        };
        faults.extend(
            KEYS.iter()
                .filter_map(|(name, _, rule)| read.broken(name, rule)),
        );
        match read.read_hosts() {
            Ok(hosts) => read.hosts = hosts,
            Err(fault) => faults.push(fault),
        }
        faults.extend(read.conflicts());
        if faults.is_empty() {
            Ok(read)
        } else {
            Err(faults)
        }
    }

    /// The value of a parameter; an empty one stands for its default.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given
            .get(name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// A whole number; a negative one is 0, as libpq has it.
    pub fn number(&self, name: &str) -> Option<u32> {
        let number: i32 = self.text(name)?.trim().parse().ok()?;
        Some(number.max(0).unsigned_abs())
    }

    /// The hosts, in order.
    pub fn hosts(&self) -> &[HostParameters] {
        &self.hosts
    }

    /// Each parameter that holds one of a few words, with these.
    pub fn words() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        KEYS.iter().filter_map(|(name, _, rule)| match rule {
            Word(words, _) => Some((*name, *words)),
            Text | Number | Hosts | Only(..) | Refused(_) => None,
        })
    }

    /// The fault of a parameter whose value breaks its rule.
    fn broken(&self, name: &str, rule: &Rule) -> Option<DsnError> {
        let text = self.text(name)?;
        let expected = match rule {
            Text | Hosts => return None,
            Number if text.trim().parse::<i32>().is_ok() => return None,
            Number => "a whole number",
            Word(words, _) if words.contains(&text) => return None,
            Only(values, _) if values.contains(&text.to_ascii_lowercase().as_str()) => return None,
            Word(_, expected) | Only(_, expected) => expected,
            Refused(why) => {
                let origin = self.origin(name);
                return Some(DsnError::Unsupported { origin, why });
            }
        };
        Some(self.invalid(name, expected))
    }

    fn invalid(&self, name: &str, expected: &'static str) -> DsnError {
        let origin = self.origin(name);
        DsnError::InvalidValue { origin, expected }
    }

    /// The key, or the variable that stands for it.
    fn origin(&self, name: &str) -> String {
        let origin = self.given.get(name).map(|(origin, _)| origin.as_str());
        origin.unwrap_or(name).to_owned()
    }

    fn read_hosts(&self) -> Result<Vec<HostParameters>, DsnError> {
        let list = |name| -> Vec<&str> {
            let entries = self.text(name).map(|text| text.split(','));
            entries.map_or_else(Vec::new, |entries| entries.map(str::trim).collect())
        };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let count = names.len().max(addresses.len()).max(1);
        if !names.is_empty() && !addresses.is_empty() && addresses.len() != names.len() {
            let (what, given, hosts) = ("hostaddr", addresses.len(), names.len());
            return Err(DsnError::ListLength { what, given, hosts });
        }
        if ports.len() > 1 && ports.len() != count {
            let (what, given, hosts) = ("port", ports.len(), count);
            return Err(DsnError::ListLength { what, given, hosts });
        }
        let host = |at| {
            let name = entry(&names, at).map(str::to_owned);
            let address = entry(&addresses, at).map(str::parse).transpose();
            let address = address.map_err(|_| self.invalid("hostaddr", "a numeric address"))?;
            let port = match entry(&ports, if ports.len() == 1 { 0 } else { at }) {
                Some(text) => text.parse().ok().filter(|&port| port != 0),
                None => Some(DEFAULT_PORT),
            };
            Ok(HostParameters {
                name,
                address,
                port: port.ok_or_else(|| self.invalid("port", "1 to 65535"))?,
            })
        };
        (0..count).map(host).collect()
    }

    /// Parameters that do not go together.
    fn conflicts(&self) -> impl Iterator<Item = DsnError> {
        let mode = self.text("sslmode");
        let system_roots = self.text("sslrootcert") == Some("system");
        let unverified = system_roots && mode.is_some_and(|mode| mode != "verify-full");
        let required = ["require", "verify-ca", "verify-full"];
        let maybe_plain = match mode {
            Some(mode) => !required.contains(&mode),
            None => !system_roots,
        };
        let direct = self.text("sslnegotiation") == Some("direct");
        let unverified = unverified.then_some(DsnError::Conflict {
            given: "sslrootcert=system",
            needed: "sslmode=verify-full: anybody can have a certificate of a public authority",
        });
        let maybe_plain = (direct && maybe_plain).then_some(DsnError::Conflict {
            given: "sslnegotiation=direct",
            needed: "sslmode=require, verify-ca or verify-full",
        });
        unverified.into_iter().chain(maybe_plain)
    }
}

/// The parameters that the connection string names. Those that are unknown are faults.
fn named(text: &str, faults: &mut Vec<DsnError>) -> BTreeMap<&'static str, (String, String)> {
    let mut given = BTreeMap::new();
    let pairs = syntax::split(text).unwrap_or_else(|fault| {
        faults.push(fault);
        Vec::new()
    });
    let mut previous = "";
    for (number, (key, value)) in (1..).zip(pairs) {
        match KEYS.iter().find(|(name, ..)| *name == key) {
            Some((name, ..)) => {
                given.insert(*name, ((*name).to_owned(), value));
                previous = name;
            }
            // Perhaps the rest of a password with spaces: it is not named, nor what follows it.
            None if previous == "password" => {
                faults.push(DsnError::AfterPassword);
                break;
            }
            None => {
                let near = near_miss(&key, keys());
                faults.push(DsnError::UnknownKey { number, near });
            }
        }
    }
    given
}

/// An entry of a list; an empty one is none.
fn entry<'a>(list: &[&'a str], at: usize) -> Option<&'a str> {
    list.get(at).copied().filter(|text| !text.is_empty())
}

/// The keys that libpq has.
fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let faults = Parameters::read(text, &|_| None).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_fault_of_a_string_is_told_at_once() {
        let told = faults("host=a,b port=x sslmode=maybe dbnam=d connect_timeout=soon");
        assert_eq!(
            told,
            [
                "the connection string's parameter 4 is none that libpq has (did you mean \"dbname\"?)",
                "connect_timeout is not valid: expected a whole number",
                "sslmode is not valid: expected disable, allow, prefer, require, verify-ca or \
                 verify-full",
                "port is not valid: expected 1 to 65535",
            ]
        );
    }

    /// Guards promise 10: the rest of a password with spaces, or of one that a URI does not encode,
    /// is not taken for a key's name.
    #[test]
    fn what_may_be_the_rest_of_a_password_is_not_named() {
        for text in [
            "postgres://u:pass?hunter2=x@h/d",
            "postgres://u:pass@h/d?sslanother://u:hunter2@h/d?sslmode=require",
            "host=a password=hunter2 hunter3=x",
            "host=a password=hunter2 hunter3 dbname=d",
            "host=a password=hunter2 hunter3='x",
        ] {
            let told = faults(text).join("\n");
            assert!(!told.is_empty() && !told.contains("hunter"), "{told}");
        }
    }

    #[test]
    fn the_environment_is_read_by_its_variables_and_named_so() {
        let env = |name: &str| (name == "PGPORT").then(|| "70000".to_owned());
        let faults = Parameters::read("host=a", &env).unwrap_err();
        assert_eq!(
            faults[0].to_string(),
            "PGPORT is not valid: expected 1 to 65535"
        );
        assert_eq!(Parameters::read("port=1", &env).unwrap().hosts()[0].port, 1);
    }
}
