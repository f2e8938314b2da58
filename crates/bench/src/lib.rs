//! Measures an operator on a real API server: memory, time until objects are converged, requests and CPU for each object,
//! latency, what a restart writes, and how all of it grows with the number of objects.
//!
//! Everything is measured from outside: by `/proc`, by watches of the bench, and by the audit log of the API server. So any
//! operator for the same kinds can take the place of ours (`--operator-cmd`), and both are measured alike. Times depend on the
//! machine, which runs the API server too; counts do not, and only counts are guarded (`--guard`).
//!
//! Pools need a coderd, which the bench simulates. They are measured of this project's operator alone. Files with the figures of
//! several operators can be put side by side, as a table and as a picture (`--compare`, `--plot`).

mod compare;
mod fleet;
mod growth;
mod measure;
mod plot;
mod pools;
mod process;
mod raw;
mod report;
mod starts;

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use coder_k8s_testbed::{Binaries, Cluster, CoderSim, codersim::Mode};
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
    /// File with the ClusterRole of that operator [default: it is an administrator, whose requests cost the API server less]
    #[arg(long, value_name = "FILE", requires = "operator_cmd")]
    role: Option<PathBuf>,
    /// The operator to measure, if it is not another one
    #[arg(long, value_name = "FILE", hide = true)]
    program: Option<PathBuf>,
    /// How many control planes, one after the other, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 5000])]
    sizes: Vec<usize>,
    /// Over how many namespaces the control planes are spread
    #[arg(long, default_value_t = NonZero::<usize>::MIN)]
    namespaces: NonZero<usize>,
    /// How many edits and deleted children are timed
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// How many Secrets of others there are at the end
    #[arg(long, default_value_t = 5000)]
    foreign_secrets: usize,
    /// How many pools with a simulated coderd there are at the end; only of this project's operator
    #[arg(long, default_value_t = 500)]
    pools: usize,
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
    /// Name of the operator in that file [default: its command]
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Measure nothing: print the figures of these files, which --json wrote, side by side
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    compare: Vec<PathBuf>,
    /// File for a picture of the compared figures: SVG
    #[arg(long, value_name = "FILE", requires = "compare")]
    plot: Option<PathBuf>,
}

/// Bounds of counts, which hold on every machine.
const GUARDED: [(&str, f64); 7] = [
    ("requests for each new control plane", 8.0),
    ("reads for each new control plane", 0.05),
    // A Deployment, a PodDisruptionBudget and a status; now and then one of them meets another write and is sent again.
    ("requests for each control plane edited", 3.5),
    ("requests for each control plane edited again", 2.5),
    // With one Deployment, Service, ServiceAccount, Role and RoleBinding, compressed.
    ("bytes kept for each control plane", 4096.0),
    ("requests at rest", 0.0),
    ("writes after a restart", 0.0),
];

/// Measures as the arguments say, prints a table, and fails if a guarded count is above its bound.
///
/// With `--compare` it prints the figures of files instead.
pub async fn run(args: &Args) -> Result<()> {
    if !args.compare.is_empty() {
        return compare(&args.compare, args.plot.as_deref());
    }
    let plan = if args.quick {
        let namespaces = args.namespaces;
        Plan { sizes: vec![100], namespaces, samples: 20, rest: 10, disasters: None, pools: 0 }
    } else {
        let Args { sizes, namespaces, samples, foreign_secrets, rest, .. } = args.clone();
        let pools = if args.operator_cmd.is_none() { args.pools } else { 0 };
        Plan { sizes, namespaces, samples, rest, disasters: Some(foreign_secrets), pools }
    };
    let mut runs = Vec::new();
    for number in 1..=args.runs {
        say(&format!("run {number} of {}", args.runs));
        runs.push(measured(args, &plan).await?);
    }
    say(&report::table(&runs));
    if let Some(file) = &args.json {
        let operator = args.name.as_deref().or(args.operator_cmd.as_deref()).unwrap_or("coder-k8s");
        let text = serde_json::to_string_pretty(&report::json(operator, &machine(), &runs))?;
        write(file, &(text + "\n"))?;
    }
    if args.guard {
        guard(&runs)?;
    }
    Ok(())
}

