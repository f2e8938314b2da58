//! What parses foreign bytes, each as a function from bytes to a short text that tells outcomes apart.

use std::{collections::BTreeMap, io::Cursor, sync::LazyLock};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use coder_k8s_coderd::{
    foreign, is_same_server,
    license::Claims,
    postgres::{Dsn, DsnContext, Postgres, PostgresSettings},
};
use coder_k8s_core::{
    daemon_listing::{DaemonListing, DaemonTags, ListedDaemon, PendingJob},
    environment::Expansion,
    intervals::MAX_EXPANDED_BYTES,
    jobs::{self, JobsVerdict, ListedOrganization},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource};
use secrecy::ExposeSecret;
use tokio::runtime::{Builder, Runtime};

/// One parser.
pub struct Target {
    /// Also the name of its corpus.
    pub name: &'static str,
    pub(crate) run: fn(&[u8]) -> String,
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "answer", run: answer },
    Target { name: "claims", run: claims },
    Target { name: "dsn", run: dsn },
    Target { name: "environment", run: environment },
    Target { name: "pem", run: pem },
    Target { name: "postgres", run: postgres },
    Target { name: "tags", run: tags },
    Target { name: "url", run: url },
];

/// Sets of tags in one input. Jobs and daemons are compared in pairs.
const MAX_TAG_SETS: usize = 200;

/// Variables in one input. A spec has at most 128.
const MAX_VARIABLES: usize = 4096;

/// A credential that no outcome may quote.
const SECRET: &str = "canary-AbCdEfGhIj-secret";

#[expect(clippy::expect_used, reason = "without a runtime there is nothing to test")]
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// The status in the first line, headers up to an empty line, then the body.
fn answer(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.trim().parse::<u16>().ok()).unwrap_or(200);
    let mut response = http::Response::builder().status(status);
    for (name, value) in lines.filter_map(|line| line.split_once(':')).take(32) {
        response = response.header(name, value.trim());
    }
    let Ok(response) = response.body(body.as_bytes().to_vec()) else { return "not HTTP".to_owned() };
    let outcome = RUNTIME.block_on(foreign::answer(response, SECRET));
    assert!(!outcome.contains("AbCdEfGhIj"), "a part of the credential is quoted: {outcome}");
    assert!(outcome.len() < 4096, "an outcome of {} bytes", outcome.len());
    outcome
}

/// A license, or its claims alone.
fn claims(input: &[u8]) -> String {
    let license = if input.contains(&b'.') {
        String::from_utf8_lossy(input).into_owned()
    } else {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(input))
    };
    match Claims::read(&license.into()) {
        Ok(Claims { id, features, deployment_ids, expires, .. }) => {
            format!(
                "{} {} {} {}",
                id.is_empty(),
                features.is_empty(),
                deployment_ids.is_empty(),
                expires.is_some()
            )
        }
        Err(error) => error.to_string(),
    }
}

fn dsn(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    match Dsn::parse(&text, &DsnContext { namespace: "coder" }) {
        Ok(dsn) => {
            assert!(dsn.server().len() <= 4 * text.len() + 64, "an address that grew: {}", dsn.server());
            let shown = format!("{dsn:?}");
            // Once, so that it is the password alone, and not also the name of the database.
            let is_password = text.trim().starts_with("postgres://u:hunter2@");
            let is_secret = is_password && text.matches("hunter2").count() == 1;
            assert!(!is_secret || !shown.contains("hunter2"), "{shown}");
            "ok".to_owned()
        }
        Err(bad) => bad.to_string(),
    }
}

