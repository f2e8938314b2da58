//! `coder-k8s`: the operator that runs Coder on Kubernetes.

use std::process::ExitCode;

/// The allocator of glibc keeps what a burst of objects needed. This one gives it back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    coder_k8s::main()
}
