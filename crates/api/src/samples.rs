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

/// All samples. A control plane comes before the objects that refer to it.
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
