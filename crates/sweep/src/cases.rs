//! Which cases there are, and how they run side by side.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use coder_k8s_scenes::scene::{Scene, use_crds_of_another};
use futures::{StreamExt as _, stream};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{
    case::{Component, Disruption, Failure, LeaderEnd, Outcome, Round, play, writes},
    effect::{Fault, Point},
    misoperation,
    report::{Report, Row},
    scenario::{self, SCENARIOS, Scenario},
    snapshot::Snapshot,
    stage::{Foreign, another, use_another},
};

/// Resources whose watches are held, thinned out and replayed.
const WATCHED: [&str; 7] = [
    "codercontrolplanes",
    "coderprovisioners",
    "coderworkspaceproxies",
    "deployments",
    "secrets",
    "services",
    "serviceaccounts",
];

/// How many pairs of kills a scenario has whose second kill is at the same effect of the second process.
const TWICE_AT_EACH: usize = 7;

/// What to play, and how.
#[derive(Debug, Parser)]
#[command(about = "Kill, starve and mislead the operator, and compare how it ends")]
pub struct Args {
    /// A sample of the cases, within two minutes
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,

    /// All cases
    #[arg(long)]
    pub full: bool,

    /// Only the scenarios whose names contain this text
    #[arg(long, value_name = "TEXT")]
    pub scenario: Option<String>,

    /// Only the cases whose names contain this text, with the story of each. A whole name of a case by chance is played
    /// whatever the seed
    #[arg(long, value_name = "TEXT")]
    pub case: Option<String>,

    /// Only misoperations of the properties whose kind and path contain this text
    #[arg(long, value_name = "TEXT", conflicts_with = "case")]
    pub misoperation: Option<String>,

    /// Decides what happens by chance, and which cases are in a sample
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,

    /// How many cases run side by side
    #[arg(long, default_value_t = 12, value_name = "NUMBER")]
    pub at_a_time: usize,

    /// File for the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// File for the report as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Command that starts another operator, for a shell; it finds the cluster in KUBECONFIG. One case runs at a time, with
    /// faults at its effects alone. Needs root, for a hosts file of its own
    #[arg(long, value_name = "COMMAND", requires = "crds")]
    pub operator_cmd: Option<String>,

    /// Folder with the CRDs of that operator
    #[arg(long, value_name = "FOLDER", requires = "operator_cmd")]
    pub crds: Option<PathBuf>,

    /// List the cases and run none but those without a fault
    #[arg(long)]
    pub list: bool,
}

/// What a scenario does and how it ends without a fault.
struct Reference {
    end: Snapshot,
    writes: BTreeMap<String, usize>,
    points: Vec<Point>,
}

struct Case {
    scenario: &'static Scenario,
    disruption: Disruption,
}

impl Case {
    fn name(&self) -> String {
        format!("{} / {}", self.scenario.name, self.disruption)
    }
}

