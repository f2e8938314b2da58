//! Names that the operator writes into clusters. They are part of the API and never change: a renamed label,
//! finalizer or annotation would orphan what an earlier release wrote.

/// API group of the three kinds.
pub const GROUP: &str = "coder.com";
/// API version of the three kinds. There is no other.
pub const VERSION: &str = "v1alpha1";

/// Field manager of every server-side apply but one, so that a field that is no longer applied is removed: `<this>-scaling`
/// takes over the replicas of a Deployment that an autoscaler is to own.
pub const FIELD_MANAGER: &str = "coder-k8s";
/// Name of the Lease of the leading instance. The Go operator uses the same, so that the two never run at the same
/// time.
pub const LEASE: &str = "coder-k8s-controller.coder.com";

/// Labels of children and of namespaces.
pub mod label {
    /// Kind of the owner: one of the values in [`component`](super::component).
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Name of the owner, shortened with a hash if it exceeds 63 characters.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Always [`MANAGER`] on children of the operator.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// The value of [`MANAGED_BY`] on everything that the operator writes.
    pub const MANAGER: &str = "coder-k8s";
    /// Control plane that a workspace Role or RoleBinding serves. It has no owner reference, which cannot cross
    /// namespaces.
    pub const CONTROL_PLANE: &str = "coder.com/control-plane";
    /// Namespace of the control plane in [`CONTROL_PLANE`].
    pub const CONTROL_PLANE_NAMESPACE: &str = "coder.com/control-plane-namespace";
    /// Pool that a workspace Role or RoleBinding serves. It has no owner reference, which cannot cross namespaces.
    pub const PROVISIONER: &str = "coder.com/provisioner";
    /// Namespace of the pool in [`PROVISIONER`].
    pub const PROVISIONER_NAMESPACE: &str = "coder.com/provisioner-namespace";
    /// Prefix of the label by which a namespace consents to workspaces. The rest of the label is the namespace whose
    /// workspaces may run in it.
    pub const WORKSPACES_OF: &str = "workspaces.coder.com/";
    /// The only value of a [`WORKSPACES_OF`] label that consents.
    pub const ALLOW: &str = "allow";
}

/// Values of [`label::NAME`], one for each kind.
pub mod component {
    /// Children of a CoderControlPlane.
    pub const CONTROL_PLANE: &str = "coder-control-plane";
    /// Children of a CoderProvisioner.
    pub const PROVISIONER: &str = "coder-provisioner";
    /// Children of a CoderWorkspaceProxy.
    pub const WORKSPACE_PROXY: &str = "coder-workspace-proxy";
}

/// Finalizers, one for each kind. An object has one only while something must be removed that the garbage collector
/// does not remove.
pub mod finalizer {
    /// Guards workspace RBAC in other namespaces and the operator token in coderd.
    pub const CONTROL_PLANE: &str = "coder.com/workspace-rbac-cleanup";
    /// Guards the provisioner keys of a pool in coderd, and its workspace RBAC in other namespaces.
    pub const PROVISIONER: &str = "coder.com/provisioner-key-cleanup";
    /// Guards the registration of a workspace proxy in coderd.
    pub const WORKSPACE_PROXY: &str = "coder.com/workspace-proxy-cleanup";
}

/// Annotations.
pub mod annotation {
    /// On every child: hash of the fields that the operator last applied. An equal hash lets a reconcile skip the
    /// write.
    pub const APPLIED_HASH: &str = "coder.com/applied-hash";
    /// On an object that the operator does not own: hands it over to the object that the value names as
    /// `<kind>/<name>`.
    pub const ADOPT_BY: &str = "coder.com/adopt-by";
    /// On one of the three kinds: `true` stops all writes for this object, but for its status and the end of
    /// workspace RBAC that lost its consent.
    pub const PAUSED: &str = "coder.com/paused";
    /// On pods: checksum of the Secrets and ConfigMaps that they read at their start. A change rolls the pods.
    pub const CONFIG_CHECKSUM: &str = "coder.com/config-checksum";
    /// On a Deployment: who scales it, if not the operator.
    pub const SCALING: &str = "coder.com/scaling";
    /// On the Deployment of a control plane: the newer image that somebody else set there, that has run, and that the operator
    /// therefore keeps. A rollout of the Deployment no longer shows that it has run.
    pub const KEPT_IMAGE: &str = "coder.com/kept-image";
    /// On the pods of a pool: checksum of the key that they connect with.
    pub const KEY_CHECKSUM: &str = "checksum/provisioner-key";
    /// On the Secret of a pool: UUID of the key in it. A key is recognised as the pool's by its UUID, here or on
    /// status, never by its name.
    pub const KEY_ID: &str = "coder.com/provisioner-key-id";
    /// On the Secret of a pool: name of the key in it.
    pub const KEY_NAME: &str = "coder.com/provisioner-key-name";
    /// On the Secret of a pool: UUID of the organization of the key.
    pub const KEY_ORGANIZATION_ID: &str = "coder.com/provisioner-key-organization-id";
    /// On the Secret of a pool: hash of the tags of the key.
    pub const KEY_TAGS_HASH: &str = "coder.com/provisioner-key-tags-hash";
    /// On the Secret of a pool: the coderd deployment that knows the key. The key is sent to no other deployment.
    pub const KEY_DEPLOYMENT_ID: &str = "coder.com/provisioner-key-deployment-id";
    /// On the Secret of a pool: comma-separated data keys that the operator wrote, so that it removes no others.
    pub const KEY_DATA_KEYS: &str = "coder.com/provisioner-key-data-keys";
    /// On the pods of a workspace proxy: checksum of the token that they register with.
    pub const PROXY_TOKEN_CHECKSUM: &str = "checksum/proxy-token";
    /// On the Secret of a workspace proxy: UUID of the registration that the token in it belongs to.
    pub const PROXY_ID: &str = "coder.com/workspace-proxy-id";
    /// On the Secret of a workspace proxy: name of the registration that the token in it belongs to.
    pub const PROXY_NAME: &str = "coder.com/workspace-proxy-name";
    /// On the Secret of a workspace proxy: the coderd deployment that knows the registration. The token is sent to no
    /// other deployment.
    pub const PROXY_DEPLOYMENT_ID: &str = "coder.com/workspace-proxy-deployment-id";
    /// On a workspace Role or RoleBinding: UID of the object that it serves, which tells it from an earlier object of
    /// the same name.
    pub const WORKSPACE_RBAC_OWNER_UID: &str = "coder.com/workspace-rbac-owner-uid";
    /// On a workspace Role or RoleBinding that an operator with `--watch-namespaces` wrote: the label by which the
    /// namespace consented. Releases before this annotation needed no consent there.
    pub const WORKSPACE_RBAC_CONSENT: &str = "coder.com/workspace-rbac-consent";
}
