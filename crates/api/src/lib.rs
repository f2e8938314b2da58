//! The contract of coder-k8s with its users: the three kinds of `coder.com/v1alpha1`, and every name, condition type,
//! reason and default that a cluster may hold.
//!
//! Everything that a manifest may say is here, with the bounds and rules that the API server enforces at admission.
//! The crate does no I/O, reads no clock and decides nothing: validation across objects, child objects and status are
//! in the crate `core`.

pub mod access;
pub mod condition;
mod controlplane;
mod crd;
mod kind;
pub mod names;
mod network;
mod pod;
mod provisioner;
pub mod reason;
mod refs;
pub mod samples;
mod schema;
mod text;
mod workspaceproxy;

pub use access::WorkspaceRbac;
pub use condition::{CredentialBinding, WorkloadStatus};
pub use controlplane::{
    AccessMethod, CoderControlPlane, CoderControlPlaneSpec, CoderControlPlaneStatus, DEFAULT_IMAGE,
    EntitlementsStatus, LicenseSettings, LicenseStatus, OperatorAccess, OperatorTokenStatus, ReplacedToken,
    Scaling, Tls, VerifiedInputs,
};
pub use crd::{crds, crds_json, fields, own_field_paths};
pub use kind::CoderKind;
pub use network::{
    Expose, GatewayExposure, GatewayRef, IngressExposure, IngressTls, Scheme, ServiceSettings, ServiceType,
    SessionAffinity, TrafficPolicy,
};
pub use pod::{Certs, DisruptionBudget, PodSettings, Probe, Prometheus, PullPolicy, ServiceAccountSettings};
pub use provisioner::{
    Autoscaling, AutoscalingStatus, CoderProvisioner, CoderProvisionerSpec, CoderProvisionerStatus,
    CredentialsSource, DaemonStatus, DaemonsStatus, OnEntitlementLost, PendingKey, ProvisionerBootstrap,
    ProvisionerKey, ScalingWindow, StaleKey, Weekday,
};
pub use reason::Reason;
pub use refs::{ControlPlaneRef, ReportedSecretRef, SecretKey, SecretKeyRef, SecretRef};
pub use text::{
    ClusterDomain, DataKey, HostName, HttpUrl, IdleTime, ImageRef, KeyName, Line, NamespaceName, ObjectName,
    OrganizationName, ProxyName, TimeOfDay, TimeZoneName, WildcardAccess, WildcardHost, shortened,
};
pub use workspaceproxy::{
    CoderWorkspaceProxy, CoderWorkspaceProxySpec, CoderWorkspaceProxyStatus, PendingRegistration,
    ProxyBootstrap, Registration,
};
