//! `coder-k8s`, the operator that runs Coder on Kubernetes: its command line, its wiring, and for each kind what
//! is read before a decision and what is done after it. The decisions themselves are in `coder-k8s-core`.

mod cli;
mod coderd;
mod controller;
mod controlplane;
#[cfg(feature = "dev")]
mod dev;
#[cfg(feature = "dev")]
mod faults;
pub mod flags;
mod intervals;
pub mod manifests;
pub mod metrics;
pub mod permissions;
pub mod print;
mod provisioner;
mod version;
mod workspaceproxy;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// The command line with its subcommands and flags, for the page that documents them.
pub fn command() -> clap::Command {
    cli::Args::command()
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // One TLS provider for the process. A second installation is refused and changes nothing.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match cli::run(cli::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print::complain(&error);
            ExitCode::FAILURE
        }
    }
}
