//! Manifests to start from. They are shipped in `config/samples`, and every one is tested against a real API server.
//!
//! Those at the top belong together: one deployment of Coder, which `coder-k8s dev` applies and brings up. Those in
//! `variants` each show another way to write one kind, and need other Secrets and control planes.

/// A manifest and the name of its file.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Path below `config/samples`, such as `controlplane.yaml` or `variants/provisioner.yaml`.
    pub file: &'static str,
    /// The manifest with its comments, in one or more YAML documents.
    pub yaml: &'static str,
}

impl Sample {
    /// Whether the sample stands alone, so that `coder-k8s dev` does not apply it.
    pub fn is_variant(&self) -> bool {
        self.file.starts_with("variants/")
    }
}

macro_rules! samples {
    ($($file:literal)+) => {
        /// All samples. A control plane comes before the objects that refer to it.
        pub const SAMPLES: &[Sample] =
            &[$(Sample { file: $file, yaml: include_str!(concat!("../samples/", $file)) }),+];
    };
}

samples! {
    "controlplane.yaml"
    "provisioner-eu.yaml"
    "provisioner-us.yaml"
    "workspaceproxy.yaml"
    "variants/controlplane-image-only.yaml"
    "variants/controlplane-licensed.yaml"
    "variants/controlplane-token.yaml"
    "variants/provisioner.yaml"
    "variants/provisioner-autoscaled.yaml"
    "variants/provisioner-bootstrap.yaml"
    "variants/workspaceproxy-controlplane.yaml"
    "variants/workspaceproxy.yaml"
    "variants/workspaceproxy-bootstrap.yaml"
}
