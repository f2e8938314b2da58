//! Starts a cluster, prints one line of JSON with its address, and keeps it until the process ends.

use coder_k8s_testbed::Cluster;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the line is what the program is for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder().start().await?;
    let facts = serde_json::json!({
        "dir": cluster.run_dir(),
        "kubeconfig": cluster.kubeconfig_path(),
        "guard": cluster.guard_pid(),
        "pids": cluster.pids(),
    });
    println!("{facts}");
    std::future::pending().await
}
