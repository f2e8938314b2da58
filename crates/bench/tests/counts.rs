//! The quick form of the bench: requests and writes for each object stay within their bounds. Times are not judged.

#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser as _;
use coder_k8s_bench::Args;

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_each_object_stay_within_their_bounds() {
    // Where cargo puts the programs of the workspace: `cargo build` makes it if it is not there.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let program = folder.join("coder-k8s");
    assert!(program.is_file(), "{} is missing: run cargo build", program.display());
    let args = ["bench", "--quick", "--guard", "--program", program.to_str().unwrap()];
    coder_k8s_bench::run(&Args::parse_from(args)).await.unwrap();
}
