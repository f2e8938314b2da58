//! The project's chores: `cargo xtask <chore>`.

mod book;
mod chart;
mod check;
mod dependencies;
mod dist;
mod e2e;
mod generate;
mod observability;
mod programs;
mod reference;
mod release;
mod rights;
mod run;
mod soak;
mod testbed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Write the files that are made from code: CRDs, RBAC, samples, reference pages, parts of the chart
    Generate {
        /// Only compare, and fail when a file is not up to date
        #[arg(long)]
        check: bool,
    },
    /// Everything that must hold besides the tests: format, lints, dependency policy, generated files, samples, the book
    Check,
    /// Build the book as a site, after checking its pages (builds mdBook once, which needs the network)
    Book,
    /// Have cargo-deny check the dependencies, advisories too (builds it once, needs the network)
    Deny,
    /// Get the programs of the test cluster, building them once if need be
    Testbed {
        /// The real coderd too
        #[arg(long)]
        with_coder: bool,
        /// promtool too, which checks the alerts
        #[arg(long)]
        with_promtool: bool,
    },
    /// Get the programs of the test cluster and run all tests
    Test {
        /// Arguments for `cargo test`, such as the name of a test
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Get everything and run the end-to-end tests: the real coderd with a real Postgres, started by the operator
    E2e {
        /// Only the tests with this in their name
        filter: Option<String>,
    },
    /// Get Helm and run the tests of the chart: rendering, installation, upgrade, removal
    Chart {
        /// Only the tests with this in their name
        filter: Option<String>,
    },
    /// Live random lives of the operator: edits, faults, crashes. All of them, of which the tests live a part
    Soak {
        /// Live only this one, and tell its story
        #[arg(long, conflicts_with_all = ["count", "first"])]
        seed: Option<u64>,
        /// How many [default: 500 in memory, 100 on a cluster]
        #[arg(long)]
        count: Option<u64>,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Where [default: in memory for a seed, else both]
        #[arg(long, value_enum)]
        on: Option<soak::On>,
    },
    /// Get promtool, and check alerts and dashboard with it and against a running operator
    Observability,
    /// What must hold before a release: advisories, the book, a release build and its tests, the artefacts,
    /// the chart, alerts and dashboard, the end-to-end tests, the whole soak, a part of the sweep
    ReleaseCheck,
    /// Make the release artefacts: static program, image, chart, CRDs, manifests, SBOM, checksums
    Dist(dist::Options),
    /// Mutate foreign bytes and hold what parses them to its bounds of time and memory
    Fuzz {
        /// Only this one [default: all]
        target: Option<String>,
        /// How many inputs for each
        #[arg(long, default_value_t = 1_000_000)]
        executions: u64,
        /// Other seeds make other inputs
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Measure memory, time, requests and CPU for each object on a real API server, of this operator or another
    Bench {
        /// Arguments of the bench: `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Kill, starve and mislead the released program at each of its effects, and compare how it ends. The tests do a sample
    Sweep {
        /// Arguments of the sweep: `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Simulate days of scaled pools, and compare them with fixed fleets
    #[command(disable_help_flag = true)]
    Simulate {
        /// Arguments of the simulation: `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Let this build take over from an earlier one, and show what it writes
    Upgrade {
        /// The earlier build of coder-k8s, with its feature `dev`
        binary: std::path::PathBuf,
    },
    /// Kill leading operators at random moments and look for two writers; the tests do a few rounds of it
    Kills {
        /// How often
        #[arg(default_value_t = 50)]
        count: u32,
    },
}

/// In a build with overflow checks, as the tests have it.
fn fuzz(target: Option<String>, executions: u64, seed: u64) -> anyhow::Result<()> {
    let mut command = run::cargo(&["run", "--quiet", "--package", "coder-k8s-fuzz", "--"]);
    command.args([executions.to_string(), seed.to_string()]).args(target);
    run::must(command)
}

fn simulate(args: &[String]) -> anyhow::Result<()> {
    let mut command = run::cargo(&["run", "--quiet", "--package", "coder-k8s-simulate", "--"]);
    command.args(args);
    run::must(command)
}

/// Builds the released program, unless another one is measured. The bench is optimized as well, because it shares the cores with
/// what it measures.
fn bench(args: &[String]) -> anyhow::Result<()> {
    let has = |flags: &[&str]| args.iter().any(|arg| flags.iter().any(|flag| arg.starts_with(flag)));
    let profile = if has(&["--compare", "--help", "--quick"]) { "dev" } else { "measure" };
    testbed::get()?;
    let mut command =
        run::cargo(&["run", "--quiet", "--profile", profile, "--package", "coder-k8s-bench", "--"]);
    if !has(&["--operator-cmd", "--program", "--compare", "--help"]) {
        let features = ["--no-default-features", "--package", "coder-k8s"];
        run::must(run::cargo(&[&["build", "--release"], &features[..]].concat()))?;
        command.arg("--program").arg(run::root().join("target/release/coder-k8s"));
    }
    command.args(args);
    run::must(command)
}

/// With an optimized build. It has the feature `dev`, because Services have no names outside a cluster, and no other hook of
/// it is used.
fn sweep(args: &[String]) -> anyhow::Result<()> {
    testbed::get()?;
    let mut command = run::cargo(&["run", "--quiet", "--package", "coder-k8s-sweep", "--"]);
    if !args.iter().any(|arg| arg == "--help") {
        run::must(run::cargo(&["build", "--release", "--package", "coder-k8s"]))?;
        command.env("CODER_K8S_BINARY", run::target()?.join("release/coder-k8s"));
    }
    command.args(args);
    run::must(command)
}

fn main() -> ExitCode {
    let outcome = match Args::parse().chore {
        Chore::Generate { check } => generate::generate(check),
        Chore::Check => check::check(),
        Chore::Book => book::build(),
        Chore::Deny => dependencies::deny(),
        Chore::Testbed { with_coder, with_promtool } => testbed::get_all(with_coder, with_promtool),
        Chore::E2e { filter } => e2e::run(filter.as_deref()),
        Chore::Chart { filter } => testbed::chart(filter.as_deref()),
        Chore::Test { args } => testbed::test(&args),
        Chore::Soak { seed, count, first, on } => soak::run(seed, first, count, on),
        Chore::Observability => observability::run(),
        Chore::ReleaseCheck => release::check(),
        Chore::Dist(options) => dist::run(&options),
        Chore::Fuzz { target, executions, seed } => fuzz(target, executions, seed),
        Chore::Bench { args } => bench(&args),
        Chore::Sweep { args } => sweep(&args),
        Chore::Simulate { args } => simulate(&args),
        Chore::Upgrade { binary } => testbed::upgrade(&binary),
        Chore::Kills { count } => testbed::kills(count),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
