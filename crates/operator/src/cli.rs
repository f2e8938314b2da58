//! The command line: what `coder-k8s` can be asked to do.

use std::io::{self, Write};

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::crds::{self, Format};

/// Runs Coder on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "coder-k8s", version, about, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CRDs, for `coder-k8s crds | kubectl apply -f -`
    Crds {
        /// How to print them
        #[arg(long, value_enum, default_value_t, env = "CODER_K8S_FORMAT")]
        format: Format,
    },
    /// Start a local cluster with the kinds installed and the samples applied, until Ctrl-C
    #[cfg(feature = "dev")]
    Dev(crate::dev::Options),
    /// Print the version
    Version,
    /// Print a completion script, for instance `source <(coder-k8s completions bash)`
    Completions {
        /// The shell that reads it
        shell: Shell,
    },
}

/// Does what was asked.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Crds { format } => print(&crds::render(format)?),
        #[cfg(feature = "dev")]
        Command::Dev(options) => crate::dev::run(options),
        Command::Version => print(&format!("coder-k8s {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "coder-k8s", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

/// Writes to standard output. A reader that went away early, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Says on standard error what went wrong.
#[expect(clippy::print_stderr, reason = "the last words of a program that failed")]
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("coder-k8s: {error:#}");
}
