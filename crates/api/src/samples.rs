//! Manifests to start from. They are shipped as they are, applied by `coder-k8s dev`, and tested.

/// A manifest with the name of its file.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// File name, such as `provisioner.yaml`.
    pub file: &'static str,
    /// The manifest, with its comments.
    pub yaml: &'static str,
}

/// All samples, in the order in which they are best applied.
pub const SAMPLES: [Sample; 8] = [
    Sample {
        file: "controlplane-image-only.yaml",
        yaml: include_str!("../samples/controlplane-image-only.yaml"),
    },
    Sample {
        file: "controlplane-licensed.yaml",
        yaml: include_str!("../samples/controlplane-licensed.yaml"),
    },
    Sample { file: "controlplane-token.yaml", yaml: include_str!("../samples/controlplane-token.yaml") },
    Sample { file: "provisioner.yaml", yaml: include_str!("../samples/provisioner.yaml") },
    Sample {
        file: "provisioner-bootstrap.yaml",
        yaml: include_str!("../samples/provisioner-bootstrap.yaml"),
    },
    Sample {
        file: "workspaceproxy-controlplane.yaml",
        yaml: include_str!("../samples/workspaceproxy-controlplane.yaml"),
    },
    Sample { file: "workspaceproxy.yaml", yaml: include_str!("../samples/workspaceproxy.yaml") },
    Sample {
        file: "workspaceproxy-bootstrap.yaml",
        yaml: include_str!("../samples/workspaceproxy-bootstrap.yaml"),
    },
];
