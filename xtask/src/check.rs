//! Everything that must hold besides the tests.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{
    book, dependencies,
    generate::generate,
    run::{cargo, must, say},
};

type Check = fn() -> Result<()>;

/// Runs all checks, also after a failure, and ends with a verdict.
pub(crate) fn check() -> Result<()> {
    let checks: [(&str, Check); 6] = [
        ("format", || must(cargo(&["fmt", "--all", "--check"]))),
        ("generated files", || generate(true)),
        ("samples", samples),
        ("book", book::check),
        ("lints", || {
            let everything = [
                "--workspace",
                "--all-targets",
                "--features",
                "coder-k8s/chart,coder-k8s/e2e,coder-k8s/image,coder-k8s/observability,coder-k8s/upgrade",
            ];
            must(cargo(&[&["clippy", "--quiet"], &everything[..], &["--", "-D", "warnings"]].concat()))
        }),
        ("dependencies", dependencies::check),
    ];
    let mut failed = Vec::new();
    for (name, run) in checks {
        say(&format!("check: {name}"));
        let start = Instant::now();
        match run() {
            Ok(()) => say(&format!("check: {name} ok, {:.1}s", start.elapsed().as_secs_f32())),
            Err(error) => {
                say(&format!("check: {name} FAILED: {error:#}"));
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), checks.len(), failed.join(", "));
    }
    say(&format!("all {} checks passed", checks.len()));
    Ok(())
}

/// Every sample parses as its kind and is stable under a round trip, so that no field of it is misspelt.
fn samples() -> Result<()> {
    for sample in coder_k8s_api::samples::SAMPLES {
        parse(sample.yaml).with_context(|| format!("sample {}", sample.file))?;
    }
    Ok(())
}

fn parse(yaml: &str) -> Result<()> {
    let value: serde_json::Value = serde_saphyr::from_str(yaml)?;
    let typed = match value.get("kind").and_then(|kind| kind.as_str()) {
        Some("CoderControlPlane") => round_trip::<coder_k8s_api::CoderControlPlane>(&value)?,
        Some("CoderProvisioner") => round_trip::<coder_k8s_api::CoderProvisioner>(&value)?,
        Some("CoderWorkspaceProxy") => round_trip::<coder_k8s_api::CoderWorkspaceProxy>(&value)?,
        other => bail!("unknown kind {other:?}"),
    };
    missing("", &value, &typed)
}

fn round_trip<K: serde::de::DeserializeOwned + serde::Serialize>(
    value: &serde_json::Value,
) -> Result<serde_json::Value> {
    let typed: K = serde_json::from_value(value.clone())?;
    Ok(serde_json::to_value(typed)?)
}

/// Everything that the manifest says must have been understood.
fn missing(path: &str, said: &serde_json::Value, understood: &serde_json::Value) -> Result<()> {
    use serde_json::Value::{Array, Object};
    match (said, understood) {
        (Object(said), Object(understood)) => said.iter().try_for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            let other = understood.get(key).with_context(|| format!("{path} is not a field of this kind"))?;
            missing(&path, value, other)
        }),
        (Array(said), Array(understood)) if said.len() == understood.len() => {
            said.iter().zip(understood).try_for_each(|(a, b)| missing(path, a, b))
        }
        (a, b) if a == b => Ok(()),
        _ => bail!("{path} is read as something else"),
    }
}
