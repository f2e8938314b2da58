//! `cargo xtask sweep`.

use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    coder_k8s_sweep::run(&coder_k8s_sweep::Args::parse()).await
}
