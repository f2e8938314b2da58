//! Runs one target, or all: `coder-k8s-fuzz EXECUTIONS SEED [TARGET]`. Writes inputs that failed to the corpus.

use std::{path::PathBuf, process::ExitCode};

use coder_k8s_fuzz::{TARGETS, run};

#[expect(clippy::print_stdout, reason = "this is a program for people")]
fn main() -> std::io::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (executions, seed) = (number(1_000_000), number(0));
    let name = arguments.next();
    let mut code = ExitCode::SUCCESS;
    for target in TARGETS.iter().filter(|target| name.as_ref().is_none_or(|name| name == target.name)) {
        let report = run(target, executions, seed)?;
        println!("{}: {report}", target.name);
        for (index, (why, input)) in report.failures.iter().enumerate() {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
            let file = folder.join(format!("failed-{seed}-{index}"));
            std::fs::write(&file, input)?;
            println!("  {why}: {}", file.display());
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
