//! `coder-k8s crds`: the CRDs of this release, for `kubectl apply`.

use anyhow::Result;
use clap::ValueEnum;
use coder_k8s_api::crds;

/// How objects are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// YAML documents.
    #[default]
    Yaml,
    /// One JSON `List`.
    Json,
}

/// The CRDs as text.
pub(crate) fn render(format: Format) -> Result<String> {
    print_objects(format, &crds())
}

fn print_objects<T: serde::Serialize>(format: Format, objects: &[T]) -> Result<String> {
    Ok(match format {
        Format::Yaml => {
            let documents: Vec<_> = objects.iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
            documents.iter().map(|document| format!("---\n{document}")).collect()
        }
        Format::Json => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
            format!("{}\n", serde_json::to_string_pretty(&list)?)
        }
    })
}
