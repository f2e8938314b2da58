//! `cargo xtask simulate`.

use clap::Parser as _;

#[expect(clippy::print_stdout, reason = "this is a program for people")]
fn main() -> anyhow::Result<()> {
    print!("{}", coder_k8s_simulate::run(&coder_k8s_simulate::Args::parse())?);
    Ok(())
}
