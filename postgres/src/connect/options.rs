//! What a connection string means, with the environment and libpq's defaults filled in.
//!
//! Which parameters there are, and what each may hold, is checked by [`Parameters`], as it is when
//! the fleet is read.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monarch_config::{Dsn, DsnError, HostParameters, Parameters};

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

/// The parameters of a connection string, as values of ours.
struct Given(Parameters);

impl Given {
    fn read(text: &str, environment: &Environment) -> Result<Self, DsnError> {
        let env = |name: &str| environment.variables.get(name).cloned();
        Parameters::read(text, &env)
            .map(Self)
            .map_err(|mut faults| faults.swap_remove(0))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.text(name)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// One of a few words. A word that is missing here is refused: a weaker meaning must not stand
    /// in for it.
    fn word<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, DsnError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(DsnError::Unsupported {
                origin: name.to_owned(),
                why: "this value has no meaning here",
            }),
        }
    }

    fn seconds(&self, name: &str) -> Option<Duration> {
        self.0.number(name).map(|n| Duration::from_secs(n.into()))
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
            hosts: hosts(&given, environment, &dbname, &user),
            options: given.text("options").map(str::to_owned),
            connect_timeout: match given.seconds("connect_timeout") {
                Some(Duration::ZERO) => None,
                given => Some(given.unwrap_or(CONNECT_TIMEOUT)),
            },
            keepalives: keepalives(&given),
            tcp_user_timeout: given
                .0
                .number("tcp_user_timeout")
                .map(|ms| Duration::from_millis(ms.into())),
            target: target(&given)?,
            shuffle_hosts: given
                .word(
                    "load_balance_hosts",
                    &[("disable", false), ("random", true)],
                )?
                .unwrap_or(false),
            channel_binding: channel_binding(&given)?,
            user,
            dbname,
            tls,
        })
    }

    /// Where the database is, as `host:port/dbname`; each host, if there are more.
    pub fn whereabouts(&self) -> String {
        let endpoints = self.hosts.iter().map(|host| host.endpoint().to_string());
        format!(
            "{}/{}",
            endpoints.collect::<Vec<_>>().join(","),
            self.dbname
        )
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
    Ok(given
        .word("target_session_attrs", &words)?
        .unwrap_or(Target::Any))
}

fn channel_binding(given: &Given) -> Result<ChannelBinding, DsnError> {
    let words = [
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ];
    Ok(given
        .word("channel_binding", &words)?
        .unwrap_or(ChannelBinding::Prefer))
}

fn keepalives(given: &Given) -> Option<Keepalives> {
    if given.0.number("keepalives") == Some(0) {
        return None;
    }
    let seconds = |name, default| {
        let given = given.seconds(name).filter(|given| !given.is_zero());
        given.unwrap_or(default)
    };
    let count = given.0.number("keepalives_count");
    Some(Keepalives {
        idle: seconds("keepalives_idle", KEEPALIVE_IDLE),
        interval: seconds("keepalives_interval", KEEPALIVE_INTERVAL),
        count: count.filter(|&count| count > 0).unwrap_or(KEEPALIVE_COUNT),
    })
}

fn hosts(given: &Given, environment: &Environment, dbname: &str, user: &str) -> Vec<Host> {
    let host = |host: &HostParameters| {
        let name = match (&host.name, host.address) {
            (Some(name), _) => name.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => default_socket_dir().to_owned(),
        };
        let password = password(given, environment, &name, host.port, dbname, user);
        Host {
            name,
            address: host.address,
            port: host.port,
            password,
        }
    };
    given.0.hosts().iter().map(host).collect()
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
    let system_roots = given.text("sslrootcert") == Some("system");
    let default = if system_roots {
        SslMode::VerifyFull
    } else {
        SslMode::Prefer
    };
    let negotiations = [
        ("postgres", Negotiation::Postgres),
        ("direct", Negotiation::Direct),
    ];
    let versions = [("TLSv1.2", TlsVersion::V12), ("TLSv1.3", TlsVersion::V13)];
    let version = |name| given.word(name, &versions);
    let file = |name: &str, default: &str| {
        let default = format!(".postgresql/{default}");
        given.path(name).or_else(|| environment.home_file(&default))
    };
    Ok(TlsOptions {
        mode: given.word("sslmode", &modes)?.unwrap_or(default),
        negotiation: given
            .word("sslnegotiation", &negotiations)?
            .unwrap_or(Negotiation::Postgres),
        system_roots,
        root_cert: file("sslrootcert", "root.crt").filter(|_| !system_roots),
        client_cert: file("sslcert", "postgresql.crt"),
        client_key: file("sslkey", "postgresql.key"),
        crl: file("sslcrl", "root.crl"),
        server_name_indication: given.0.number("sslsni") != Some(0),
        min_version: version("ssl_min_protocol_version")?,
        max_version: version("ssl_max_protocol_version")?,
    })
}

#[cfg(test)]
mod tests;
