//! Output of the program, for people and for pipes.

use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

/// Output format of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// YAML documents.
    #[default]
    Yaml,
    /// One JSON `List`.
    Json,
}

/// Renders objects as text for `kubectl apply`.
pub fn objects(format: Format, objects: &[Value]) -> Result<String> {
    Ok(match format {
        Format::Yaml => {
            let documents: Vec<_> = objects.iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
            format!("---\n{}", documents.join("---\n"))
        }
        Format::Json => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
            format!("{}\n", serde_json::to_string_pretty(&list)?)
        }
    })
}

/// Writes to standard output. A reader that closes the pipe early, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints the error that ends the program to standard error.
#[expect(clippy::print_stderr, reason = "the program ends with this error")]
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("coder-k8s: {error:#}");
}
