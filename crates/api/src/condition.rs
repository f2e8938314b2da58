//! Condition types and reasons: one vocabulary for status, events and metrics.
//!
//! Types and reasons are read by people and by other programs, so that they are never renamed.

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

/// Reasons that more than one condition uses.
pub mod reason {
    /// Nothing is decided yet.
    pub const PENDING: &str = "Pending";
    /// Switched off by the spec.
    pub const DISABLED: &str = "Disabled";
    /// The way to the operator's access needs a database, and none is configured.
    pub const DATABASE_URL_MISSING: &str = "DatabaseURLMissing";
    /// What was given up is being cleaned up.
    pub const REVOKING: &str = "Revoking";
    /// An annotation says so.
    pub const ANNOTATED: &str = "Annotated";
    /// As the spec asks.
    pub const RECONCILED: &str = "Reconciled";
    /// Work is going on.
    pub const PROGRESSING: &str = "Progressing";
    /// The pods have rolled out.
    pub const ROLLED_OUT: &str = "RolledOut";
    /// No pods are asked for, and none runs.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// The rollout made no progress in the time it had.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// The cluster refuses to make pods, for instance by a quota.
    pub const PODS_REFUSED: &str = "PodsRefused";
    /// Somebody paused the Deployment.
    pub const DEPLOYMENT_PAUSED: &str = "DeploymentPaused";
    /// The Ingress or route is written, and nothing speaks against it.
    pub const EXPOSED: &str = "Exposed";
    /// The Gateway API is not installed.
    pub const GATEWAY_API_MISSING: &str = "GatewayAPIMissing";
    /// A Gateway does not accept the route.
    pub const ROUTE_NOT_ACCEPTED: &str = "RouteNotAccepted";
    /// Workspaces may run everywhere the spec asks for.
    pub const GRANTED: &str = "Granted";
    /// A namespace has not consented to workspaces.
    pub const CONSENT_MISSING: &str = "ConsentMissing";
    /// A rule grants what workspaces are never given.
    pub const RULE_NOT_ALLOWED: &str = "RuleNotAllowed";
    /// The image is older than the database.
    pub const OLDER_THAN_DATABASE: &str = "OlderThanDatabase";
    /// coderd does not take the license, or the operator's word for it.
    pub const LICENSE_REFUSED: &str = "LicenseRefused";
    /// The object is going, and what it made with it.
    pub const DELETING: &str = "Deleting";
    /// An object of others bears the name.
    pub const FOREIGN_OBJECT: &str = "ForeignObject";
    /// The API server refuses what the spec asks for.
    pub const INVALID: &str = "Invalid";
    /// Every ready pod has its daemon connected.
    pub const CONNECTED: &str = "Connected";
    /// A pod is ready and its daemon has still time to connect.
    pub const CONNECTING: &str = "Connecting";
    /// No pod is ready that could have a daemon.
    pub const NO_PODS_READY: &str = "NoPodsReady";
    /// The operator lacks a permission.
    pub const FORBIDDEN: &str = "Forbidden";
}
