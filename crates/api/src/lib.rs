//! The contract of coder-k8s with its users: three kinds, their names, conditions, reasons and defaults.
//!
//! Everything that a manifest may say is here, with the bounds and rules that the API server enforces.
//! No I/O, no clock, no decisions: those are in the other crates.

pub mod access;
pub mod condition;
mod controlplane;
mod crd;
pub mod names;
mod network;
mod pod;
mod provisioner;
mod rbac;
pub mod reason;
mod refs;
pub mod samples;
mod schema;
mod status;
mod text;
mod workspaceproxy;

pub use controlplane::{
    AccessMethod, CoderControlPlane, CoderControlPlaneSpec, CoderControlPlaneStatus, DEFAULT_IMAGE,
    EntitlementsStatus, LicenseSettings, LicenseStatus, OperatorAccess, OperatorTokenStatus, ReplacedToken,
    Scaling, Tls,
};
pub use crd::{crds, field_paths, fields, own_field_paths};
pub use network::{
    Expose, GatewayExposure, GatewayRef, IngressExposure, IngressTls, Scheme, ServiceSettings, ServiceType,
    SessionAffinity, TrafficPolicy,
};
pub use pod::{Certs, DisruptionBudget, PodSettings, Probe, Prometheus, PullPolicy, ServiceAccountSettings};
pub use provisioner::{
    CoderProvisioner, CoderProvisionerSpec, CoderProvisionerStatus, CredentialsSource, DaemonStatus,
    DaemonsStatus, OnEntitlementLost, PendingKey, ProvisionerBootstrap, ProvisionerKey, StaleKey,
};
pub use rbac::WorkspaceRbac;
pub use reason::Reason;
pub use refs::{ControlPlaneRef, ReportedSecretRef, SecretKey, SecretKeyRef, SecretRef};
pub use status::WorkloadStatus;
pub use text::{
    ClusterDomain, DataKey, HostName, HttpUrl, ImageRef, KeyName, Line, NamespaceName, ObjectName,
    OrganizationName, ProxyName, WildcardAccess, WildcardHost,
};
pub use workspaceproxy::{
    CoderWorkspaceProxy, CoderWorkspaceProxySpec, CoderWorkspaceProxyStatus, PendingRegistration,
    ProxyBootstrap, Registration,
};
