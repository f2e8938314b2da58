//! Names that are written into clusters and therefore never change.

/// The API group of the three kinds.
pub const GROUP: &str = "coder.com";
/// The only version of the three kinds.
pub const VERSION: &str = "v1alpha1";

/// The one field manager under which the operator writes.
pub const FIELD_MANAGER: &str = "coder-k8s";
/// The Lease that the leading operator holds.
pub const LEASE: &str = "coder-k8s-controller.coder.com";

/// Labels that every child bears.
pub mod label {
    /// What the child belongs to, one value for each kind.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Which object it belongs to.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Who manages it.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// The value of [`MANAGED_BY`] on everything that the operator writes.
    pub const MANAGER: &str = "coder-k8s";
    /// The control plane that a workspace Role or RoleBinding serves.
    pub const CONTROL_PLANE: &str = "coder.com/control-plane";
    /// The namespace of that control plane.
    pub const CONTROL_PLANE_NAMESPACE: &str = "coder.com/control-plane-namespace";
    /// The pool that a workspace Role or RoleBinding serves.
    pub const PROVISIONER: &str = "coder.com/provisioner";
    /// The namespace of that pool.
    pub const PROVISIONER_NAMESPACE: &str = "coder.com/provisioner-namespace";
    /// On a Namespace, followed by the name of another: `allow` lets workspaces of that one run here.
    pub const WORKSPACES_OF: &str = "workspaces.coder.com/";
    /// The value of [`WORKSPACES_OF`] that consents.
    pub const ALLOW: &str = "allow";
}

/// The value of [`label::NAME`] for the children of each kind.
pub mod component {
    /// Children of a CoderControlPlane.
    pub const CONTROL_PLANE: &str = "coder-control-plane";
    /// Children of a CoderProvisioner.
    pub const PROVISIONER: &str = "coder-provisioner";
    /// Children of a CoderWorkspaceProxy.
    pub const WORKSPACE_PROXY: &str = "coder-workspace-proxy";
}

/// Finalizers, one for each kind, present only while there is something outside to clean.
pub mod finalizer {
    /// Workspace RBAC in other namespaces, which no garbage collector removes.
    pub const CONTROL_PLANE: &str = "coder.com/workspace-rbac-cleanup";
    /// A provisioner key in coderd.
    pub const PROVISIONER: &str = "coder.com/provisioner-key-cleanup";
    /// A registration in coderd.
    pub const WORKSPACE_PROXY: &str = "coder.com/workspace-proxy-cleanup";
}

/// Annotations.
pub mod annotation {
    /// Hash of what the operator last asked for, on every child that it wrote.
    pub const APPLIED_HASH: &str = "coder.com/applied-hash";
    /// On an object of others: hands it over to the object that the value names as `<kind>/<name>`.
    pub const ADOPT_BY: &str = "coder.com/adopt-by";
    /// On one of our objects, `true`: the operator writes nothing for it.
    pub const PAUSED: &str = "coder.com/paused";
    /// On pods: a checksum of the Secrets and ConfigMaps that they read when they start.
    pub const CONFIG_CHECKSUM: &str = "coder.com/config-checksum";
    /// On a Deployment: who scales it, if not the operator.
    pub const SCALING: &str = "coder.com/scaling";
    /// On the pods of a pool: a checksum of the key that they connect with.
    pub const KEY_CHECKSUM: &str = "checksum/provisioner-key";
    /// On the Secret of a pool: UUID of the key that it holds.
    pub const KEY_ID: &str = "coder.com/provisioner-key-id";
    /// On the Secret of a pool: name of the key that it holds.
    pub const KEY_NAME: &str = "coder.com/provisioner-key-name";
    /// On the Secret of a pool: UUID of the organization of the key.
    pub const KEY_ORGANIZATION_ID: &str = "coder.com/provisioner-key-organization-id";
    /// On the Secret of a pool: hash of the key's tags.
    pub const KEY_TAGS_HASH: &str = "coder.com/provisioner-key-tags-hash";
    /// On the Secret of a pool: the deployment that knows the key.
    pub const KEY_DEPLOYMENT_ID: &str = "coder.com/provisioner-key-deployment-id";
    /// On the Secret of a pool: when the key was made.
    pub const KEY_CREATED: &str = "coder.com/provisioner-key-created";
    /// On the Secret of a pool: the data keys that the operator wrote, with commas between them.
    pub const KEY_DATA_KEYS: &str = "coder.com/provisioner-key-data-keys";
    /// On the pods of a workspace proxy: a checksum of the token that they register with.
    pub const PROXY_TOKEN_CHECKSUM: &str = "checksum/proxy-token";
    /// On the Secret of a workspace proxy: UUID of the registration whose token it holds.
    pub const PROXY_ID: &str = "coder.com/workspace-proxy-id";
    /// On the Secret of a workspace proxy: name of the registration whose token it holds.
    pub const PROXY_NAME: &str = "coder.com/workspace-proxy-name";
    /// On the Secret of a workspace proxy: the deployment that knows the registration.
    pub const PROXY_DEPLOYMENT_ID: &str = "coder.com/workspace-proxy-deployment-id";
    /// UID of the control plane that a workspace Role or RoleBinding serves.
    pub const WORKSPACE_RBAC_OWNER_UID: &str = "coder.com/workspace-rbac-owner-uid";
}
