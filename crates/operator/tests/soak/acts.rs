//! What happens in a life, by its seed.

use std::time::Duration;

use fastrand::Rng;

/// How many pools there may be.
pub const POOLS: usize = 3;
/// How many kinds of act there are.
pub const KINDS: usize = 26;

/// One thing that happens. Numbers are chosen by the seed.
#[derive(Clone, Debug)]
pub enum Act {
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
    Killed,
    Asked,
    Succeeded,
}

/// Everything that happens in a life, each with the time that passes before.
pub fn plan(seed: u64) -> Vec<(Duration, Act)> {
    let rng = &mut Rng::with_seed(seed);
    let count = rng.usize(8..18);
    // A life without a pool is no life.
    let first = (Duration::ZERO, Act::Tags(0, rng.u8(0..4)));
    let mut acts = vec![first];
    acts.extend((0..count).map(|_| (pause(rng), act(rng))));
    acts
}

fn pause(rng: &mut Rng) -> Duration {
    Duration::from_millis(match rng.u8(0..10) {
        0..4 => 0,
        4..8 => rng.u64(1..150),
        _ => rng.u64(150..900),
    })
}

fn act(rng: &mut Rng) -> Act {
    let pool = rng.usize(0..POOLS);
    match rng.u8(0..60) {
        0..7 => Act::Tags(pool, rng.u8(0..4)),
        7..10 => Act::KeyName(pool, rng.u8(0..3)),
        10..13 => Act::Organization(pool, rng.bool()),
        13..15 => Act::SecretName(pool, rng.bool()),
        15..18 => Act::Replicas(pool, rng.u8(0..4)),
        18..21 => Act::Delete(pool),
        21 => Act::Pause(pool, rng.bool()),
        22..24 => Act::LoseKey(pool),
        24 => Act::LoseSecret(pool),
        25 => Act::SpoilSecret(pool),
        26 => Act::LoseDeployment(pool),
        27 => Act::Image(rng.u8(0..3)),
        28..30 => Act::License(rng.u8(1..4)),
        30 => Act::LoseLicenses,
        31 => Act::LoseToken,
        32..37 => Act::Coderd(rng.u8(0..6), rng.u8(0..6), rng.u8(1..4)),
        37 => Act::Outage(Duration::from_millis(rng.u64(50..1500))),
        38..44 => Act::Api(fault(rng)),
        44 => Act::Watches,
        45 => Act::Database(rng.u8(0..5), Duration::from_millis(rng.u64(50..1500))),
        46..49 => Act::Operator(End::Killed),
        49 => Act::Operator(End::Asked),
        50..52 => Act::Operator(End::Succeeded),
        52..55 => Act::Proxy(rng.u8(0..3), rng.u8(0..3)),
        55 => Act::ProxySecret(rng.bool()),
        56 => Act::DeleteProxy,
        57..59 => Act::LoseProxy,
        _ => Act::LoseProxySecret,
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
