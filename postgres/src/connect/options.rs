//! What a connection string means, with the environment and libpq's defaults filled in.
//!
//! One table ([`KEYS`]) has every parameter that libpq knows: whether Monarch uses it, which
//! environment variable stands for it, and, if it is not supported, why. A parameter is used or
//! refused by name, never passed over: an ignored one could weaken the connection unseen.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monarch_config::Dsn;

use super::dsn::{self, DsnError};
use super::passfile;
use super::tls::{Negotiation, SslMode, TlsOptions, TlsVersion};

/// Without a `connect_timeout` of its own a connection string gets this one. 0 waits for ever.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time before the first TCP keepalive.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time between keepalives, and how many go unanswered before the connection is given up: a peer
/// that is gone is noticed within a minute and a half.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;
const DEFAULT_PORT: u16 = 5432;
/// Where servers put their socket: Debian's place, else upstream's.
const SOCKET_DIRS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// A password; its text is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(String);

impl Password {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// What surrounds a connection string: the process's environment, its home and its user.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
    user: Option<String>,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .filter(|(name, _)| name.starts_with("PG"))
                .filter_map(|(name, value)| Some((name, value.into_string().ok()?)))
                .collect(),
            home: std::env::home_dir(),
            user: whoami::username().ok(),
        }
    }

    /// One that knows nothing: no variables, no home, no user.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The same, with a variable set.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same, with a home, where `.pgpass` and `.postgresql/` are looked for.
    pub fn with_home(mut self, home: &Path) -> Self {
        self.home = Some(home.to_owned());
        self
    }

    /// A file in the home, if there is such a file.
    fn home_file(&self, name: &str) -> Option<PathBuf> {
        let path = self.home.as_ref()?.join(name);
        path.is_file().then_some(path)
    }
}

/// What a server must be to be taken, as libpq's `target_session_attrs`.
///
/// Monarch sets `default_transaction_read_only` itself, so a read-only default of role or database
/// does not count: `read-write` means a primary and `read-only` a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// Whether SCRAM is tied to the TLS connection's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// TCP keepalives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalives {
    pub(super) idle: Duration,
    pub(super) interval: Duration,
    pub(super) count: u32,
}

/// One of the hosts of a connection string.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// Name or address, or the directory of the socket.
    pub(super) name: String,
    /// Where to connect instead of looking up the name.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) password: Option<Password>,
}

impl Host {
    /// The socket's directory, if it is one.
    pub(super) fn socket_dir(&self) -> Option<&Path> {
        (self.name.starts_with('/') && self.address.is_none()).then(|| Path::new(&self.name))
    }
}

/// Everything needed to connect: a connection string understood, defaults filled in.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) options: Option<String>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) keepalives: Option<Keepalives>,
    /// Zero is the system's own; none is the default of the session's purpose.
    pub(super) tcp_user_timeout: Option<Duration>,
    pub(super) target: Target,
    pub(super) shuffle_hosts: bool,
    pub(super) channel_binding: ChannelBinding,
    pub(super) tls: TlsOptions,
}

/// What Monarch does with a parameter of libpq.
enum Rule {
    Used,
    /// Only these values, which say what Monarch does anyhow.
    Only(&'static [&'static str], &'static str),
    Refused(&'static str),
}

use Rule::{Only, Refused, Used};

const NO_GSS: &str = "GSSAPI is not supported";
const NO_OAUTH: &str = "OAuth is not supported";

/// Every parameter of libpq 18: its name, its environment variable, and what is done with it.
#[rustfmt::skip]
const KEYS: &[(&str, &str, Rule)] = &[
    ("service", "PGSERVICE", Refused("write the service's parameters into the connection string")),
    ("servicefile", "", Refused("write the service's parameters into the connection string")),
    ("host", "PGHOST", Used),
    ("hostaddr", "PGHOSTADDR", Used),
    ("port", "PGPORT", Used),
    ("dbname", "PGDATABASE", Used),
    ("user", "PGUSER", Used),
    ("password", "PGPASSWORD", Used),
    ("passfile", "PGPASSFILE", Used),
    ("channel_binding", "PGCHANNELBINDING", Used),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Used),
    ("options", "PGOPTIONS", Used),
    // Sessions name themselves after their move, so that a successor finds them.
    ("application_name", "PGAPPNAME", Used),
    ("fallback_application_name", "", Used),
    ("keepalives", "", Used),
    ("keepalives_idle", "", Used),
    ("keepalives_interval", "", Used),
    ("keepalives_count", "", Used),
    ("tcp_user_timeout", "", Used),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Used),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Used),
    ("sslmode", "PGSSLMODE", Used),
    ("sslnegotiation", "PGSSLNEGOTIATION", Used),
    ("sslrootcert", "PGSSLROOTCERT", Used),
    ("sslcert", "PGSSLCERT", Used),
    ("sslkey", "PGSSLKEY", Used),
    ("sslcrl", "PGSSLCRL", Used),
    ("sslsni", "PGSSLSNI", Used),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Used),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Used),
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

