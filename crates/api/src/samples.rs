//! Manifests to start from. They are shipped in `config/samples`, applied by `coder-k8s dev`, and every one is tested
//! against a real API server.

/// A manifest and the name of its file.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// File name without a directory, such as `provisioner.yaml`.
    pub file: &'static str,
    /// The manifest with its comments, in one or more YAML documents.
    pub yaml: &'static str,
}

macro_rules! samples {
    ($($file:literal)+) => {
        /// All samples. A control plane comes before the objects that refer to it.
        pub const SAMPLES: &[Sample] =
            &[$(Sample { file: $file, yaml: include_str!(concat!("../samples/", $file)) }),+];
    };
}

samples! {
    "controlplane-image-only.yaml"
    "controlplane-licensed.yaml"
    "controlplane-token.yaml"
    "provisioner.yaml"
    "provisioner-bootstrap.yaml"
    "workspaceproxy-controlplane.yaml"
    "workspaceproxy.yaml"
    "workspaceproxy-bootstrap.yaml"
}
