//! Connection strings, TLS, authentication and settings against real servers.

#![allow(clippy::unwrap_used)] // also in what the tests share

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use monarch_harness::{
    Cluster, ClusterOptions, PASSWORD, PgVersion, ServerTls, fresh_name, shared,
};
use monarch_postgres::connect::Environment;
use monarch_postgres::replication::ReplicationConnection;
use monarch_postgres::{
    ConnectOptions, Doing, Error, ServerError, Session, SessionPurpose, SessionRole,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// Lines for roles that each meet one rule; the harness lets the others in by SCRAM.
const HBA: [&str; 7] = [
    "hostnossl all tls_only 127.0.0.1/32 reject",
    "hostssl all plain_only 127.0.0.1/32 reject",
    "hostssl all certified 127.0.0.1/32 cert",
    "host all,replication clear 127.0.0.1/32 password",
    "host all,replication old_hash 127.0.0.1/32 md5",
    "host all stranger 127.0.0.1/32 reject",
    "host all,replication trusted 127.0.0.1/32 trust",
];

/// A server with TLS, and certificates to meet it with.
struct Secured {
    cluster: Cluster,
    files: TempDir,
}

impl Secured {
    fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// Words for the server under a name that its certificate has.
    fn dsn(&self, words: &str) -> String {
        self.dsn_of("db.test", words)
    }

    fn dsn_of(&self, host: &str, words: &str) -> String {
        let port = self.cluster.port();
        format!(
            "host={host} hostaddr=127.0.0.1 port={port} user=postgres password={PASSWORD} \
             dbname=postgres {words}"
        )
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, PEM.
fn certificate(authority: &Authority, common_name: &str, names: &[&str]) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn secured() -> &'static Secured {
    static SECURED: OnceCell<Secured> = OnceCell::const_new();
    SECURED.get_or_init(start_secured).await
}

async fn start_secured() -> Secured {
    let ours = authority("ours");
    let (certificate_pem, key_pem) = certificate(&ours, "server", &["db.test"]);
    let (client_pem, client_key) = certificate(&ours, "certified", &[]);
    let files = tempfile::tempdir().unwrap();
    let folder = files.path();
    write(folder, "ours.crt", &ours.as_ref().pem(), 0o644);
    write(
        folder,
        "other.crt",
        &authority("other").as_ref().pem(),
        0o644,
    );
    write(folder, "client.crt", &client_pem, 0o644);
    write(folder, "client.key", &client_key, 0o600);
    write(folder, "open.key", &client_key, 0o644);
    let mut options = ClusterOptions::new(PgVersion::V15).tls(ServerTls {
        certificate_pem,
        key_pem,
        client_authority_pem: Some(ours.as_ref().pem()),
    });
    for line in HBA {
        options = options.hba(line);
    }
    let cluster = Cluster::start(options).await.unwrap();
    let admin = cluster.admin("postgres").await.unwrap();
    for role in [
        "tls_only",
        "plain_only",
        "certified",
        "clear",
        "stranger",
        "trusted",
    ] {
        let role = format!("create role {role} login replication password '{PASSWORD}'");
        admin.batch_execute(&role).await.unwrap();
    }
    let old_hash = format!(
        "set password_encryption = md5;
         create role old_hash login replication password '{PASSWORD}'"
    );
    admin.batch_execute(&old_hash).await.unwrap();
    Secured { cluster, files }
}

fn options(dsn: &str) -> ConnectOptions {
    ConnectOptions::parse(dsn, &Environment::empty()).unwrap()
}

fn reader() -> SessionPurpose {
    SessionPurpose::reader("monarch test")
}

async fn connect(dsn: &str) -> Result<Session, Error> {
    Session::connect(&options(dsn), &reader()).await
}

async fn replicate(dsn: &str) -> Result<ReplicationConnection, Error> {
    ReplicationConnection::connect(&options(dsn), &reader()).await
}

/// Whether a session came about and is encrypted.
async fn encrypted(dsn: &str) -> Result<bool, Error> {
    let session = connect(dsn).await?;
    let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    Ok(session.query_one(query, &[]).await.doing("look")?.get(0))
}

/// Why there is no session; there must be none.
async fn refused(dsn: &str) -> ServerError {
    match connect(dsn).await {
        Err(Error::Connect { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

fn replication_refused(result: Result<ReplicationConnection, Error>) -> ServerError {
    match result {
        Err(Error::Connect { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Guards promise 10: nobody in between reads what a cell told us to hide, in each of libpq's
/// modes, with the right authority, a wrong one or none, under the right name and a wrong one.
#[tokio::test]
async fn each_sslmode_proves_what_libpq_says_it_proves() {
    let server = secured().await;
    let (tls, plain, no) = (Some(true), Some(false), None);
    #[rustfmt::skip]
    let table = [
        // mode,        no root, our root, our root and wrong name, wrong root
        ("disable",     [plain,  plain,    plain,                   plain]),
        ("allow",       [plain,  plain,    plain,                   plain]),
        ("prefer",      [tls,    tls,      tls,                     plain]),
        ("require",     [tls,    tls,      tls,                     no]),
        ("verify-ca",   [no,     tls,      tls,                     no]),
        ("verify-full", [no,     tls,      no,                      no]),
    ];
    let (ours, other) = (server.file("ours.crt"), server.file("other.crt"));
    for (mode, [without, right, wrong_name, wrong_root]) in table {
        let mode = format!("sslmode={mode}");
        let with_root = |root: &str| format!("{mode} sslrootcert={root}");
        for (expected, dsn) in [
            (without, server.dsn(&mode)),
            (right, server.dsn(&with_root(&ours))),
            (wrong_name, server.dsn_of("other.test", &with_root(&ours))),
            (wrong_root, server.dsn(&with_root(&other))),
        ] {
            let found = encrypted(&dsn).await;
            if expected.is_none() {
                let source = refused(&dsn).await;
                assert!(matches!(source, ServerError::Tls(_)), "{dsn}: {source}");
            }
            assert_eq!(found.ok(), expected, "{dsn}");
        }
    }
}

/// `allow` and `prefer` try the other way when the server refuses the first.
#[tokio::test]
async fn a_server_that_refuses_one_way_is_asked_the_other_way() {
    let server = secured().await;
    let as_role = |role: &str, mode: &str| server.dsn(&format!("user={role} sslmode={mode}"));
    for (role, mode, expected) in [
        ("tls_only", "allow", Some(true)),
        ("tls_only", "prefer", Some(true)),
        ("tls_only", "disable", None),
        ("plain_only", "allow", Some(false)),
        ("plain_only", "prefer", Some(false)),
        ("plain_only", "require", None),
    ] {
        let found = encrypted(&as_role(role, mode)).await.ok();
        assert_eq!(found, expected, "{role} {mode}");
    }
    let error = connect(&as_role("stranger", "prefer")).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    assert_eq!(error.code().unwrap().code(), "28000");
}

#[tokio::test]
async fn a_server_without_tls_is_taken_only_where_the_mode_allows_it() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let dsn = |mode: &str| format!("{} sslmode={mode}", cluster.dsn("postgres"));
    for mode in ["disable", "allow", "prefer"] {
        assert!(!encrypted(&dsn(mode)).await.unwrap(), "{mode}");
    }
    let source = refused(&dsn("require")).await;
    assert_eq!(source, ServerError::Tls("the server has no TLS".to_owned()));
}

/// Many servers have a certificate that is its own root, with their name in the subject alone.
#[tokio::test]
async fn a_self_signed_server_is_trusted_for_its_own_certificate_and_name() {
    let certificate = authority("db.test");
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V15).tls(ServerTls {
        certificate_pem: certificate.as_ref().pem(),
        key_pem: certificate.key().serialize_pem(),
        client_authority_pem: None,
    }))
    .await
    .unwrap();
    let files = tempfile::tempdir().unwrap();
    write(
        files.path(),
        "server.crt",
        &certificate.as_ref().pem(),
        0o644,
    );
    let server = Secured { cluster, files };
    let full = format!(
        "sslmode=verify-full sslrootcert={}",
        server.file("server.crt")
    );
    assert!(encrypted(&server.dsn(&full)).await.unwrap());
    let source = refused(&server.dsn_of("other.test", &full)).await;
    assert!(matches!(source, ServerError::Tls(_)), "{source}");
}

/// Guards promise 10: whoever answers in the server's place learns nothing from the password.
#[tokio::test]
async fn scram_is_bound_to_the_certificate_where_it_is_required() {
    let server = secured().await;
    let bound = server.dsn("sslmode=require channel_binding=require");
    assert!(encrypted(&bound).await.unwrap());
    replicate(&bound).await.unwrap();

    for impossible in [
        server.dsn("sslmode=disable channel_binding=require"),
        server.dsn("user=old_hash sslmode=require channel_binding=require"),
        server.dsn("user=clear sslmode=require channel_binding=require"),
        server.dsn("user=trusted sslmode=require channel_binding=require"),
    ] {
        let source = refused(&impossible).await;
        assert!(
            matches!(source, ServerError::Authentication(_)),
            "{impossible}: {source}"
        );
        let source = replication_refused(replicate(&impossible).await);
        assert!(
            matches!(source, ServerError::Authentication(_)),
            "{impossible}: {source}"
        );
    }
}

#[tokio::test]
async fn every_way_to_give_the_password_that_is_safe_works() {
    let server = secured().await;
    for words in [
        "user=postgres sslmode=disable",
        "user=postgres sslmode=require channel_binding=disable",
        "user=old_hash sslmode=disable",
        "user=clear sslmode=require",
        "user=trusted sslmode=disable",
    ] {
        connect(&server.dsn(words)).await.unwrap();
        replicate(&server.dsn(words)).await.unwrap();
    }
    for (words, replication) in [("", false), ("", true), ("sslmode=disable", true)] {
        let dsn = server.dsn(&format!("password=wrong {words}"));
        let error = match replication {
            true => replicate(&dsn).await.map(drop).unwrap_err(),
            false => connect(&dsn).await.map(drop).unwrap_err(),
        };
        assert_eq!(error.code().unwrap().code(), "28P01");
        assert!(!error.is_transient());
    }
}

/// Guards promise 10: a server that asks for it does not get the password in clear text.
#[tokio::test]
async fn the_password_never_crosses_a_network_in_clear_text() {
    let server = secured().await;
    let dsn = server.dsn("user=clear sslmode=disable");
    for source in [
        refused(&dsn).await,
        replication_refused(replicate(&dsn).await),
    ] {
        assert!(
            matches!(&source, ServerError::Authentication(why) if why.contains("clear text")),
            "{source:?}"
        );
    }
}

#[tokio::test]
async fn a_client_certificate_opens_the_door_and_an_open_key_is_refused() {
    let server = secured().await;
    let with_key = |key: &str| {
        let (certificate, key) = (server.file("client.crt"), server.file(key));
        server.dsn(&format!(
            "user=certified password='' sslmode=require sslcert={certificate} sslkey={key}"
        ))
    };
    assert!(encrypted(&with_key("client.key")).await.unwrap());
    let source = refused(&with_key("open.key")).await;
    assert!(source.to_string().contains("0600"), "{source}");
    let without = server.dsn("user=certified sslmode=require");
    assert!(matches!(refused(&without).await, ServerError::Refused(_)));
}

#[tokio::test]
async fn the_password_file_is_used_unless_others_can_read_it() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let home = tempfile::tempdir().unwrap();
    let line = format!("127.0.0.1:{}:*:postgres:{PASSWORD}\n", cluster.port());
    let dsn = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres",
        cluster.port()
    );
    let environment = Environment::empty().with_home(home.path());

    write(home.path(), ".pgpass", &line, 0o600);
    let options = ConnectOptions::parse(&dsn, &environment).unwrap();
    Session::connect(&options, &reader()).await.unwrap();

    write(home.path(), ".pgpass", &line, 0o640);
    let options = ConnectOptions::parse(&dsn, &environment).unwrap();
    let error = Session::connect(&options, &reader()).await.unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Connect {
                source: ServerError::Authentication(_),
                ..
            }
        ),
        "{error:?}"
    );

    write(home.path(), "elsewhere", &line, 0o600);
    let elsewhere = home.path().join("elsewhere").display().to_string();
    let environment = Environment::empty().with("PGPASSFILE", &elsewhere);
    let options = ConnectOptions::parse(&dsn, &environment).unwrap();
    Session::connect(&options, &reader()).await.unwrap();
}

/// A setting, the version that has it, a default that a role may have, and what it must be.
const HOSTILE: [(&str, u32, &str, &str); 22] = [
    ("statement_timeout", 0, "'1ms'", "0"),
    ("lock_timeout", 0, "'1ms'", "0"),
    ("idle_in_transaction_session_timeout", 0, "'1ms'", "0"),
    ("idle_session_timeout", 14, "'1s'", "0"),
    ("transaction_timeout", 17, "'1ms'", "0"),
    ("default_transaction_read_only", 0, "on", "off"),
    (
        "default_transaction_isolation",
        0,
        "serializable",
        "read committed",
    ),
    ("default_transaction_deferrable", 0, "on", "off"),
    ("datestyle", 0, "'German, DMY'", "ISO, MDY"),
    ("intervalstyle", 0, "sql_standard", "postgres"),
    ("timezone", 0, "'Asia/Kathmandu'", "UTC"),
    ("extra_float_digits", 0, "'-15'", "3"),
    ("bytea_output", 0, "escape", "hex"),
    ("xmloption", 0, "document", "content"),
    ("client_encoding", 0, "latin1", "UTF8"),
    ("standard_conforming_strings", 0, "off", "on"),
    ("transform_null_equals", 0, "on", "off"),
    ("array_nulls", 0, "off", "on"),
    ("row_security", 0, "on", "off"),
    ("search_path", 0, "elsewhere", "pg_catalog"),
    ("synchronous_commit", 0, "off", "on"),
    ("client_min_messages", 0, "debug5", "error"),
];

/// Guards promise 1: values are written and read alike on both sides, and no long session ends
/// because of a role's default. The timeouts strike between two messages of ours: they must be off
/// before the first statement.
#[tokio::test]
async fn hostile_defaults_of_a_role_and_a_database_change_nothing() {
    for version in [PgVersion::V14, PgVersion::V17] {
        let cluster = shared::cluster(version).await;
        let (database, role) = (fresh_name("hostile"), fresh_name("hostile_role"));
        let dsn = cluster.create_database(&database).await.unwrap();
        let admin = cluster.admin(&database).await.unwrap();
        admin
            .batch_execute(&format!(
                "create role {role} login replication password '{PASSWORD}'"
            ))
            .await
            .unwrap();
        let hostile = HOSTILE
            .iter()
            .filter(|(_, since, ..)| *since <= version.major());
        for (name, _, value, _) in hostile.clone() {
            for whose in [format!("role {role}"), format!("database {database}")] {
                let alter = format!("alter {whose} set {name} = {value}");
                admin.batch_execute(&alter).await.unwrap();
            }
        }
        let dsn = format!("{dsn} user={role} options='-c statement_timeout=1 -c datestyle=SQL'");
        for purpose in [SessionPurpose::reader("r"), SessionPurpose::writer("w")] {
            let mut session = Session::connect(&options(&dsn), &purpose).await.unwrap();
            for (name, _, _, wanted) in hostile.clone() {
                let query = "select current_setting($1)";
                let row = session.query_one(query, &[name]).await.unwrap();
                let wanted = match (*name, purpose.role) {
                    ("default_transaction_read_only", SessionRole::Reader) => "on",
                    _ => wanted,
                };
                assert_eq!(row.get::<_, &str>(0), wanted, "{name} on {version}");
            }
            let transaction = session.transaction().await.unwrap();
            transaction
                .query("select pg_sleep(0.05)", &[])
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            transaction.query("select 1", &[]).await.unwrap();
        }
        let mut replication = replicate(&dsn).await.unwrap();
        replication.identify_system().await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_cannot_write_by_mistake_and_a_writer_can() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let dsn = cluster.create_database(&fresh_name("role")).await.unwrap();
    let sql = "create table public.t ()";
    let session = Session::connect(&options(&dsn), &SessionPurpose::reader("r"))
        .await
        .unwrap();
    let error = session.batch_execute(sql).await.doing("write").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25006");
    let session = Session::connect(&options(&dsn), &SessionPurpose::writer("w"))
        .await
        .unwrap();
    session.batch_execute(sql).await.unwrap();
    session.close().await;
}

#[tokio::test]
async fn what_a_purpose_gives_wins_over_the_canonical_setting() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let purpose = SessionPurpose::writer("w")
        .with("lock_timeout", "250ms")
        .with("work_mem", "1MB");
    let session = Session::connect(&options(&cluster.dsn("postgres")), &purpose)
        .await
        .unwrap();
    let query = "select current_setting('lock_timeout'), current_setting('work_mem')";
    let row = session.query_one(query, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("250ms", "1MB"));
}

/// Guards promise 10. The password is in none of them, nor what the server quotes of a row.
#[tokio::test]
async fn no_error_and_no_debug_text_has_a_secret_in_it() {
    let server = secured().await;
    let secret = "hunter2";
    let mut texts = Vec::new();
    for words in [
        "password=hunter2 sslmode=disable",
        "password=hunter2 sslmode=verify-ca",
        "password=hunter2 user=stranger sslmode=require",
        "password=hunter2 user=clear sslmode=disable",
        "password=hunter2 port=1",
        "password=hunter2 target_session_attrs=standby user=trusted",
    ] {
        let dsn = server.dsn(words);
        let parsed = options(&dsn);
        texts.push(format!("{parsed:?}"));
        for error in [
            connect(&dsn).await.map(drop).unwrap_err(),
            replicate(&dsn).await.map(drop).unwrap_err(),
        ] {
            let port = if words.contains("port=1") {
                1
            } else {
                server.cluster.port()
            };
            assert!(
                error.to_string().contains(&format!("db.test:{port}")),
                "{error}"
            );
            texts.push(format!("{error} {error:?}"));
        }
    }
    let session = connect(&server.dsn("sslmode=disable")).await.unwrap();
    texts.push(format!("{session:?} {:?}", session.canceller()));
    let error = session
        .batch_execute("select 'hunter2'::pg_catalog.int4")
        .await
        .doing("cast")
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), "22P02");
    texts.push(format!("{error} {error:?}"));
    for text in texts {
        assert!(!text.contains(secret) && !text.contains(PASSWORD), "{text}");
    }
}

#[tokio::test]
async fn the_next_host_is_tried_and_every_attempt_is_told() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let port = cluster.port();
    let login = format!("user=postgres password={PASSWORD} dbname=postgres");
    let session = connect(&format!("host=127.0.0.1,127.0.0.1 port=1,{port} {login}"))
        .await
        .unwrap();
    assert_eq!(session.endpoint().port, port);
    assert_eq!(session.in_hot_standby(), Some(false));

    let hosts = format!("host=127.0.0.1,nowhere.invalid,127.0.0.1 port=1,1,{port}");
    let error = connect(&format!("{hosts} {login} target_session_attrs=standby"))
        .await
        .unwrap_err();
    let Error::Connect {
        earlier, source, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(
        matches!(source, ServerError::WrongServer { .. }),
        "{source}"
    );
    let kinds = [&earlier[0].error, &earlier[1].error];
    assert!(
        matches!(kinds, [ServerError::Io(_), ServerError::Lookup(_)]),
        "{kinds:?}"
    );
    assert!(error.is_transient());

    let preferred = format!("host=127.0.0.1 port={port} {login} target_session_attrs=");
    connect(&format!("{preferred}prefer-standby"))
        .await
        .unwrap();
    connect(&format!("{preferred}read-write")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let dsn = format!("host=127.0.0.1 port={port} user=u connect_timeout=1");
    let limit = ServerError::Timeout(Duration::from_secs(1));
    assert_eq!(refused(&dsn).await, limit);
    assert_eq!(replication_refused(replicate(&dsn).await), limit);
}

/// Guards promise 5: what a mover began does not go on behind its successor's back.
#[tokio::test]
async fn a_dropped_session_does_not_go_on_working() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let purpose = reader().with("client_connection_check_interval", "100ms");
    let session = Session::connect(&options(&cluster.dsn("postgres")), &purpose)
        .await
        .unwrap();
    let pid: i32 = session
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    tokio::select! {
        _ = session.batch_execute("select pg_sleep(3600)") => panic!("it slept"),
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
    }
    drop(session);
    gone(cluster, pid).await;
}

/// Waits until a server process has ended; a test that waits in vain is ended by its runner.
async fn gone(cluster: &Cluster, pid: i32) {
    let admin = cluster.admin("postgres").await.unwrap();
    let query = "select count(*) from pg_stat_activity where pid = $1";
    while admin
        .query_one(query, &[&pid])
        .await
        .unwrap()
        .get::<_, i64>(0)
        > 0
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_statement_is_cancelled_from_elsewhere() {
    let server = secured().await;
    for mode in ["disable", "require"] {
        let session = connect(&server.dsn(&format!("sslmode={mode}")))
            .await
            .unwrap();
        let canceller = session.canceller();
        let sleeping = session.batch_execute("select pg_sleep(3600)");
        let cancelling = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            canceller.cancel().await.unwrap();
        };
        let (slept, ()) = tokio::join!(sleeping, cancelling);
        let error = slept.doing("sleep").unwrap_err();
        assert_eq!(error.code().unwrap().code(), "57014");
        session.query_one("select 1", &[]).await.unwrap();
    }
}
