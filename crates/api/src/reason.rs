//! The reasons of conditions, events and metrics: one enum for the whole operator.
//!
//! People and other programs read these words, so that a variant's wire string never changes. The operator decides by
//! variants and never compares the strings. `docs/reference/reasons.md` is generated from the sentences below.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

macro_rules! reasons {
    ($($variant:ident $wire:literal $sentence:literal;)+) => {
        /// Why a condition has its status, or why an event was published.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $sentence] $variant,)+
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word on status, in events and in metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $wire,)+
                }
            }

            /// One sentence for people, as the reference shows it.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$variant => $sentence,)+
                }
            }
        }
    };
}

reasons! {
    // Every kind.
    Reconciled "Reconciled" "The object is as its spec asks, and nothing is left to do.";
    Pending "Pending" "The step has not started yet. The message names what it waits for.";
    Progressing "Progressing" "The Deployment is rolling out.";
    RolledOut "RolledOut" "The Deployment has rolled out the current template to every replica.";
    ScaledToZero "ScaledToZero" "The spec asks for no replicas, and no pod runs.";
    ProgressDeadlineExceeded "ProgressDeadlineExceeded" "The rollout made no progress within `progressDeadlineSeconds`. The message quotes the pods.";
    PodsRefused "PodsRefused" "The API server refuses to create pods, for example because of a quota.";
    DeploymentPaused "DeploymentPaused" "Someone paused the rollout of the Deployment (`spec.paused`).";
    MinimumReplicasReady "MinimumReplicasReady" "At least one pod of the pool is ready.";
    NoReplicasReady "NoReplicasReady" "No pod of the pool is ready.";
    Annotated "Annotated" "The annotation `coder.com/paused` stops the operator from writing.";
    Deleting "Deleting" "The object is being deleted, and the operator cleans up what it created.";
    ForeignObject "ForeignObject" "An object that the operator does not own has the name of a child.";
    AwaitingDeletion "AwaitingDeletion" "A child of an earlier object of the same name still exists; the operator waits for the garbage collector.";
    SecretImmutable "SecretImmutable" "The Secret is immutable. Delete it, so that the operator can write it again.";

    // The API server.
    Invalid "Invalid" "The API server rejects what the spec asks for, or coderd rejects the request.";
    Forbidden "Forbidden" "The operator lacks a permission in Kubernetes, or its token lacks one in coderd.";
    SchemaSkew "SchemaSkew" "The API server does not know a field that the operator writes. Update the CRDs or the cluster.";
    Outdated "Outdated" "The object changed during the reconcile, which runs again at once.";
    NotFound "NotFound" "The object does not exist.";
    RateLimited "RateLimited" "The server asks for fewer requests. The operator waits as long as it is told to.";
    ApiServerError "APIServerError" "The API server failed.";
    ApiServerUnreachable "APIServerUnreachable" "The operator cannot reach the API server.";
    NotLeading "NotLeading" "Another instance of the operator leads.";
    Timeout "Timeout" "No complete answer arrived before the deadline of the call.";
    Error "Error" "A Secret could not be read or written.";
    Conflict "Conflict" "The Secret changed while the operator was writing it.";

    // Exposure and workspace RBAC.
    Exposed "Exposed" "The Ingress or HTTPRoute is written, and no Gateway rejects it.";
    GatewayApiMissing "GatewayAPIMissing" "The Gateway API is not installed in the cluster.";
    RouteNotAccepted "RouteNotAccepted" "A Gateway does not accept the HTTPRoute.";
    Granted "Granted" "Workspace RBAC is in place in every namespace that the spec names.";
    ConsentMissing "ConsentMissing" "A namespace does not have the label that consents to workspaces.";
    RuleNotAllowed "RuleNotAllowed" "A rule in `extraRules` grants what workspaces never get.";

    // A coderd that does not answer as asked.
    Unreachable "Unreachable" "The operator cannot connect to coderd.";
    ServerError "ServerError" "coderd answered with a status of 500 or above.";
    UnexpectedAnswer "UnexpectedAnswer" "Something other than coderd answers at this address.";
    Redirected "Redirected" "coderd redirects to another address, where the operator never sends a token.";
    Unauthenticated "Unauthenticated" "coderd does not accept the token.";
    Duplicate "Duplicate" "coderd already has an object of this name.";
    NotSupported "NotSupported" "This coderd has no licensed features (an AGPL build), or it is too old.";
    BadTarget "BadTarget" "The address or the CA of coderd cannot be used.";
    BadToken "BadToken" "The Secret does not hold a token that can be sent.";
    DeploymentChanged "DeploymentChanged" "Another coderd deployment answers than the one that the credential belongs to.";
    CoderdUnavailable "CoderdUnavailable" "The operator cannot build a client for this coderd. The message says why.";
    UrlNotAllowed "URLNotAllowed" "The operator does not send credentials to this address. `--allowed-coder-urls` lists the addresses that it may use.";

    // Operator access of a control plane.
    TokenAccepted "TokenAccepted" "coderd accepts the operator token.";
    Kept "Kept" "The operator uses the token of an earlier release and verifies it soon.";
    RenewalFails "RenewalFails" "The operator token works, but the operator cannot renew it.";
    TokenRefused "TokenRefused" "coderd does not accept the token that the operator created for it.";
    TokenAbandoned "TokenAbandoned" "The operator could not revoke its token in time. The event names what is left.";
    Disabled "Disabled" "`operatorAccess.disabled` is set.";
    Revoking "Revoking" "The operator is revoking its token.";
    SecretMissing "SecretMissing" "A Secret or key that the spec refers to does not exist or is empty.";
    DatabaseUrlMissing "DatabaseURLMissing" "No database is configured, and the method Postgres needs one.";
    DatabaseAuthUnsupported "DatabaseAuthUnsupported" "`CODER_PG_AUTH` asks for a login that the operator does not support.";
    BadConnectionUrl "BadConnectionURL" "`CODER_PG_CONNECTION_URL` is not a usable connection string.";
    BadDatabaseCa "BadDatabaseCA" "The CA for the database cannot be read.";
    DatabaseUnreachable "DatabaseUnreachable" "The operator cannot connect to the database.";
    DatabaseTimeout "DatabaseTimeout" "The database did not answer before the deadline.";
    DatabaseAuthFailed "DatabaseAuthFailed" "The database does not accept the user or the password.";
    DatabaseTls "DatabaseTLS" "The TLS handshake with the database failed.";
    DatabaseReadOnly "DatabaseReadOnly" "The database is read-only, for example a replica.";
    DatabasePermissionDenied "DatabasePermissionDenied" "The database user lacks a permission that the operator needs.";
    DatabaseNotMigrated "DatabaseNotMigrated" "coderd has not migrated the database yet.";
    SchemaUnknown "SchemaUnknown" "The database schema is not one that the operator knows.";
    AccountTaken "AccountTaken" "A person has the user name or e-mail address of the operator's account.";
    NoOrganization "NoOrganization" "The database has no organization yet.";
    DatabaseError "DatabaseError" "The database failed.";
    FirstUserInvalid "FirstUserInvalid" "coderd rejects the first user of the Secret.";
    AlreadyInitialised "AlreadyInitialised" "coderd already has a first user, and does not log in the one of the Secret.";

    // License and entitlements.
    Applied "Applied" "coderd holds the license of the Secret.";
    InvalidLicense "InvalidLicense" "coderd rejects the license.";
    NotALicense "NotALicense" "The Secret does not hold a license.";
    LicenseRefused "LicenseRefused" "The license cannot be applied until someone changes the license or the token.";
    Valid "Valid" "The license ends in more than 30 days.";
    ExpiresIn30Days "ExpiresIn30Days" "The license ends in less than 30 days.";
    ExpiresIn7Days "ExpiresIn7Days" "The license ends in less than 7 days.";
    ExpiresIn1Day "ExpiresIn1Day" "The license ends in less than one day.";
    Expired "Expired" "The license has ended. coderd may still be in its grace period.";
    Healthy "Healthy" "coderd reports no problem with its license, or reaches the workspace proxy.";
    Errors "Errors" "coderd reports errors about its license.";
    Warnings "Warnings" "coderd reports warnings about its license.";
    HighAvailabilityNotEntitled "HighAvailabilityNotEntitled" "The license does not cover more than one replica of coderd.";
    OlderThanDatabase "OlderThanDatabase" "The image is older than the release that last ran on the database.";
    Entitled "Entitled" "The license covers the feature.";
    NotEntitled "NotEntitled" "The license does not cover the feature.";
    EntitlementsQueryFailed "EntitlementsQueryFailed" "Whether the license covers the feature is not known.";

    // Jobs of a control plane.
    Runnable "Runnable" "Every pending job has a daemon that could run it.";
    NoDaemonMatches "NoDaemonMatches" "A pending job has no connected daemon with matching tags.";

    // Control planes and credentials of pools and proxies.
    ControlPlaneAvailable "ControlPlaneAvailable" "The control plane exists, and the operator knows which deployment answers.";
    ControlPlaneUnavailable "ControlPlaneUnavailable" "The control plane does not exist, or has not answered yet.";
    OperatorAccessReady "OperatorAccessReady" "The pool uses the operator token of its control plane.";
    OperatorAccessNotReady "OperatorAccessNotReady" "The control plane has no operator token yet.";
    OperatorTokenSecretRefMissing "OperatorTokenSecretRefMissing" "The control plane names no Secret with its operator token.";
    OperatorTokenSecretRefInvalid "OperatorTokenSecretRefInvalid" "The control plane names the Secret of its operator token by an empty name.";
    OperatorTokenSecretUnavailable "OperatorTokenSecretUnavailable" "The Secret with the operator token does not exist or is empty.";
    BootstrapSecretAvailable "BootstrapSecretAvailable" "The Secret of `bootstrap` holds a token.";
    BootstrapSecretUnavailable "BootstrapSecretUnavailable" "The Secret of `bootstrap` does not exist or is empty.";
    CredentialsAvailable "CredentialsAvailable" "The operator has a token to register the proxy with.";
    CredentialsSecretUnavailable "CredentialsSecretUnavailable" "The Secret of `bootstrap` does not exist or is empty.";
    SecretUnreadable "SecretUnreadable" "The operator cannot read the Secret.";
    SecretUnknown "SecretUnknown" "The operator cannot read one of the Secrets that may hold the key.";
    SecretReady "SecretReady" "The Secret holds the credential.";
    SecretLost "SecretLost" "The Secret no longer holds the key, so that the operator creates another one.";

    // The provisioner key of a pool.
    ProvisionerKeyReady "ProvisionerKeyReady" "coderd knows the key, with the organization and tags of the spec.";
    Creating "Creating" "The operator is creating the first key.";
    Rotating "Rotating" "The operator is replacing the key.";
    Recording "Recording" "The key is proven, and the operator is updating its records.";
    FirstKey "FirstKey" "The pool has no key yet.";
    TagsChanged "TagsChanged" "The tags of the spec changed.";
    KeyNameChanged "KeyNameChanged" "The key name of the spec changed.";
    OrganizationChanged "OrganizationChanged" "The organization of the spec changed.";
    ControlPlaneChanged "ControlPlaneChanged" "The pool or proxy moved to another control plane.";
    KeyRefused "KeyRefused" "coderd does not accept the key of the Secret.";
    KeyConflict "KeyConflict" "Another key has the name that the spec asks for.";
    KeyLeftAlone "KeyLeftAlone" "A key of this name exists, and the operator did not create it.";
    KeyAbandoned "KeyAbandoned" "The operator could not delete a key in time. The event names it.";
    OrganizationNotFound "OrganizationNotFound" "coderd has no organization of this name.";
    ListIncomplete "ListIncomplete" "The list of keys does not show a key that the operator created.";
    PodsUnknown "PodsUnknown" "The operator cannot list the pods.";

    // The daemons of a pool.
    Connected "Connected" "The daemon of every ready pod is connected to coderd.";
    Connecting "Connecting" "A pod is ready, and its daemon still has time to connect.";
    NoPodsReady "NoPodsReady" "No pod is ready that could run a daemon.";
    NoneConnected "NoneConnected" "No daemon of the pool is connected to coderd.";
    SomeConnected "SomeConnected" "Some daemons of the pool are not connected to coderd.";
    StoppedTrying "StoppedTrying" "coderd refused the daemons, and they no longer try to connect.";
    DuplicateName "DuplicateName" "Another daemon has the name of a daemon of this pool.";
    KeyNotAccepted "KeyNotAccepted" "coderd does not accept the key of the daemons.";
    VersionRefused "VersionRefused" "coderd refuses the daemons because they are newer than coderd.";
    DaemonsRestarted "DaemonsRestarted" "The operator restarted pods whose daemons had stopped trying.";

    // The registration of a workspace proxy.
    Registered "Registered" "The proxy is registered in coderd, and its token is in the Secret.";
    Registering "Registering" "The operator is registering the proxy.";
    Updating "Updating" "The operator is updating the registration.";
    FirstRegistration "FirstRegistration" "The proxy has no registration yet.";
    TokenGiven "TokenGiven" "A person supplies the token of the proxy, so that the operator registers nothing.";
    TokenLost "TokenLost" "The Secret no longer holds the token, so that the operator requests another one.";
    TokenSecretUnavailable "TokenSecretUnavailable" "The Secret with the supplied token does not exist or is empty.";
    ProxyConflict "ProxyConflict" "Another proxy has the name that the spec asks for.";
    ProxyAbandoned "ProxyAbandoned" "The operator could not delete a registration in time. The event names it.";
    ServiceWritten "ServiceWritten" "The Service of the proxy is written.";
    Unregistered "Unregistered" "coderd waits for the proxy to register with its token.";
    Unhealthy "Unhealthy" "coderd does not reach the proxy.";
    Unknown "Unknown" "coderd reports a state that the operator does not know.";

    // Events that announce the end of a condition.
    NotDaemonsConnected "NotDaemonsConnected" "The operator no longer reports the condition DaemonsConnected.";
    NotDowngrade "NotDowngrade" "The operator no longer reports the condition Downgrade.";
    NotEntitlementsHealthy "NotEntitlementsHealthy" "The operator no longer reports the condition EntitlementsHealthy.";
    NotExposed "NotExposed" "The operator no longer reports the condition Exposed.";
    NotJobsRunnable "NotJobsRunnable" "The operator no longer reports the condition JobsRunnable.";
    NotLicenseApplied "NotLicenseApplied" "The operator no longer reports the condition LicenseApplied.";
    NotLicenseExpiring "NotLicenseExpiring" "The operator no longer reports the condition LicenseExpiring.";
    NotOperatorAccessReady "NotOperatorAccessReady" "The operator no longer reports the condition OperatorAccessReady.";
    NotPaused "NotPaused" "The operator no longer reports the condition Paused.";
    NotWorkspaceAccess "NotWorkspaceAccess" "The operator no longer reports the condition WorkspaceAccess.";
}

impl Reason {
    /// The reason with this wire string. None: not one of ours, for example of a later release.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }

    /// The reason of a condition that an operator wrote earlier.
    pub fn of(condition: &Condition) -> Option<Self> {
        Self::parse(&condition.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn wire_strings_are_unique_and_valid_condition_reasons() {
        let words: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        for word in words {
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
        }
    }

    #[test]
    fn every_reason_is_read_back_from_its_wire_string() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("SomethingElse"), None);
    }
}