/// Runs the sweep and prints its verdict.
pub async fn run(args: &Args) -> ExitCode {
    let began = Instant::now();
    let wanted =
        |scenario: &&Scenario| args.scenario.as_ref().is_none_or(|text| scenario.name.contains(text));
    let mut scenarios: Vec<_> = SCENARIOS.iter().filter(wanted).collect();
    if args.quick && args.scenario.is_none() {
        // All kinds of scenarios, a different part for each seed.
        let first = usize::try_from(args.seed % 4).unwrap_or_default();
        scenarios = scenarios.into_iter().skip(first).step_by(4).collect();
    }
    if args.misoperation.is_some() {
        scenarios.clear();
    }
    let at_a_time = if args.operator_cmd.is_some() { 1 } else { args.at_a_time.max(1) };
    if let Some(command) = &args.operator_cmd {
        use_another(Foreign { command: command.clone() });
        args.crds.iter().for_each(|folder| use_crds_of_another(folder.clone()));
        scenarios.retain(|scenario| scenario.is_common);
    }
    // Every scene is on one of two clusters: both get the kinds of others.
    scenario::install(&Scene::unmanaged("sweep").await.client).await;
    if args.operator_cmd.is_none() {
        scenario::install(&Scene::bare("sweep").await.client).await;
    }
    println!("{} scenarios without a fault first", scenarios.len());
    let references = references(&scenarios, if args.quick { 1 } else { 2 }, at_a_time).await;
    let Some(references) = references else {
        println!("FAILED: a scenario does not end alike twice without a fault");
        return ExitCode::FAILURE;
    };
    let mut cases: Vec<_> = scenarios
        .iter()
        .filter_map(|scenario| Some((*scenario, references.get(scenario.name)?)))
        .flat_map(|(scenario, reference)| enumerate(scenario, reference, args.seed))
        .collect();
    if args.operator_cmd.is_some() {
        cases.retain(|case| matches!(case.disruption, Disruption::Crash { shuffled: None, .. }));
    }
    if let Some(text) = &args.case {
        cases.retain(|case| case.name().contains(text));
        if cases.is_empty() {
            cases.extend(named(text, &scenarios));
        }
    } else if !args.full {
        // A sample that holds every family and every scenario.
        let mut chance = fastrand::Rng::with_seed(args.seed);
        chance.shuffle(&mut cases);
        cases.truncate(if args.quick { 28 } else { 300 });
    }
    if args.list {
        for case in &cases {
            println!("{}", case.name());
        }
        println!("{} cases", cases.len());
        return ExitCode::SUCCESS;
    }
    let (references, mut report) = (Arc::new(references), Report::new(scenarios.len()));
    // First: each case leaves a namespace, and the more there are the longer the controllers take to be back.
    let restarts_too = args.full && args.operator_cmd.is_none();
    if args.case.as_ref().map_or(restarts_too, |text| "restarted".contains(text.as_str())) {
        restarts(&scenarios, &references, &mut report).await;
    }
    play_all(cases, &references, args, at_a_time, &mut report).await;
    report.took = began.elapsed();
    report.save(args);
    let misoperations = args.misoperation.is_some()
        || args.case.is_none() && args.scenario.is_none() && args.operator_cmd.is_none();
    if misoperations {
        let sample = if args.full || args.misoperation.is_some() {
            None
        } else {
            Some(if args.quick { 6 } else { 60 })
        };
        let began = Instant::now();
        let tally = misoperation::run(sample, args.misoperation.as_deref(), args.seed, args.at_a_time).await;
        report.misoperations = Some((tally, began.elapsed()));
    }
    report.took = began.elapsed();
    report.finish(args)
}

/// The case of a name with which another seed enumerated it.
fn named(name: &str, scenarios: &[&'static Scenario]) -> Option<Case> {
    let (scenario, disruption) = name.split_once(" / ")?;
    let scenario = scenarios.iter().find(|known| known.name == scenario)?;
    Some(Case { scenario, disruption: Disruption::parse(disruption)? })
}

/// Plays the cases side by side, and says how it goes.
async fn play_all(
    cases: Vec<Case>,
    references: &Arc<BTreeMap<&'static str, Reference>>,
    args: &Args,
    at_a_time: usize,
    report: &mut Report,
) {
    let count = cases.len();
    println!("{count} cases, {at_a_time} at a time");
    let (began, before) = (Instant::now(), report.rows.len());
    let mut running = stream::iter(cases)
        .map(|case| {
            let references = references.clone();
            async move {
                let name = case.name();
                let family = family(&case.disruption);
                let scenario = case.scenario.name;
                let began = Instant::now();
                // A task of its own, so that a panic fails this case alone.
                let played = tokio::spawn(async move {
                    let reference =
                        references.get(case.scenario.name).map(|r| (r.end.clone(), r.writes.clone()));
                    play(case.scenario, &case.disruption, reference.as_ref(), None).await
                });
                let outcome = match played.await {
                    Ok(outcome) => outcome,
                    Err(panic) => Err(of_panic(panic)),
                };
                (name, scenario, family, began.elapsed(), outcome)
            }
        })
        .buffer_unordered(at_a_time);
    let mut told = Instant::now();
    while let Some((name, scenario, family, took, outcome)) = running.next().await {
        let row = row(name, scenario, family, took, outcome, args.case.is_some());
        if let Some(failure) = &row.failure {
            println!("\nFAILED {}\n{failure}\nagain: cargo xtask sweep --case '{}'\n", row.name, row.name);
        }
        report.rows.push(row);
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            report.took = began.elapsed();
            report.save(args);
            println!(
                "{} of {count} after {:.0?}, {} failed",
                report.rows.len() - before,
                began.elapsed(),
                report.failed()
            );
        }
    }
}

