//! What happens in a life, decided by its seed.

use std::time::Duration;

use fastrand::Rng;

/// How many pools there may be.
pub const POOLS: usize = 3;
/// How many kinds of action there are.
pub const KINDS: usize = 26;

/// One thing that happens. Numbers are chosen by the seed.
#[derive(Clone, Debug)]
pub enum Action {
    /// A pool is made, or made again, or edited: its tags.
    Tags(usize, u8),
    /// The name of its key.
    KeyName(usize, u8),
    /// Its organization: the default one, or another.
    Organization(usize, bool),
    /// The Secret of its key.
    SecretName(usize, bool),
    /// Its size.
    Replicas(usize, u8),
    /// It is deleted.
    Delete(usize),
    /// Paused, or no longer.
    Pause(usize, bool),
    /// Somebody deletes its key in coderd.
    LoseKey(usize),
    /// Somebody deletes the Secret of its key.
    LoseSecret(usize),
    /// Somebody writes something else into it.
    SpoilSecret(usize),
    /// Somebody deletes its Deployment.
    LoseDeployment(usize),
    /// The proxy is made, or made again, or edited: its name in coderd, and that for people.
    Proxy(u8, u8),
    /// The Secret of its token.
    ProxySecret(bool),
    /// It is deleted.
    DeleteProxy,
    /// Somebody deletes its registration in coderd.
    LoseProxy,
    /// Somebody deletes the Secret of its token.
    LoseProxySecret,
    /// The control plane gets another image.
    Image(u8),
    /// Its license is replaced.
    License(u8),
    /// Somebody removes all licenses in coderd.
    LoseLicenses,
    /// The token of the operator is replaced, or somebody removes it where it made its own.
    LoseToken,
    /// A call of coderd goes wrong so many times.
    Coderd(u8, u8, u8),
    /// coderd is gone for a while.
    Outage(Duration),
    /// A call of the API server goes wrong so many times.
    Api(String),
    /// Every watch ends.
    Watches,
    /// The database is in trouble for a while.
    Database(u8, Duration),
    /// The operator is killed, asked to stop, or succeeded by another.
    Operator(End),
}

/// How the operator ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// By SIGKILL.
    Killed,
    /// By SIGTERM.
    Asked,
    /// Another one is started before it is killed.
    Succeeded,
}

/// Everything that happens in a life, each with the time that passes before.
pub fn plan(seed: u64) -> Vec<(Duration, Action)> {
    let rng = &mut Rng::with_seed(seed);
    let count = rng.usize(8..18);
    // A life without a pool is no life.
    let first = (Duration::ZERO, Action::Tags(0, rng.u8(0..4)));
    let mut actions = vec![first];
    actions.extend((0..count).map(|_| (pause(rng), action(rng))));
    actions
}

fn pause(rng: &mut Rng) -> Duration {
    Duration::from_millis(match rng.u8(0..10) {
        0..4 => 0,
        4..8 => rng.u64(1..150),
        _ => rng.u64(150..900),
    })
}

fn action(rng: &mut Rng) -> Action {
    let pool = rng.usize(0..POOLS);
    match rng.u8(0..60) {
        0..7 => Action::Tags(pool, rng.u8(0..4)),
        7..10 => Action::KeyName(pool, rng.u8(0..3)),
        10..13 => Action::Organization(pool, rng.bool()),
        13..15 => Action::SecretName(pool, rng.bool()),
        15..18 => Action::Replicas(pool, rng.u8(0..4)),
        18..21 => Action::Delete(pool),
        21 => Action::Pause(pool, rng.bool()),
        22..24 => Action::LoseKey(pool),
        24 => Action::LoseSecret(pool),
        25 => Action::SpoilSecret(pool),
        26 => Action::LoseDeployment(pool),
        27 => Action::Image(rng.u8(0..3)),
        28..30 => Action::License(rng.u8(1..4)),
        30 => Action::LoseLicenses,
        31 => Action::LoseToken,
        32..37 => Action::Coderd(rng.u8(0..6), rng.u8(0..6), rng.u8(1..4)),
        37 => Action::Outage(Duration::from_millis(rng.u64(50..1500))),
        38..44 => Action::Api(fault(rng)),
        44 => Action::Watches,
        45 => Action::Database(rng.u8(0..5), Duration::from_millis(rng.u64(50..1500))),
        46..49 => Action::Operator(End::Killed),
        49 => Action::Operator(End::Asked),
        50..52 => Action::Operator(End::Succeeded),
        52..55 => Action::Proxy(rng.u8(0..3), rng.u8(0..3)),
        55 => Action::ProxySecret(rng.bool()),
        56 => Action::DeleteProxy,
        57..59 => Action::LoseProxy,
        _ => Action::LoseProxySecret,
    }
}

/// A line for the file of faults.
fn fault(rng: &mut Rng) -> String {
    let resources = [
        "secrets",
        "deployments",
        "coderprovisioners",
        "coderprovisioners/status",
        "codercontrolplanes/status",
        "coderworkspaceproxies/status",
        "serviceaccounts",
        "services",
        "roles",
        "*",
    ];
    let when = ["before", "after"][rng.usize(0..2)];
    let verb = ["apply", "patch", "get", "list", "create", "delete", "*"][rng.usize(0..7)];
    let resource = resources[rng.usize(0..resources.len())];
    let fault =
        ["error", "exit", "exit", "status=500", "status=409", "status=429", "delay=300"][rng.usize(0..7)];
    format!("{when} {verb} {resource} / {fault} {}", rng.u8(1..4))
}
