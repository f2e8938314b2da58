//! `cargo xtask bench`.

use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    coder_k8s_bench::run(&coder_k8s_bench::Args::parse()).await
}
