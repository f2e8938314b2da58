//! What the operator relies on in a coderd, as a list of checks.
//!
//! The same list runs against [`CoderSim`](crate::CoderSim) in all its modes and against a real coderd, so that the
//! simulator cannot drift. Each check says what it needs; one that does not apply to the server at hand is
//! reported as such and never counted as passed. Checks use names of their own and clean up what they made, so
//! they can run against a server that is in use, at once and again.

mod basics;
mod keys;
mod licenses;
mod proxies;
mod users;
mod wire;

use std::{fmt, sync::Arc};

use coder_k8s_coderd::{Client, CoderdError, Connector, Endpoint, NewFirstUser, Settings};
use futures::future::BoxFuture;
use secrecy::SecretString;
use uuid::Uuid;

/// What a check requires of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Applies to every server.
    Any,
    /// The enterprise build, licensed or not.
    Enterprise,
    /// The enterprise build with a premium license.
    Licensed,
    /// The enterprise build without a license.
    Unlicensed,
    /// The AGPL build.
    Agpl,
    /// The enterprise build, and a license that it accepts and does not hold yet.
    SpareLicense,
}

/// Build and license of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Enterprise with a premium license.
    Licensed,
    /// Enterprise without a license.
    Unlicensed,
    /// AGPL.
    Agpl,
}

/// A server to check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Address of the server.
    pub target: Endpoint,
    /// A token of an owner.
    pub owner: SecretString,
    /// Build and license, which decide which checks apply.
    pub build: Build,
    /// A license that the server accepts and does not have yet.
    pub spare_license: Option<SecretString>,
}

impl Subject {
    fn provides(&self, needs: Needs) -> bool {
        match needs {
            Needs::Any => true,
            Needs::Enterprise => self.build != Build::Agpl,
            Needs::Licensed => self.build == Build::Licensed,
            Needs::Unlicensed => self.build == Build::Unlicensed,
            Needs::Agpl => self.build == Build::Agpl,
            Needs::SpareLicense => self.build != Build::Agpl && self.spare_license.is_some(),
        }
    }
}

/// What a check gets: clients of the server.
pub struct Bench {
    /// A client with the token of the owner.
    pub owner: Client,
    /// A client without a credential.
    pub nobody: Client,
    /// The server.
    pub subject: Subject,
}

/// An error says what was not as expected.
pub type Finding = Result<(), String>;

type Run = Box<dyn Fn(Arc<Bench>) -> BoxFuture<'static, Finding> + Send + Sync>;

/// One behaviour of coderd that the operator relies on.
pub struct Check {
    /// The behaviour in words.
    pub name: &'static str,
    /// Servers that the check applies to.
    pub needs: Needs,
    run: Run,
}

