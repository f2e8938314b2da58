//! The types of conditions. Their reasons are in [`crate::reason`].
//!
//! People and other programs read them, so that they are never renamed.

/// Condition types.
pub mod kind {
    /// The object is as its spec asks. On every kind.
    pub const READY: &str = "Ready";
    /// The operator still works on it. On every kind; follows kstatus.
    pub const RECONCILING: &str = "Reconciling";
    /// Only an edit by a person helps. On every kind; follows kstatus.
    pub const STALLED: &str = "Stalled";
    /// The Deployment has rolled out. On every kind.
    pub const DEPLOYMENT_READY: &str = "DeploymentReady";
    /// An object of others bears the name of a child. On every kind.
    pub const CONFLICT: &str = "Conflict";
    /// The operator has its own access to coderd.
    pub const OPERATOR_ACCESS_READY: &str = "OperatorAccessReady";
    /// The license of the Secret is applied.
    pub const LICENSE_APPLIED: &str = "LicenseApplied";
    /// The license ends soon.
    pub const LICENSE_EXPIRING: &str = "LicenseExpiring";
    /// coderd has no complaint about its license.
    pub const ENTITLEMENTS_HEALTHY: &str = "EntitlementsHealthy";
    /// The Ingress or route is written.
    pub const EXPOSED: &str = "Exposed";
    /// Workspace RBAC is in place.
    pub const WORKSPACE_ACCESS: &str = "WorkspaceAccess";
    /// An annotation stops the operator from writing. Present only then. On every kind.
    pub const PAUSED: &str = "Paused";
    /// The image is older than the release that last ran on the database. Present only then.
    pub const DOWNGRADE: &str = "Downgrade";
    /// The control plane that a pool or proxy names can be used.
    pub const CONTROL_PLANE_READY: &str = "ControlPlaneReady";
    /// The credentials of `bootstrap` can be read.
    pub const BOOTSTRAP_SECRET_READY: &str = "BootstrapSecretReady";
    /// The license covers external provisioners.
    pub const EXTERNAL_PROVISIONERS_ENTITLED: &str = "ExternalProvisionersEntitled";
    /// The provisioner key exists in coderd.
    pub const PROVISIONER_KEY_READY: &str = "ProvisionerKeyReady";
    /// The Secret holds the provisioner key.
    pub const PROVISIONER_KEY_SECRET_READY: &str = "ProvisionerKeySecretReady";
    /// The daemon of every ready pod of the pool is connected to coderd.
    pub const DAEMONS_CONNECTED: &str = "DaemonsConnected";
    /// Every job that waits has a daemon that could run it. On a control plane that has pools.
    pub const JOBS_RUNNABLE: &str = "JobsRunnable";
    /// The workspace proxy is registered in coderd.
    pub const REGISTERED: &str = "Registered";
    /// The credentials with which a workspace proxy is registered can be used.
    pub const CREDENTIALS_READY: &str = "CredentialsReady";
    /// The Secret holds the token of the workspace proxy.
    pub const TOKEN_SECRET_READY: &str = "TokenSecretReady";
    /// The Service of the workspace proxy is written.
    pub const SERVICE_READY: &str = "ServiceReady";
    /// The license covers workspace proxies.
    pub const ENTITLED: &str = "Entitled";
    /// coderd reaches the workspace proxy.
    pub const HEALTHY: &str = "Healthy";
}
