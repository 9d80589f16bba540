//! What a connection string means, without a server.

use super::*;

fn parse(dsn: &str) -> Result<ConnectOptions, DsnError> {
    ConnectOptions::parse(dsn, &Environment::empty())
}

fn meant(dsn: &str) -> ConnectOptions {
    parse(dsn).unwrap()
}

fn fault(dsn: &str) -> String {
    parse(dsn).unwrap_err().to_string()
}

#[test]
fn what_is_not_given_is_ours_or_libpqs_default() {
    let options = meant("host=db.test user=mover");
    assert_eq!(options.dbname(), "mover");
    assert_eq!(options.hosts[0].port, 5432);
    assert_eq!(options.connect_timeout, Some(Duration::from_secs(5)));
    assert_eq!(options.keepalives.unwrap().idle, Duration::from_secs(30));
    assert_eq!(options.tcp_user_timeout, None);
    assert_eq!(options.tls.mode, SslMode::Prefer);
    assert_eq!(options.channel_binding, ChannelBinding::Prefer);
    assert_eq!(options.target, Target::Any);
}

#[test]
fn what_is_given_is_taken() {
    let options = meant(
        "postgres://u:p@a:1,b/d?connect_timeout=0&keepalives_idle=7&tcp_user_timeout=9000\
         &target_session_attrs=prefer-standby&load_balance_hosts=random&sslmode=verify-full\
         &sslrootcert=/r.crt&ssl_min_protocol_version=TLSv1.3&sslsni=0&options=-c%20x%3Dy",
    );
    let hosts: Vec<(&str, u16)> = options
        .hosts
        .iter()
        .map(|host| (host.name.as_str(), host.port))
        .collect();
    assert_eq!(hosts, [("a", 1), ("b", 5432)]);
    assert_eq!((options.user(), options.dbname()), ("u", "d"));
    assert_eq!(options.connect_timeout, None);
    assert_eq!(options.keepalives.unwrap().idle, Duration::from_secs(7));
    assert_eq!(options.tcp_user_timeout, Some(Duration::from_secs(9)));
    assert_eq!(options.target, Target::PreferStandby);
    assert!(options.shuffle_hosts);
    assert_eq!(options.tls.mode, SslMode::VerifyFull);
    assert_eq!(options.tls.root_cert.as_deref(), Some(Path::new("/r.crt")));
    assert_eq!(options.tls.min_version, Some(TlsVersion::V13));
    assert!(!options.tls.server_name_indication);
    assert_eq!(options.options.as_deref(), Some("-c x=y"));
    assert!(meant("host=a user=u keepalives=0").keepalives.is_none());
}

#[test]
fn the_environment_fills_in_and_the_string_wins() {
    let environment = Environment::empty()
        .with("PGHOST", "db.test")
        .with("PGUSER", "mover")
        .with("PGPORT", "6000")
        .with("PGSSLMODE", "require")
        .with("PGPASSWORD", "hunter2");
    let options = ConnectOptions::parse("port=7000", &environment).unwrap();
    let host = &options.hosts[0];
    assert_eq!((host.name.as_str(), host.port), ("db.test", 7000));
    assert_eq!(
        host.password.as_ref().map(Password::expose),
        Some("hunter2")
    );
    assert_eq!(options.tls.mode, SslMode::Require);
    assert!(!format!("{options:?}").contains("hunter2"));
}

/// Guards promise 10: a parameter that could weaken the connection is never passed over.
#[test]
fn what_is_unknown_or_not_supported_is_refused_by_name() {
    for (dsn, named) in [
        ("host=a user=u sslmod=require", "\"sslmode\""),
        ("host=a user=u service=prod", "service"),
        ("host=a user=u require_auth=scram-sha-256", "require_auth"),
        ("host=a user=u requirepeer=postgres", "requirepeer"),
        ("host=a user=u gssencmode=require", "gssencmode"),
        ("host=a user=u client_encoding=latin1", "client_encoding"),
        ("host=a user=u replication=database", "replication"),
        ("host=a user=u sslmode=on", "sslmode"),
        ("host=a user=u port=99999", "port"),
        ("host=a user=u hostaddr=a.b", "hostaddr"),
        ("host=a user=u connect_timeout=soon", "connect_timeout"),
        (
            "host=a user=u target_session_attrs=master",
            "target_session_attrs",
        ),
        (
            "host=a,b,c port=1,2 user=u",
            "port has 2 entries for 3 hosts",
        ),
        (
            "host=a,b hostaddr=::1 user=u",
            "hostaddr has 1 entries for 2 hosts",
        ),
        (
            "host=a user=u sslrootcert=system sslmode=require",
            "sslrootcert=system",
        ),
        (
            "host=a user=u sslnegotiation=direct",
            "sslnegotiation=direct",
        ),
        ("host=a", "user"),
    ] {
        let fault = fault(dsn);
        assert!(fault.contains(named), "{dsn}: {fault}");
    }
    let environment = Environment::empty().with("PGSERVICE", "prod");
    let fault = ConnectOptions::parse("host=a user=u", &environment).unwrap_err();
    assert!(fault.to_string().contains("PGSERVICE"), "{fault}");
}

/// What the fleet's check takes is understood here, and is not taken for something weaker.
#[test]
fn every_word_that_is_accepted_has_a_meaning() {
    for (name, words) in Parameters::words() {
        for word in words {
            meant(&format!("host=a user=u sslmode=require {name}={word}"));
        }
    }
}

#[test]
fn what_says_the_same_as_monarch_does_is_taken() {
    for words in [
        "gssencmode=disable",
        "client_encoding=UTF8",
        "sslcompression=0",
        "require_auth=",
        "fallback_application_name=x",
    ] {
        meant(&format!("host=a user=u {words}"));
    }
}

/// The operating system's authorities certify anybody: the name has to be checked then.
#[test]
fn public_authorities_imply_the_full_check() {
    let options = meant("host=a user=u sslrootcert=system");
    assert_eq!(options.tls.mode, SslMode::VerifyFull);
    assert!(options.tls.system_roots && options.tls.root_cert.is_none());
}

#[test]
fn certificates_in_the_home_are_found() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".postgresql");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("root.crt"), "").unwrap();
    let environment = Environment::empty().with_home(home.path());
    let options = ConnectOptions::parse("host=a user=u", &environment).unwrap();
    assert_eq!(options.tls.root_cert, Some(folder.join("root.crt")));
    assert_eq!(options.tls.client_cert, None);
}

#[test]
fn a_list_of_hosts_keeps_a_password_for_each() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "a:1:*:*:first\nb:2:*:*:second\nlocalhost:3:*:*:third\n",
    )
    .unwrap();
    let path = file.path().display();
    let dsn = format!("host=a,b,/tmp,c port=1,2,3,4 user=u passfile={path}");
    let found: Vec<Option<String>> = meant(&dsn)
        .hosts
        .iter()
        .map(|host| host.password.as_ref().map(|p| p.expose().to_owned()))
        .collect();
    let expected = [Some("first"), Some("second"), Some("third"), None];
    assert_eq!(found, expected.map(|password| password.map(str::to_owned)));
}
