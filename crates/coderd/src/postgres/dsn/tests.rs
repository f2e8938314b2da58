use secrecy::ExposeSecret as _;

use super::*;

const CONTEXT: DsnContext<'_> = DsnContext { namespace: "team" };

fn read(text: &str) -> Dsn {
    Dsn::parse(text, &CONTEXT).unwrap_or_else(|bad| panic!("{text}: {bad}"))
}

fn password(dsn: &Dsn) -> &str {
    dsn.password.as_ref().map_or("", |password| password.expose_secret())
}

#[test]
fn urls_and_pairs_are_read_as_by_coderds_driver() {
    use TlsMode::{Disable, Require, VerifyCa, VerifyFull};
    for (text, user, secret, dial, server, tls) in [
        ("postgres://u:p@db.example/coder", "u", "p", "db.example", "db.example:5432/coder", Require),
        ("postgresql://u@db.example:6543/coder", "u", "", "db.example", "db.example:6543/coder", Require),
        (" postgres://u:p@db.example/coder\n", "u", "p", "db.example", "db.example:5432/coder", Require),
        ("postgres://u%40x:a%2Fb%3A%25@h.x/c", "u@x", "a/b:%", "h.x", "h.x:5432/c", Require),
        ("postgres://u:p@ss@h.x/c", "u", "p@ss", "h.x", "h.x:5432/c", Require),
        ("postgres://u:p@h.x", "u", "p", "h.x", "h.x:5432/u", Require),
        ("postgres://u:p@h.x/my%20db", "u", "p", "h.x", "h.x:5432/my db", Require),
        ("postgres://u:p@[::1]:7/c?sslmode=disable", "u", "p", "::1", "[::1]:7/c", Disable),
        ("postgres://u:p@10.0.0.1/c?sslmode=verify-ca", "u", "p", "10.0.0.1", "10.0.0.1:5432/c", VerifyCa),
        ("postgres://u:p@pg/c?sslmode=verify-full", "u", "p", "pg.team.svc", "pg:5432/c", VerifyFull),
        ("postgres://u:p@pg.other/c", "u", "p", "pg.other", "pg.other:5432/c", Require),
        ("postgres://u:p@localhost/c", "u", "p", "localhost", "localhost:5432/c", Require),
        ("postgres://u:p@h.x/c?sslmode=", "u", "p", "h.x", "h.x:5432/c", Require),
        ("postgres://u:p@[::1]/c", "u", "p", "::1", "[::1]:5432/c", Require),
        ("postgres://u:p@h.x:/c#fragment", "u", "p", "h.x", "h.x:5432/c", Require),
        ("postgres://u:p@/c?host=h.x", "u", "p", "h.x", "h.x:5432/c", Require),
        ("postgres://u:{p}^\"@h.x?dbname=c", "u", "{p}^\"", "h.x", "h.x:5432/c", Require),
        ("postgres:///c?host=h.x&user=u&password=a%2Bb+c&port=9", "u", "a+b c", "h.x", "h.x:9/c", Require),
        ("postgres://a:b@c/d?user=u&sslmode=disable&sslmode=x", "u", "b", "c.team.svc", "c:5432/d", Disable),
        ("host=h.x user=u password=p dbname=c", "u", "p", "h.x", "h.x:5432/c", Require),
        ("user = u  host= pg\tport =1\nsslmode=disable", "u", "", "pg.team.svc", "pg:1/u", Disable),
        (r"host=h.x user='it\'s' password='a b\\' dbname=c", "it's", r"a b\", "h.x", "h.x:5432/c", Require),
        (r"host=h.x user=a\ b password=\' dbname=c", "a b", "'", "h.x", "h.x:5432/c", Require),
        ("user=u user=w password=", "w", "", "localhost", "localhost:5432/w", Require),
    ] {
        let dsn = read(text);
        let seen = (dsn.user.as_str(), password(&dsn), dsn.dial.as_str(), dsn.server(), dsn.tls);
        assert_eq!(seen, (user, secret, dial, server, tls), "{text}");
    }
}

#[test]
fn what_cannot_work_is_refused_with_a_sentence_that_quotes_nothing() {
    for (text, expected) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("mysql://u:hunter2@h/c", "neither postgres://"),
        ("https://u:hunter2@h/c", "neither postgres://"),
        ("hunter2", "no = after its name"),
        ("host=h.x user='u", "quote is not closed"),
        ("host=h.x user='it''s'", "no = after its name"),
        ("host=h.x user=u\\", "ends with a backslash"),
        ("postgres://h.x/c", "names no user"),
        ("postgres://u:hunter2@h.x:99999/c", "a port"),
        ("postgres://u:hunter2@h.x:0/c", "a port"),
        ("host=h.x user=u port=x", "a port"),
        ("postgres://u:hunter2%zz@h.x/c", "%"),
        ("postgres://u:hunter2/3@h.x/c", "a port"),
        ("postgres://u:hunter2#3@h.x/c", "%XX"),
        ("postgres://u:hunter2@[::1/c", "bracket"),
        ("postgres://u:hunter2@[::1]x/c", "a port"),
        ("postgres://u:hunter2@::1/c", "a port"),
        ("postgres://u:hunter2@h x/c", "its host"),
        ("postgres://u:hunter2@a.x,b.x/c", "several hosts"),
        ("postgres://u:hunter2@a.x:1,b.x:2/c", "several hosts"),
        ("host=a.x,b.x user=u", "several hosts"),
        ("postgres://u:hunter2@/c?host=/run/pg", "Unix socket"),
        ("host=/var/run/postgresql user=u", "Unix socket"),
        ("postgres://u:hunter2@%2Frun%2Fpg/c", "Unix socket"),
        ("postgres://u:hunter2@h.x/c?sslmode=prefer", "sslmode"),
        ("postgres://u:hunter2@h.x/c?sslmode=allow", "sslmode"),
        ("postgres://u:hunter2@h.x/c?sslmode=off", "sslmode"),
        ("postgres://u:hunter2@h.x/c?sslcert=/a", "`sslcert`"),
        ("postgres://u:hunter2@h.x/c?sslkey=/a", "`sslkey`"),
        ("host=h.x user=u passfile=/a", "`passfile`"),
        ("service=prod", "`service`"),
    ] {
        let bad = Dsn::parse(text, &CONTEXT).expect_err(text);
        let shown = format!("{bad} {bad:?}");
        assert!(shown.contains(expected), "{text}: {shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(bad.reason(), Reason::BadConnectionUrl);
    }
}

#[test]
fn parameters_of_the_server_are_kept_and_harmless_ones_do_not_matter() {
    let dsn = read(
        "postgres://u:p@h.x/c?search_path=coder,public&application_name=x&connect_timeout=3&binary_parameters=yes\
         &fallback_application_name=y&target_session_attrs=read-write&options=-c%20geqo%3Doff&role=owner",
    );
    assert_eq!(dsn.search_path.as_deref(), Some("coder,public"));
    assert_eq!(dsn.options.as_deref(), Some("-c geqo=off"));
    assert_eq!(dsn.role.as_deref(), Some("owner"));
    assert_eq!(dsn.connect_timeout, Some(Duration::from_secs(3)));
    assert_eq!(read("host=h user=u connect_timeout=0").connect_timeout, None);
    assert!(read("postgres://u@h.x/c?sslrootcert=/etc/ca.crt").roots_in_a_file);
}

#[test]
fn an_address_beside_the_host_is_not_dialed() {
    for text in ["host=h.x hostaddr=127.0.0.1 user=u", "postgres://u@h.x/c?hostaddr=127.0.0.1"] {
        assert_eq!(read(text).dial, "h.x");
    }
}

#[test]
fn encryption_without_verification_is_told() {
    for (sslmode, has_ca, expected) in [
        ("", false, true),
        ("sslmode=require", false, true),
        ("sslmode=require", true, false),
        ("sslmode=verify-ca", false, false),
        ("sslmode=verify-full", false, false),
        ("sslmode=disable", false, false),
    ] {
        let dsn = read(&format!("host=h.x user=u {sslmode}"));
        assert_eq!(dsn.is_unverified(has_ca), expected, "{sslmode} {has_ca}");
    }
}

#[test]
fn debug_shows_the_place_and_the_user_alone() {
    let dsn = read("postgres://u:hunter2@h.x/c?options=-c%20a%3Dhunter2");
    assert_eq!(format!("{dsn:?}"), "Dsn(h.x:5432/c as u)");
}
