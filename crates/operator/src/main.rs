//! `coder-k8s`: the operator that runs Coder on Kubernetes.

mod cli;
mod crds;
#[cfg(feature = "dev")]
mod dev;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // One TLS provider for the process. A second installation is refused and changes nothing.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match cli::run(cli::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::complain(&error);
            ExitCode::FAILURE
        }
    }
}