/// The parameters given, each with where it came from.
struct Given(BTreeMap<&'static str, (String, String)>);

impl Given {
    /// The connection string's parameters, and the environment's for those that it does not name.
    fn read(text: &str, environment: &Environment) -> Result<Self, DsnError> {
        let mut given = BTreeMap::new();
        for (key, value) in dsn::split(text)? {
            let known = KEYS.iter().find(|(name, ..)| *name == key);
            let (name, ..) = known.ok_or(DsnError::UnknownKey { key })?;
            given.insert(*name, ((*name).to_owned(), value));
        }
        for (name, variable, _) in KEYS.iter().filter(|(_, variable, _)| !variable.is_empty()) {
            if let Some(value) = environment.variables.get(*variable) {
                let origin = (*variable).to_owned();
                given.entry(*name).or_insert((origin, value.clone()));
            }
        }
        for (name, _, rule) in KEYS {
            let Some((origin, value)) = given.get(name) else {
                continue;
            };
            let origin = origin.clone();
            match rule {
                _ if value.is_empty() => {}
                Used => {}
                Only(values, _) if values.contains(&value.to_ascii_lowercase().as_str()) => {}
                Only(_, expected) => return Err(DsnError::InvalidValue { origin, expected }),
                Refused(why) => return Err(DsnError::Unsupported { origin, why }),
            }
        }
        Ok(Self(given))
    }

    /// The value of a parameter; an empty one stands for its default.
    fn text(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    fn invalid(&self, name: &str, expected: &'static str) -> DsnError {
        let origin = self.0.get(name).map_or(name, |(origin, _)| origin.as_str());
        DsnError::InvalidValue {
            origin: origin.to_owned(),
            expected,
        }
    }

    /// One of a few words.
    fn word<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
        expected: &'static str,
    ) -> Result<Option<T>, DsnError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| *word == text);
        match found {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(self.invalid(name, expected)),
        }
    }

    /// A whole number; a negative one is 0, as libpq has it.
    fn number(&self, name: &str) -> Result<Option<u32>, DsnError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.trim().parse::<i32>() {
            Ok(number) => Ok(Some(number.max(0).unsigned_abs())),
            Err(_) => Err(self.invalid(name, "a whole number")),
        }
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>, DsnError> {
        Ok(self.number(name)?.map(|n| Duration::from_secs(n.into())))
    }
}

impl ConnectOptions {
    /// Understands a connection string of the configuration in the environment of this process.
    ///
    /// # Errors
    ///
    /// When libpq would not take it, and by name for what Monarch does not support.
    pub fn from_dsn(dsn: &Dsn) -> Result<Self, DsnError> {
        Self::parse(dsn.expose(), &Environment::of_process())
    }

    /// Understands a connection string, a URI or key=value words, as libpq would in `environment`.
    ///
    /// # Errors
    ///
    /// As [`from_dsn`](Self::from_dsn).
    pub fn parse(text: &str, environment: &Environment) -> Result<Self, DsnError> {
        let given = Given::read(text, environment)?;
        let user = match given.text("user") {
            Some(user) => user.to_owned(),
            None => environment.user.clone().ok_or(DsnError::NoUser)?,
        };
        let dbname = given.text("dbname").unwrap_or(&user).to_owned();
        let tls = tls(&given, environment)?;
        Ok(Self {
            hosts: hosts(&given, environment, &dbname, &user)?,
            options: given.text("options").map(str::to_owned),
            connect_timeout: match given.seconds("connect_timeout")? {
                Some(Duration::ZERO) => None,
                given => Some(given.unwrap_or(CONNECT_TIMEOUT)),
            },
            keepalives: keepalives(&given)?,
            tcp_user_timeout: given
                .number("tcp_user_timeout")?
                .map(|ms| Duration::from_millis(ms.into())),
            target: target(&given)?,
            shuffle_hosts: given
                .word(
                    "load_balance_hosts",
                    &[("disable", false), ("random", true)],
                    "disable or random",
                )?
                .unwrap_or(false),
            channel_binding: channel_binding(&given)?,
            user,
            dbname,
            tls,
        })
    }

    /// The database's name.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// The role's name.
    pub fn user(&self) -> &str {
        &self.user
    }
}

fn target(given: &Given) -> Result<Target, DsnError> {
    let words = [
        ("any", Target::Any),
        ("read-write", Target::ReadWrite),
        ("read-only", Target::ReadOnly),
        ("primary", Target::Primary),
        ("standby", Target::Standby),
        ("prefer-standby", Target::PreferStandby),
    ];
    let expected = "any, read-write, read-only, primary, standby or prefer-standby";
    Ok(given
        .word("target_session_attrs", &words, expected)?
        .unwrap_or(Target::Any))
}

fn channel_binding(given: &Given) -> Result<ChannelBinding, DsnError> {
    let words = [
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ];
    Ok(given
        .word("channel_binding", &words, "disable, prefer or require")?
        .unwrap_or(ChannelBinding::Prefer))
}