/// A variable in each line: `NAME=value`, or `NAME<value` for one whose value is read from a source. The last is expanded.
fn environment(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let entry = |line: &str| {
        let (name, value, is_read) = match (line.split_once('='), line.split_once('<')) {
            (Some((name, value)), _) => (name, Some(value.to_owned()), false),
            (None, Some((name, _))) => (name, None, true),
            (None, None) => (line, None, false),
        };
        let value_from = is_read.then(EnvVarSource::default);
        EnvVar { name: name.to_owned(), value, value_from }
    };
    let entries: Vec<_> = text.lines().take(MAX_VARIABLES).map(entry).collect();
    let Some(last) = entries.last() else { return "empty".to_owned() };
    let Ok(mut expansion) = Expansion::of(&entries, &last.name) else { return "too large".to_owned() };
    let read: Vec<_> =
        expansion.references().map(|(position, entry, _)| (position, entry.name.clone())).collect();
    let elsewhere: Vec<_> = expansion.elsewhere().iter().copied().collect();
    let mut given =
        read.iter().map(|(position, name)| expansion.give_reference(*position, name)).collect::<Vec<_>>();
    given.extend(elsewhere.iter().take(3).map(|name| expansion.give_elsewhere(name, "elsewhere")));
    if given.contains(&Err(coder_k8s_core::environment::TooLarge)) {
        return "too large to read".to_owned();
    }
    match expansion.value() {
        Ok(Some(value)) => {
            let value = value.expose_secret();
            assert!(value.len() <= MAX_EXPANDED_BYTES, "a value of {} bytes", value.len());
            format!("{} {} {}", read.len().min(3), elsewhere.len().min(3), value.contains("$("))
        }
        Ok(None) => "none".to_owned(),
        Err(_) => "too large to expand".to_owned(),
    }
}

fn pem(input: &[u8]) -> String {
    foreign::certificates(input).map_or_else(str::to_owned, |count| format!("{} certificates", count.min(3)))
}

/// What a server sends, from the login to the tables of coderd. What it is sent is ignored.
fn postgres(input: &[u8]) -> String {
    static DSN: LazyLock<Option<Dsn>> = LazyLock::new(|| {
        Dsn::parse("postgres://u:p@db/coder?sslmode=disable", &DsnContext { namespace: "coder" }).ok()
    });
    let Some(dsn) = &*DSN else { return "no DSN".to_owned() };
    let stream = tokio::io::join(Cursor::new(input.to_owned()), tokio::io::sink());
    let postgres = Postgres::new(PostgresSettings::default());
    match RUNTIME.block_on(postgres.read_catalog_over(dsn, stream)) {
        Ok(()) => "ok".to_owned(),
        Err(kind) => {
            let outcome = kind.to_string();
            assert!(outcome.len() < 1024, "an outcome of {} bytes", outcome.len());
            outcome
        }
    }
}

/// A set of tags in each line, `name=value,name=value`: of a job, or after a `+` of a daemon.
fn tags(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let set = |line: &str| -> DaemonTags {
        let pairs = line.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let mut listing = DaemonListing { jobs: Some(Vec::new()), ..DaemonListing::default() };
    for line in text.lines().take(MAX_TAG_SETS) {
        match line.strip_prefix('+') {
            Some(line) => {
                listing
                    .daemons
                    .push(ListedDaemon { tags: jobs::normal(&set(line)), ..ListedDaemon::default() });
            }
            None => listing.jobs.get_or_insert_default().push(PendingJob { tags: set(line), since: None }),
        }
    }
    let pending = listing.jobs.as_deref().unwrap_or_default();
    let queues = jobs::queues(pending);
    assert_eq!(queues.iter().map(|queue| queue.pending).sum::<usize>(), pending.len());
    let organization = ListedOrganization { id: "1", name: "default", listing: &listing };
    match jobs::judge(&[organization], &[], Timestamp::UNIX_EPOCH) {
        JobsVerdict::Stuck(message) => {
            assert!(message.len() < 16 * 1024, "a message of {} bytes", message.len());
            format!("stuck {}", message.matches(';').count().min(5))
        }
        verdict => format!("{verdict:?}"),
    }
}

/// Two addresses, in the first two lines.
fn url(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.lines();
    let (one, two) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let same = is_same_server(one, two);
    assert_eq!(same, is_same_server(two, one), "{one:?} and {two:?}");
    let usable = [one, two].map(|url| is_same_server(url, url));
    assert!(!same || usable == [true, true], "{one:?} and {two:?}");
    format!("{same} {usable:?}")
}
