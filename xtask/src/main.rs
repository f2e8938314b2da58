//! The project's chores: `cargo xtask <chore>`.

mod check;
mod generate;
mod reference;
mod run;
mod testbed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Write the files that are made from code: CRDs, RBAC, samples, reference pages
    Generate {
        /// Only compare, and fail when a file is not up to date
        #[arg(long)]
        check: bool,
    },
    /// Everything that must hold besides the tests: format, lints, dependency policy, generated files, samples
    Check,
    /// Get the programs of the test cluster, building them once if need be
    Testbed,
    /// Get the programs of the test cluster and run all tests
    Test {
        /// Arguments for `cargo test`, such as the name of a test
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Kill leading operators at random moments and look for two writers; the tests do a few rounds of it
    Kills {
        /// How often
        #[arg(default_value_t = 50)]
        count: u32,
    },
}

fn main() -> ExitCode {
    let outcome = match Args::parse().chore {
        Chore::Generate { check } => generate::generate(check),
        Chore::Check => check::check(),
        Chore::Testbed => testbed::get(),
        Chore::Test { args } => testbed::test(&args),
        Chore::Kills { count } => testbed::kills(count),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
