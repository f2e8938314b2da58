//! Attacks on an operator that is shared by tenants who do not trust each other, on the real API server and under exactly
//! the operator's own rights.
//!
//! One operator serves everybody. The rows of a table attack it, many at a time, while two bystanders go through create,
//! edit, rotate and delete. A row names the attacker, what the attacker does, and what must happen:
//!
//! - T1 writes our kinds, Secrets, ConfigMaps and workloads in one namespace (`tenant.rs`);
//! - T2 runs the coderd or the Postgres that the operator calls (`server.rs`);
//! - T3 reads status, events, metrics and logs (`reader.rs`);
//! - T4 is on the network (`network.rs`).
//!
//! What no row may do to the others is judged over the whole time (`vitals.rs`, `bystanders.rs`). `CODER_K8S_ATTACKS`
//! runs only the rows with one of these texts, separated by commas, in their names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    clippy::format_collect,
    reason = "a table is long, and everything here is a test, its helper functions too"
)]

mod bystanders;
mod hostile;
mod network;
mod reader;
mod server;
mod stage;
mod tenant;
mod vitals;

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};

use crate::{bystanders::Bystander, stage::Stage, vitals::Vitals};

/// How many attacks are under way at a time.
const AT_A_TIME: usize = 16;
/// How long one attack may take, those that wait for others included.
const LONGEST: Duration = Duration::from_secs(90);

/// What came of a row: figures, or what should not have happened.
type Verdict = Result<String, String>;

/// One attack.
struct Row {
    /// The attacker and a name.
    id: &'static str,
    /// What the attacker does.
    does: &'static str,
    /// What must happen.
    must: &'static str,
    attack: Box<dyn Fn(&'static Stage) -> BoxFuture<'static, Verdict> + Send + Sync>,
}

/// A row of the table.
fn row<F>(
    id: &'static str,
    does: &'static str,
    must: &'static str,
    attack: impl Fn(&'static Stage) -> F + Send + Sync + 'static,
) -> Row
where
    F: Future<Output = Verdict> + Send + 'static,
{
    Row { id, does, must, attack: Box::new(move |stage| Box::pin(attack(stage))) }
}

/// Whether a row is asked for.
fn is_asked_for(id: &str) -> bool {
    std::env::var("CODER_K8S_ATTACKS").map_or(true, |names| names.split(',').any(|name| id.contains(name)))
}

/// Fails a row unless something holds.
fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attack_takes_the_operator_from_the_others() {
    let began = Instant::now();
    let stage = Stage::start().await;
    println!("the stage is set after {:.0?}", began.elapsed());
    let vitals = Vitals::watch(stage).await;
    let bystanders = [Bystander::new(stage, "blue").await, Bystander::new(stage, "green").await];
    let [blue, green] = &bystanders;
    let (one, two) = tokio::join!(blue.cycle(), green.cycle());
    let alone = [one, two].concat();
    println!("the bystanders were alone until {:.0?}", began.elapsed());

    let over = tokio_util::sync::CancellationToken::new();
    let attacks = async {
        let rows = tenant::rows().into_iter().chain(server::rows()).chain(network::rows());
        let asked_for: Vec<_> = rows.filter(|row| is_asked_for(row.id)).collect();
        let ran: Vec<_> = stream::iter(asked_for)
            .map(|row| perform(row, stage))
            .buffer_unordered(AT_A_TIME)
            .collect()
            .await;
        over.cancel();
        ran
    };
    let (mut ran, one, two) = tokio::join!(attacks, blue.live_until(&over), green.live_until(&over));
    println!("the attacks are over after {:.0?}", began.elapsed());
    for row in reader::rows().into_iter().filter(|row| is_asked_for(row.id)) {
        ran.push(perform(row, stage).await);
    }
    let beside = [one, two].concat();
    ran.extend(bystanders::judge(&alone, &beside));
    ran.extend(vitals.judge(stage).await);
    report(&ran, began.elapsed());
}

/// What came of an attack.
struct Ran {
    id: &'static str,
    does: &'static str,
    must: &'static str,
    verdict: Verdict,
    took: Duration,
}

async fn perform(row: Row, stage: &'static Stage) -> Ran {
    let Row { id, does, must, attack } = row;
    let began = Instant::now();
    let running = stage.running(id);
    let attacked = tokio::time::timeout(LONGEST, AssertUnwindSafe(attack(stage)).catch_unwind());
    let verdict = match attacked.await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(panic)) => {
            Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned()))
        }
        Err(_) => Err(format!("not over within {LONGEST:?}")),
    };
    drop(running);
    Ran { id, does, must, verdict, took: began.elapsed() }
}

/// Prints the table, and fails with the rows that did.
fn report(ran: &[Ran], took: Duration) {
    let mut ran: Vec<_> = ran.iter().collect();
    ran.sort_by_key(|row| row.id);
    for Ran { id, does, must, verdict, took } in &ran {
        let (word, figures) = match verdict {
            Ok(figures) => ("held", figures),
            Err(problem) => ("FAILED", problem),
        };
        println!(
            "| {id} | {does} | {must} | {word} | {:.1} s | {} |",
            took.as_secs_f64(),
            shortened(figures)
        );
    }
    let problem = |row: &&Ran| Some(format!("{}: {}", row.id, shortened(row.verdict.as_ref().err()?)));
    let failed: Vec<_> = ran.iter().copied().filter_map(|row| problem(&row)).collect();
    println!("{} rows, {} failed, {:.0} s", ran.len(), failed.len(), took.as_secs_f64());
    assert!(failed.is_empty(), "attacks that did not end as they must:\n{}", failed.join("\n"));
}

fn shortened(text: &str) -> String {
    let line = text.replace(['\n', '|'], " ");
    let short: String = line.chars().take(300).collect();
    if short.len() < line.len() { format!("{short}...") } else { short }
}