/// Prints the figures of files side by side, and draws some of them.
fn compare(files: &[PathBuf], plot: Option<&Path>) -> Result<()> {
    let files = files.iter().map(|file| compare::read(file)).collect::<Result<Vec<_>>>()?;
    say(&compare::table(&files));
    plot.map_or(Ok(()), |file| write(file, &plot::svg(&files)))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// One run: the operator on a cluster of its own, then the same objects without it on another.
async fn measured(args: &Args, plan: &Plan) -> Result<Report> {
    let cluster = start_cluster(args).await?;
    // The operator may only call what its flags name, so coderd listens before it starts.
    let coderd = if plan.pools > 0 { Some(CoderSim::start(Mode::Licensed).await?) } else { None };
    let mut bench = Bench::new(&cluster, recipe(args, &cluster, coderd.as_ref()).await?, &args.user_agent)?;
    let measured = bench.all(plan, coderd.as_ref()).await;
    let sample = bench.sample.take();
    cluster.stop().await;
    let mut report = measured?;
    if let Some(sample) = sample {
        let cluster = start_cluster(args).await?;
        let Recipe { kubeconfig, .. } = recipe(args, &cluster, None).await?;
        let written = raw::measure(&cluster, &kubeconfig, &sample, plan, &mut report).await;
        cluster.stop().await;
        written?;
    }
    growth::add(&mut report, &plan.sizes);
    Ok(report)
}

async fn start_cluster(args: &Args) -> Result<Cluster> {
    let crds = args.crds.as_deref().map_or_else(|| Ok(coder_k8s_api::crds()), read_crds)?;
    let binaries = Binaries::build(&mut |progress| say(&progress.to_string())).await?;
    Ok(Cluster::builder().binaries(binaries).crds(crds).controller_manager(false).start().await?)
}

/// How the operator is started on a cluster. Its account and its rights are made.
async fn recipe(args: &Args, cluster: &Cluster, coderd: Option<&CoderSim>) -> Result<Recipe> {
    let log = cluster.run_dir().join("operator.log");
    let group = i32::try_from(cluster.guard_pid())?;
    let Some(command) = args.operator_cmd.clone() else {
        return own_recipe(cluster, args.program.as_deref(), coderd, log, group).await;
    };
    let kubeconfig = match &args.role {
        Some(role) => limited(cluster, role).await?,
        None => cluster.kubeconfig_path(),
    };
    Ok(Recipe { command, kubeconfig, log, has_probes: false, group })
}

/// The kubeconfig of an account with a ClusterRole and the right to use leases and events, as operators have.
async fn limited(cluster: &Cluster, role: &Path) -> Result<PathBuf> {
    const NAME: &str = "bench-operator";
    let text = fs::read_to_string(role).with_context(|| format!("cannot read {}", role.display()))?;
    let mut role: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no ClusterRole", role.display()))?;
    let fields = role.as_object_mut().context("a ClusterRole is an object")?;
    fields.insert("metadata".to_owned(), json!({"name": NAME}));
    if let Some(rules) = fields.get_mut("rules").and_then(Value::as_array_mut) {
        rules.push(json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}));
        rules.push(
            json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}),
        );
    }
    let (group, client) = ("rbac.authorization.k8s.io", cluster.client());
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": "default"}]});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": "default"}});
    for object in [account, role, binding] {
        measure::apply(&client, object).await?;
    }
    Ok(cluster.kubeconfig_for_account("default", NAME).await?)
}

/// This project's operator with exactly the permissions of its manifests.
async fn own_recipe(
    cluster: &Cluster,
    program: Option<&Path>,
    coderd: Option<&CoderSim>,
    log: PathBuf,
    group: i32,
) -> Result<Recipe> {
    let install = coder_k8s::manifests::Install::default();
    let client = cluster.client();
    for object in
        coder_k8s::manifests::objects(&install)?.into_iter().filter(|object| object["kind"] != "Deployment")
    {
        measure::apply(&client, object).await?;
    }
    let kubeconfig = cluster.kubeconfig_for_account(&install.namespace, "coder-k8s").await?;
    let Some(program) = program else { bail!("name the operator with --program or --operator-cmd") };
    let mut command = format!(
        "{} controller --admin-addr=off --leader-elect-namespace={}",
        program.display(),
        install.namespace
    );
    if let Some(coderd) = coderd {
        let flags = format!(" --allowed-coder-urls={} --allowed-address-ranges=127.0.0.0/8", coderd.url());
        command.push_str(&flags);
    }
    Ok(Recipe { command, kubeconfig, log, has_probes: true, group })
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
