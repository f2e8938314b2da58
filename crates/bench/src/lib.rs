//! Measures an operator on a real API server: memory, time until objects are converged, requests and CPU for each object,
//! latency, what a restart writes, and how all of it grows with the number of objects.
//!
//! Everything is measured from outside: by `/proc`, by watches of the bench, and by the audit log of the API server. So any
//! operator for the same kinds can take the place of ours (`--operator-cmd`), and both are measured alike. Times depend on the
//! machine, which runs the API server too; counts do not, and only counts are guarded (`--guard`).

mod fleet;
mod measure;
mod process;
mod report;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use coder_k8s_testbed::{Binaries, Cluster};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::{
    measure::{Bench, Plan},
    process::Recipe,
    report::Report,
};

/// What to measure. The doc comments are the text of `--help`.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask bench", about = "Measure an operator on a real API server")]
pub struct Args {
    /// Command that starts the operator, for a shell; it finds the cluster in KUBECONFIG [default: this project's, with its
    /// own permissions]
    #[arg(long, value_name = "COMMAND", requires = "user_agent")]
    operator_cmd: Option<String>,
    /// The beginning of the User-Agent of its requests, by which they are found in the audit log
    #[arg(long, value_name = "TEXT", default_value = "coder-k8s")]
    user_agent: String,
    /// Folder with the CRDs to install [default: this project's]
    #[arg(long, value_name = "FOLDER")]
    crds: Option<PathBuf>,
    /// The operator to measure, if it is not another one
    #[arg(long, value_name = "FILE", hide = true)]
    program: Option<PathBuf>,
    /// How many control planes, one after the other, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 5000])]
    sizes: Vec<usize>,
    /// How many edits and deleted children are timed
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// How many Secrets of others there are at the end
    #[arg(long, default_value_t = 5000)]
    foreign_secrets: usize,
    /// How long to look at an operator at rest, in seconds
    #[arg(long, default_value_t = 60)]
    rest: u64,
    /// How often to do all of it
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// A few objects and samples, without what kills or floods: within a minute
    #[arg(long)]
    quick: bool,
    /// Fail if a count is above its bound
    #[arg(long)]
    guard: bool,
    /// File for the figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Bounds of counts, which hold on every machine.
const GUARDED: [(&str, f64); 5] = [
    ("requests for each new control plane", 8.0),
    ("reads for each new control plane", 0.05),
    // A Deployment and two statuses; now and then one of them meets another write and is sent again.
    ("requests for each edited control plane", 3.5),
    ("requests at rest", 0.0),
    ("writes after a restart", 0.0),
];

/// Measures as the arguments say, prints a table, and fails if a guarded count is above its bound.
pub async fn run(args: &Args) -> Result<()> {
    let plan = if args.quick {
        Plan { sizes: vec![100], samples: 20, rest: 10, disasters: None }
    } else {
        let Args { sizes, samples, foreign_secrets, rest, .. } = args.clone();
        Plan { sizes, samples, rest, disasters: Some(foreign_secrets) }
    };
    let mut runs = Vec::new();
    for number in 1..=args.runs {
        say(&format!("run {number} of {}", args.runs));
        runs.push(measured(args, &plan).await?);
    }
    say(&report::table(&runs));
    if let Some(file) = &args.json {
        let operator = args.operator_cmd.as_deref().unwrap_or("coder-k8s");
        let text = serde_json::to_string_pretty(&report::json(operator, &machine(), &runs))?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.guard {
        guard(&runs)?;
    }
    Ok(())
}

/// One run, on a cluster of its own.
async fn measured(args: &Args, plan: &Plan) -> Result<Report> {
    let crds = args.crds.as_deref().map_or_else(|| Ok(coder_k8s_api::crds()), read_crds)?;
    let binaries = Binaries::build(&mut |progress| say(&progress.to_string())).await?;
    let cluster = Cluster::builder().binaries(binaries).crds(crds).controller_manager(false).start().await?;
    let log = cluster.run_dir().join("operator.log");
    let recipe = match &args.operator_cmd {
        Some(command) => Recipe { command: command.clone(), kubeconfig: cluster.kubeconfig_path(), log },
        None => own_recipe(&cluster, args.program.as_deref(), log).await?,
    };
    let mut bench = Bench::new(&cluster, recipe, &args.user_agent)?;
    let measured = bench.all(plan).await;
    cluster.stop().await;
    measured
}

/// This project's operator with exactly the permissions of its manifests.
async fn own_recipe(cluster: &Cluster, program: Option<&Path>, log: PathBuf) -> Result<Recipe> {
    let install = coder_k8s::manifests::Install::default();
    let client = cluster.client();
    for object in
        coder_k8s::manifests::objects(&install)?.into_iter().filter(|object| object["kind"] != "Deployment")
    {
        measure::apply(&client, object).await?;
    }
    let kubeconfig = cluster.kubeconfig_for_account(&install.namespace, "coder-k8s").await?;
    let Some(program) = program else { bail!("name the operator with --program or --operator-cmd") };
    let command = format!(
        "{} controller --health-addr=127.0.0.1:0 --metrics-addr=127.0.0.1:0 --admin-addr=off \
         --leader-elect-namespace={}",
        program.display(),
        install.namespace
    );
    Ok(Recipe { command, kubeconfig, log })
}

fn read_crds(folder: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let mut crds = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            let text = fs::read_to_string(&path)?;
            crds.push(
                serde_saphyr::from_str(&text).with_context(|| format!("{} is no CRD", path.display()))?,
            );
        }
    }
    if crds.is_empty() {
        bail!("no CRD in {}", folder.display());
    }
    Ok(crds)
}

fn guard(runs: &[Report]) -> Result<()> {
    let mut exceeded = Vec::new();
    for (name, bound) in GUARDED {
        for run in runs {
            match run.get(name) {
                Some(value) if value <= bound => {}
                Some(value) => exceeded.push(format!("{name}: {value:.2}, at most {bound}")),
                None => exceeded.push(format!("{name} was not measured")),
            }
        }
    }
    if !exceeded.is_empty() {
        bail!("above their bounds: {}", exceeded.join("; "));
    }
    say("all counts are within their bounds");
    Ok(())
}

/// What the figures were measured on.
fn machine() -> Value {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let line = |file: &str, start: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
        found.trim_start_matches([' ', '\t', ':']).to_owned()
    };
    json!({"cores": cores, "cpu": line("/proc/cpuinfo", "model name"), "memory": line("/proc/meminfo", "MemTotal:")})
}

/// Prints a line for the person who waits.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}