/// Restarts the API server and etcd while the cases of a round work on what was just changed.
async fn restarts(
    scenarios: &[&'static Scenario],
    references: &Arc<BTreeMap<&'static str, Reference>>,
    report: &mut Report,
) {
    let cluster = Scene::unmanaged("sweep").await.cluster();
    // Those on the cluster that is restarted.
    let scenarios: Vec<_> = scenarios.iter().filter(|scenario| !scenario.needs.bare).collect();
    for component in [Component::ApiServer, Component::Etcd] {
        for round in scenarios.chunks(7) {
            let (told, mut tellings) = mpsc::unbounded_channel();
            let (go, going) = watch::channel(false);
            let mut cases = JoinSet::new();
            for scenario in round {
                let (scenario, references) = (**scenario, references.clone());
                let round = Round { told: told.clone(), go: going.clone() };
                cases.spawn(async move {
                    let disruption = Disruption::Restart(component);
                    let name = format!("{} / {disruption}", scenario.name);
                    let began = Instant::now();
                    let played = tokio::spawn(async move {
                        let reference =
                            references.get(scenario.name).map(|r| (r.end.clone(), r.writes.clone()));
                        play(scenario, &disruption, reference.as_ref(), Some(round)).await
                    });
                    let outcome = played.await.unwrap_or_else(|panic| Err(of_panic(panic)));
                    row(name, scenario.name, "restart", began.elapsed(), outcome, false)
                });
            }
            for phase in 0..2 {
                let all = async {
                    for _ in 0..round.len() {
                        tellings.recv().await;
                    }
                };
                // A case that failed before tells nothing.
                let _ = tokio::time::timeout(Duration::from_mins(1), all).await;
                if phase == 0 {
                    let _ = go.send(true);
                }
            }
            let restarted = match component {
                Component::ApiServer => cluster.restart_api_server().await,
                Component::Etcd => cluster.restart_etcd().await,
            };
            if let Err(error) = restarted {
                println!("cannot restart {component:?}: {error}");
            }
            while let Some(row) = cases.join_next().await {
                if let Ok(row) = row {
                    if let Some(failure) = &row.failure {
                        println!("\nFAILED {}\n{failure}\n", row.name);
                    }
                    report.rows.push(row);
                }
            }
        }
    }
}

fn row(
    name: String,
    scenario: &'static str,
    family: &'static str,
    took: Duration,
    outcome: Result<Outcome, Failure>,
    tells: bool,
) -> Row {
    let (reached, ends, failure) = match outcome {
        Ok(outcome) => {
            if tells {
                println!("\n{name}: held, {} ends of the operator", outcome.ends);
                outcome.records.iter().for_each(|record| println!("  {record}"));
            }
            (outcome.reached, outcome.ends, None)
        }
        Err(failure) => (true, 0, Some(format!("{}\n{}", failure.why, failure.story))),
    };
    Row { name, scenario, family, reached, ends, seconds: took.as_secs_f64(), failure }
}

fn of_panic(panic: tokio::task::JoinError) -> Failure {
    let why = match panic.try_into_panic() {
        Ok(payload) => payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default(),
        Err(error) => error.to_string(),
    };
    Failure { why, story: String::new() }
}

/// Plays every scenario so many times without a fault. None: one of them did not end alike. Of another operator, such a
/// scenario is left out: there is nothing to compare with.
async fn references(
    scenarios: &[&'static Scenario],
    times: usize,
    at_a_time: usize,
) -> Option<BTreeMap<&'static str, Reference>> {
    let all = scenarios.iter().flat_map(|scenario| std::iter::repeat_n(*scenario, times));
    let played = stream::iter(all)
        .map(|scenario| async move {
            let played = tokio::spawn(async move { play(scenario, &Disruption::None, None, None).await });
            (scenario, played.await.unwrap_or_else(|panic| Err(of_panic(panic))))
        })
        .buffer_unordered(at_a_time.max(1));
    let mut played = std::pin::pin!(played);
    let (mut all, mut unsteady) = (BTreeMap::<_, Reference>::new(), BTreeSet::new());
    while let Some((scenario, outcome)) = played.next().await {
        match outcome {
            Err(failure) => {
                println!("{} without a fault: {}\n{}", scenario.name, failure.why, failure.story);
                unsteady.insert(scenario.name);
            }
            Ok(outcome) => {
                let points = outcome.records.iter().map(|record| record.point.clone()).collect();
                let reference = Reference { end: outcome.end, writes: writes(&outcome.records), points };
                let Some(before) = all.get_mut(scenario.name) else {
                    all.insert(scenario.name, reference);
                    continue;
                };
                let difference = reference.end.difference(&before.end);
                if !difference.is_empty() {
                    println!("{} ends otherwise each time:\n  {}", scenario.name, difference.join("\n  "));
                    unsteady.insert(scenario.name);
                }
                before.points.extend(reference.points);
                before.points.sort();
                before.points.dedup();
                for (name, count) in reference.writes {
                    let most = before.writes.entry(name).or_default();
                    *most = count.max(*most);
                }
            }
        }
    }
    if another().is_some() {
        all.retain(|name, _| !unsteady.contains(name));
        println!("left out: {unsteady:?}");
        return Some(all);
    }
    unsteady.is_empty().then_some(all)
}

/// All cases of a scenario.
fn enumerate(scenario: &'static Scenario, reference: &Reference, seed: u64) -> Vec<Case> {
    let mut disruptions = Vec::new();
    let (mut chance, mut orders) = (fastrand::Rng::with_seed(seed), fastrand::Rng::with_seed(!seed));
    for point in &reference.points {
        for fault in [Fault::KilledBefore, Fault::KilledAfter, Fault::ReplyLost] {
            for shuffled in [None, Some(orders.u64(..1000))] {
                disruptions.push(Disruption::Crash { point: point.clone(), fault, shuffled });
            }
        }
    }
    let count = reference.points.len().max(1);
    disruptions.extend(killed_twice(count, &mut chance));
    for code in [409, 429, 500, 503] {
        disruptions.push(Disruption::Storm { code, seed: chance.u64(..1000) });
    }
    for _ in 0..4 {
        disruptions.push(Disruption::Storm { code: 0, seed: chance.u64(..1000) });
    }
    for resource in concerned(scenario.name).into_iter().filter(|_| !scenario.needs.late) {
        disruptions.extend([
            Disruption::Stale { resource, thinned: false },
            Disruption::Stale { resource, thinned: true },
            Disruption::Replay { resource },
        ]);
    }
    disruptions.push(Disruption::Cut { at: chance.usize(..count) });
    for end in [LeaderEnd::Killed, LeaderEnd::Terminated, LeaderEnd::Frozen] {
        if scenario.needs.late {
            break;
        }
        for at in [0, chance.usize(..count)] {
            disruptions.push(Disruption::Failover { end, at });
        }
    }
    disruptions.into_iter().map(|disruption| Case { scenario, disruption }).collect()
}

/// Pairs of kills, each once. The second comes as early as can be: there are not many effects left to be killed at.
fn killed_twice(effects: usize, chance: &mut fastrand::Rng) -> Vec<Disruption> {
    let mut all = Vec::new();
    for second in 0..3 {
        let mut pairs: Vec<_> = (0..effects).flat_map(|first| [(first, true), (first, false)]).collect();
        chance.shuffle(&mut pairs);
        let pairs = pairs.into_iter().take(TWICE_AT_EACH);
        all.extend(pairs.map(|(first, after)| Disruption::Twice { first, second, after }));
    }
    all
}

/// The resources whose watches matter to a scenario.
fn concerned(scenario: &str) -> Vec<&'static str> {
    let own = match scenario.split('-').next() {
        Some("pool") => "coderprovisioners",
        Some("proxy") => "coderworkspaceproxies",
        _ => "codercontrolplanes",
    };
    let kinds = ["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"];
    WATCHED.into_iter().filter(|resource| *resource == own || !kinds.contains(resource)).take(3).collect()
}

fn family(disruption: &Disruption) -> &'static str {
    match disruption {
        Disruption::None => "none",
        Disruption::Crash { fault: Fault::KilledBefore, .. } => "killed before",
        Disruption::Crash { fault: Fault::KilledAfter, .. } => "killed after",
        Disruption::Crash { .. } => "reply lost",
        Disruption::Twice { .. } => "killed twice",
        Disruption::Storm { .. } => "storm",
        Disruption::Stale { thinned: false, .. } | Disruption::Replay { .. } | Disruption::Cut { .. } => {
            "stale"
        }
        Disruption::Stale { .. } => "unobserved",
        Disruption::Failover { .. } => "failover",
        Disruption::Restart(_) => "restart",
    }
}
