//! `coder-k8s`: the operator that runs Coder on Kubernetes.

use std::process::ExitCode;

fn main() -> ExitCode {
    coder_k8s::main()
}