fn keepalives(given: &Given) -> Result<Option<Keepalives>, DsnError> {
    if given.number("keepalives")? == Some(0) {
        return Ok(None);
    }
    let seconds = |name, default| {
        Ok(given
            .seconds(name)?
            .filter(|given| !given.is_zero())
            .unwrap_or(default))
    };
    Ok(Some(Keepalives {
        idle: seconds("keepalives_idle", KEEPALIVE_IDLE)?,
        interval: seconds("keepalives_interval", KEEPALIVE_INTERVAL)?,
        count: given
            .number("keepalives_count")?
            .filter(|&count| count > 0)
            .unwrap_or(KEEPALIVE_COUNT),
    }))
}

fn hosts(
    given: &Given,
    environment: &Environment,
    dbname: &str,
    user: &str,
) -> Result<Vec<Host>, DsnError> {
    let list = |name| -> Vec<&str> {
        let entries = given.text(name).map(|text| text.split(','));
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
    let mut hosts = Vec::with_capacity(count);
    for at in 0..count {
        let address = match addresses.get(at).filter(|text| !text.is_empty()) {
            Some(text) => Some(
                text.parse::<IpAddr>()
                    .map_err(|_| given.invalid("hostaddr", "a numeric address"))?,
            ),
            None => None,
        };
        let port = match ports.get(at).or(ports.first()).filter(|p| !p.is_empty()) {
            Some(text) => text
                .parse()
                .ok()
                .filter(|&port| port != 0)
                .ok_or_else(|| given.invalid("port", "1 to 65535"))?,
            None => DEFAULT_PORT,
        };
        let name = match (names.get(at).filter(|name| !name.is_empty()), address) {
            (Some(name), _) => (*name).to_owned(),
            (None, Some(address)) => address.to_string(),
            (None, None) => default_socket_dir().to_owned(),
        };
        let password = password(given, environment, &name, port, dbname, user);
        hosts.push(Host {
            name,
            address,
            port,
            password,
        });
    }
    Ok(hosts)
}

fn default_socket_dir() -> &'static str {
    let [debian, upstream] = SOCKET_DIRS;
    if Path::new(debian).is_dir() {
        debian
    } else {
        upstream
    }
}

fn password(
    given: &Given,
    environment: &Environment,
    host: &str,
    port: u16,
    dbname: &str,
    user: &str,
) -> Option<Password> {
    if let Some(password) = given.text("password") {
        return Some(Password::new(password.to_owned()));
    }
    let path = given
        .path("passfile")
        .or_else(|| environment.home_file(".pgpass"))?;
    let host = if SOCKET_DIRS.contains(&host) {
        "localhost"
    } else {
        host
    };
    let wanted = passfile::Wanted {
        host,
        port,
        dbname,
        user,
    };
    passfile::look_up(&path, &wanted)
}

fn tls(given: &Given, environment: &Environment) -> Result<TlsOptions, DsnError> {
    let modes = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Allow),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    let expected = "disable, allow, prefer, require, verify-ca or verify-full";
    let system_roots = given.text("sslrootcert") == Some("system");
    let mode = match given.word("sslmode", &modes, expected)? {
        Some(mode) if system_roots && mode != SslMode::VerifyFull => {
            return Err(DsnError::Conflict(
                "sslrootcert=system needs sslmode=verify-full: anybody can have a certificate of \
                 a public authority",
            ));
        }
        Some(mode) => mode,
        None if system_roots => SslMode::VerifyFull,
        None => SslMode::Prefer,
    };
    let negotiations = [
        ("postgres", Negotiation::Postgres),
        ("direct", Negotiation::Direct),
    ];
    let negotiation = given
        .word("sslnegotiation", &negotiations, "postgres or direct")?
        .unwrap_or(Negotiation::Postgres);
    if negotiation == Negotiation::Direct && mode < SslMode::Require {
        return Err(DsnError::Conflict(
            "sslnegotiation=direct needs sslmode=require, verify-ca or verify-full",
        ));
    }
    let versions = [("TLSv1.2", TlsVersion::V12), ("TLSv1.3", TlsVersion::V13)];
    let version = |name| given.word(name, &versions, "TLSv1.2 or TLSv1.3");
    let file = |name: &str, default: &str| {
        let default = format!(".postgresql/{default}");
        given.path(name).or_else(|| environment.home_file(&default))
    };
    Ok(TlsOptions {
        mode,
        negotiation,
        system_roots,
        root_cert: file("sslrootcert", "root.crt").filter(|_| !system_roots),
        client_cert: file("sslcert", "postgresql.crt"),
        client_key: file("sslkey", "postgresql.key"),
        crl: file("sslcrl", "root.crl"),
        server_name_indication: given.number("sslsni")? != Some(0),
        min_version: version("ssl_min_protocol_version")?,
        max_version: version("ssl_max_protocol_version")?,
    })
}

#[cfg(test)]
mod tests;