impl Check {
    fn new<F>(name: &'static str, needs: Needs, run: fn(Arc<Bench>) -> F) -> Self
    where
        F: Future<Output = Finding> + Send + 'static,
    {
        Self { name, needs, run: Box::new(move |bench| Box::pin(run(bench))) }
    }
}

/// All checks.
pub fn checks() -> Vec<Check> {
    let topics = [basics::checks(), users::checks(), licenses::checks(), keys::checks()];
    topics.into_iter().chain([proxies::checks(), wire::checks()]).flatten().collect()
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Names of the checks that passed.
    pub passed: Vec<&'static str>,
    /// Names of the checks that failed, with the reason.
    pub failed: Vec<(&'static str, String)>,
    /// Names of the checks that do not apply to this server.
    pub not_applicable: Vec<(&'static str, Needs)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, not_applicable } = self;
        for name in passed {
            writeln!(f, "ok              {name}")?;
        }
        for (name, needs) in not_applicable {
            writeln!(f, "not applicable  {name} (needs {needs:?})")?;
        }
        for (name, why) in failed {
            writeln!(f, "FAILED          {name}: {why}")?;
        }
        let (passed, failed, other) = (passed.len(), failed.len(), not_applicable.len());
        write!(f, "{passed} passed, {failed} failed, {other} not applicable")
    }
}

/// Runs all checks that apply to a server, one after another.
pub async fn run(subject: &Subject) -> Report {
    let mut report = Report::default();
    for check in checks() {
        if !subject.provides(check.needs) {
            report.not_applicable.push((check.name, check.needs));
            continue;
        }
        let outcome = match bench(subject) {
            Ok(bench) => (check.run)(Arc::new(bench)).await,
            Err(why) => Err(why),
        };
        match outcome {
            Ok(()) => report.passed.push(check.name),
            Err(why) => report.failed.push((check.name, why)),
        }
    }
    report
}

/// Each check gets a connector of its own, so that a rate limit that it triggers does not delay the next check.
fn bench(subject: &Subject) -> Result<Bench, String> {
    let connector = Connector::new(Settings::on_loopback());
    let nobody = connector.client(&subject.target, None).map_err(|error| error.to_string())?;
    let owner = nobody.with_any_token(&subject.owner).map_err(|error| error.to_string())?;
    Ok(Bench { owner, nobody, subject: subject.clone() })
}

/// Creates the first user of an empty deployment and returns a token. Every step is checked against the contract.
pub async fn set_up(target: &Endpoint) -> Result<SecretString, String> {
    let nobody =
        Connector::new(Settings::on_loopback()).client(target, None).map_err(|error| error.to_string())?;
    ensure(!nobody.has_first_user().await.map_err(text)?, "an empty deployment has no first user")?;
    let password: SecretString = format!("Contract-{}", Uuid::new_v4()).into();
    let (email, username) = ("contract@example.com".to_owned(), "contract".to_owned());
    let weak = NewFirstUser { email, username, password: "password".into() };
    refused(nobody.create_first_user(&weak).await, "Invalid")?;
    let user = NewFirstUser { password: password.clone(), ..weak };
    let made = nobody.create_first_user(&user).await.map_err(text)?;
    ensure(nobody.has_first_user().await.map_err(text)?, "there is a first user once it is made")?;
    let session = nobody.log_in(&user.email, &password).await.map_err(text)?;
    let client = nobody.with_any_token(&session).map_err(|error| error.to_string())?;
    let me = client.me().await.map_err(text)?;
    ensure(me.is_owner(), "the first user is an owner")?;
    ensure(made.user_id.is_empty() || made.user_id == me.id, "the first user is who it was said to be")?;
    ensure(client.tokens("me").await.map_err(text)?.is_empty(), "a session is not listed as a token")?;
    let token = client.create_token("me", &unique("setup"), None).await.map_err(text)?;
    Ok(token.secret)
}

#[allow(clippy::needless_pass_by_value)]
fn text(error: CoderdError) -> String {
    error.to_string()
}

fn ensure(holds: bool, expectation: &str) -> Finding {
    if holds { Ok(()) } else { Err(format!("expected: {expectation}")) }
}

/// Expects a refusal with this reason.
fn refused<T>(result: Result<T, CoderdError>, reason: &str) -> Finding {
    match result {
        Err(error) if error.reason().as_str() == reason => Ok(()),
        Err(error) => Err(format!("expected {reason}, got {}: {error}", error.reason())),
        Ok(_) => Err(format!("expected {reason}, but it was accepted")),
    }
}

/// A name that no other check uses.
fn unique(prefix: &str) -> String {
    let id = Uuid::new_v4().simple().to_string();
    format!("{prefix}-{}", id.get(..12).unwrap_or_default())
}

/// A client with the session of a new member without roles.
async fn member(bench: &Bench) -> Result<Client, String> {
    let password: SecretString = format!("Contract-{}", Uuid::new_v4()).into();
    let username = unique("member");
    let email = format!("{username}@example.com");
    let user = coder_k8s_coderd::NewUser {
        username,
        login: Some((email.clone(), password.clone())),
        roles: Vec::new(),
        organization_ids: vec![Uuid::nil().to_string()],
    };
    bench.owner.create_user(&user).await.map_err(text)?;
    let session = bench.nobody.log_in(&email, &password).await.map_err(text)?;
    bench.nobody.with_any_token(&session).map_err(|error| error.to_string())
}
