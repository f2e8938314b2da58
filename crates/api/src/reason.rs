//! The reasons of conditions, events and metrics: one enum for the whole operator.
//!
//! A wire string is part of the API: people, alerts and other controllers match on it, so it never changes. Code
//! compares variants and never the strings. Each variant has a sentence for the person who sees the reason in
//! `kubectl get`: what it means, and the next action if there is one. [`Advice`] says more: what to look at and what to
//! do. `docs/reference/reasons.md` is generated from both.

mod advice;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use advice::Advice;

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

            /// The wire string, as conditions, events and metric labels carry it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $wire,)+
                }
            }

            /// What the reason means and the next action, in Markdown without line breaks.
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
    Reconciled "Reconciled" "The object is as its spec asks. Nothing is left to do.";
    Pending "Pending"
        "The step has not started. The message names what it waits for; the operator continues by itself.";
    Progressing "Progressing" "The Deployment is rolling out. Wait, or run `kubectl rollout status` to follow it.";
    RolledOut "RolledOut" "Every replica runs the current pod template and is available.";
    ScaledToZero "ScaledToZero"
        "No pod is desired, and none runs: the spec asks for zero replicas, or no job waits for a pool with \
         `spec.autoscaling`. Raise `spec.replicas` to start pods.";
    ProgressDeadlineExceeded "ProgressDeadlineExceeded"
        "The rollout made no progress within `progressDeadlineSeconds`. The message quotes the newest pod; \
         correct what it complains about.";
    PodsRefused "PodsRefused"
        "The API server refuses to create pods, for example because of a quota or an admission policy. The \
         message quotes the refusal.";
    DeploymentPaused "DeploymentPaused"
        "Someone paused the rollout of the Deployment. Run `kubectl rollout resume` to continue it.";
    MinimumReplicasReady "MinimumReplicasReady" "At least one pod of the pool is ready.";
    NoReplicasReady "NoReplicasReady" "No pod of the pool is ready. See `Ready` for the state of the rollout.";
    Annotated "Annotated"
        "The annotation `coder.com/paused` is `true`, so the operator writes nothing for this object. Remove the \
         annotation to resume.";
    Deleting "Deleting"
        "The object is being deleted, and the operator removes what it created elsewhere. A credential or \
         grant that it cannot remove is abandoned after `--cleanup-timeout`, with an event that names it.";
    ForeignObject "ForeignObject"
        "An object that the operator does not own has the name of a child. Rename or delete that object, or hand \
         it over with the annotation `coder.com/adopt-by`.";
    AwaitingDeletion "AwaitingDeletion"
        "A child of a deleted object of the same name still exists. The operator waits until the garbage \
         collector removes it.";
    SecretImmutable "SecretImmutable"
        "The Secret is immutable, so the operator cannot update it. Delete the Secret; the operator creates it \
         again.";

    // The API server.
    Invalid "Invalid"
        "The API server rejects an object that the operator builds from the spec, coderd rejects a request, or the \
         spec refers to an object by a name that none can have. Correct the field or the name in the message.";
    Forbidden "Forbidden"
        "The operator lacks a permission in Kubernetes, or its token lacks one in coderd. The message says which: \
         extend the operator's RBAC, or use the token of an owner.";
    SchemaSkew "SchemaSkew"
        "The API server does not know a field that the operator writes. Install the CRDs of this operator \
         release, or upgrade the cluster.";
    Outdated "Outdated" "The object changed during the reconcile. The operator reconciles it again at once.";
    NotFound "NotFound"
        "The object does not exist in Kubernetes or in coderd, or the credential may not see it. The message \
         names it.";
    RateLimited "RateLimited"
        "The server asks for fewer requests. The operator retries when the time that the server named is over.";
    ApiServerError "APIServerError"
        "The API server answered with an internal error. The operator retries with backoff.";
    ApiServerUnreachable "APIServerUnreachable" "The operator cannot reach the API server. It retries with backoff.";
    NotLeading "NotLeading" "Another instance of the operator holds the lease. That instance continues.";
    Timeout "Timeout"
        "No complete answer arrived before the deadline of the call. The operator retries with backoff.";
    Error "Error"
        "A Secret or ConfigMap could not be read or written. The message quotes the API server; the operator \
         retries.";
    Conflict "Conflict" "Someone changed the Secret while the operator wrote it. The operator retries at once.";

    // Exposure and workspace RBAC.
    Exposed "Exposed" "The Ingress is written, or a Gateway accepts the HTTPRoute.";
    GatewayApiMissing "GatewayAPIMissing"
        "The cluster does not serve the Gateway API. Install its CRDs, or use `expose.ingress`; the operator \
         notices an installation at once.";
    RouteNotAccepted "RouteNotAccepted"
        "A Gateway does not accept the HTTPRoute. The message quotes the Gateway; correct \
         `expose.gateway.parentRefs` or the listener of the Gateway.";
    Granted "Granted" "Workspace RBAC is in place in every namespace that the spec names.";
    ConsentMissing "ConsentMissing"
        "A namespace in `rbac.workspaceNamespaces` does not consent. Label it `workspaces.coder.com/<namespace of \
         this object>: allow`.";
    OwnerGone "OwnerGone"
        "The operator removed workspace RBAC whose object no longer exists. Nothing is to be done.";
    GrantAbandoned "GrantAbandoned"
        "The object is deleted, and the operator could not remove its workspace RBAC in another namespace within \
         `--cleanup-timeout`. The event names what is left; the operator tries again later.";
    RuleNotAllowed "RuleNotAllowed"
        "A rule in `rbac.extraRules` grants Secrets, RBAC or tokens of ServiceAccounts. Remove the rule, or run \
         the operator with `--allow-privileged-workspace-rules`. Rules for `coder.com` or all API groups are never \
         granted.";

    // A coderd that does not answer as asked.
    Unreachable "Unreachable"
        "The operator cannot connect to coderd, or coderd cannot connect to the workspace proxy. The message \
         names the address; the operator retries.";
    ServerError "ServerError"
        "coderd answered with a status of 500 or above. The operator retries with backoff; see the logs of coderd \
         if it persists.";
    UnexpectedAnswer "UnexpectedAnswer"
        "Something other than coderd answers at the address, for example a proxy or a login page. Correct the \
         address, or let API calls pass.";
    Redirected "Redirected"
        "coderd redirects API calls to another address. The operator never sends a credential there: configure \
         the address that answers, which needs `--allowed-coder-urls` of the operator.";
    Unauthenticated "Unauthenticated"
        "coderd does not accept the token: it is wrong, expired or revoked. Put a valid token into the Secret \
         that the message names.";
    Duplicate "Duplicate" "coderd already has an object of this name. Rename one of the two.";
    NotSupported "NotSupported"
        "This coderd has no such route: it is an AGPL build or another release. Run an image that supports the \
         feature.";
    BadTarget "BadTarget"
        "The URL or the CA certificate of coderd is not usable. The message says why; correct the field or the \
         Secret.";
    BadToken "BadToken"
        "The Secret holds a value that cannot be a token, for example because of a line break. Store the token \
         alone.";
    DeploymentChanged "DeploymentChanged"
        "The address leads to another coderd deployment than the credential belongs to, so the operator does not \
         send it. Correct the address, or supply a credential of that deployment.";
    CoderdUnavailable "CoderdUnavailable"
        "The operator cannot build a client for this coderd. The message says which part is not usable.";
    UrlNotAllowed "URLNotAllowed"
        "The operator may not send credentials to this address. Use the Service of a control plane of the same \
         namespace, or let the operator's administrator add the address to `--allowed-coder-urls`.";
    AddressNotAllowed "AddressNotAllowed"
        "The host leads to a loopback, link-local, metadata or multicast address or to the API server, and the \
         operator does not connect there. Name another host, or let the operator's administrator allow the range with \
         `--allowed-address-ranges`.";

    // Operator access of a control plane.
    TokenAccepted "TokenAccepted" "coderd accepts the operator token.";
    Kept "Kept"
        "An earlier release of the operator reported the token as accepted. This release verifies it shortly.";
    RenewalFails "RenewalFails"
        "coderd accepts the operator token, but the operator cannot replace it. The message says why; correct it \
         before the token expires.";
    TokenRefused "TokenRefused"
        "coderd does not accept a token that was created for it. Another one is created after a growing delay; check that \
         coderd uses the database or server that the message names.";
    TokenAbandoned "TokenAbandoned"
        "The operator gave up revoking a token. The event names the token; delete it in coderd.";
    Disabled "Disabled"
        "The spec does not ask for it: `operatorAccess.disabled` is set, or workspace RBAC is off.";
    Revoking "Revoking"
        "`operatorAccess.disabled` is set or the object is being deleted, and the operator is revoking its token.";
    SecretMissing "SecretMissing"
        "A Secret or ConfigMap that the spec refers to does not exist, or the key in it is missing or empty. \
         Create it; the operator notices at once.";
    DatabaseUrlMissing "DatabaseURLMissing"
        "`operatorAccess.method` is `Postgres` and the pods have no `CODER_PG_CONNECTION_URL`. Set it in \
         `extraEnv`, or choose another method.";
    DatabaseAuthUnsupported "DatabaseAuthUnsupported"
        "`CODER_PG_AUTH` asks for a login that the operator does not support. Choose another \
         `operatorAccess.method`.";
    BadConnectionUrl "BadConnectionURL"
        "`CODER_PG_CONNECTION_URL` is not a connection string that the operator can use. The message says which \
         part is wrong.";
    BadDatabaseCa "BadDatabaseCA"
        "The Secret in `operatorAccess.databaseCASecretRef` holds no usable certificate. Store the CA as PEM.";
    DatabaseUnreachable "DatabaseUnreachable"
        "The operator cannot connect to the database. It retries with backoff; check the address and network \
         policies if it persists.";
    DatabaseTimeout "DatabaseTimeout"
        "The database did not answer before the deadline, or another session holds a lock. The operator retries \
         with backoff.";
    DatabaseAuthFailed "DatabaseAuthFailed"
        "The database does not accept the user or the password. Correct `CODER_PG_CONNECTION_URL`.";
    DatabaseTls "DatabaseTLS"
        "The TLS handshake with the database failed. Check `sslmode` in the URL and \
         `operatorAccess.databaseCASecretRef`.";
    DatabaseReadOnly "DatabaseReadOnly"
        "The database is read-only, for example a standby. Let `CODER_PG_CONNECTION_URL` lead to the primary.";
    DatabasePermissionDenied "DatabasePermissionDenied"
        "The database user lacks a permission. Use the user that coderd itself connects as.";
    DatabaseNotMigrated "DatabaseNotMigrated"
        "coderd has not migrated the database yet. The operator waits; see the logs of coderd if it persists.";
    SchemaUnknown "SchemaUnknown"
        "The tables in the database differ from those that the operator knows. Choose another \
         `operatorAccess.method`, or a release of the operator that knows this coderd.";
    AccountTaken "AccountTaken"
        "A person's account has the user name or e-mail address of the operator's. Rename that account in coderd, \
         or choose another `operatorAccess.method`.";
    NoOrganization "NoOrganization" "coderd has not created its default organization yet. The operator waits.";
    DatabaseError "DatabaseError"
        "The database failed with an error that the operator does not know. The message has its SQLSTATE; the \
         operator retries with backoff.";
    FirstUserInvalid "FirstUserInvalid"
        "coderd rejects the first user in `operatorAccess.firstUserSecretRef`. Correct the user name, e-mail \
         address or password in the Secret.";
    AlreadyInitialised "AlreadyInitialised"
        "coderd already has a first user, and the user in the Secret cannot log in. Correct the Secret, or choose \
         another `operatorAccess.method`.";

    // License and entitlements.
    Applied "Applied" "coderd holds the license of the Secret.";
    InvalidLicense "InvalidLicense"
        "coderd rejects the license, for example because it has expired or is for another deployment. Put another \
         license into the Secret.";
    NotALicense "NotALicense" "The value in the Secret is not a license. Store the license as Coder issued it.";
    LicenseRefused "LicenseRefused"
        "The object is not ready because its license cannot be applied. The condition `LicenseApplied` says why.";
    Valid "Valid" "The license expires in more than 30 days.";
    ExpiresIn30Days "ExpiresIn30Days" "The license expires in less than 30 days. Renew it.";
    ExpiresIn7Days "ExpiresIn7Days" "The license expires in less than 7 days. Renew it.";
    ExpiresIn1Day "ExpiresIn1Day" "The license expires in less than one day. Renew it now.";
    Expired "Expired"
        "The license has expired. coderd disables licensed features when the grace period ends; apply a new \
         license.";
    Healthy "Healthy" "coderd reports no problem with its license, or coderd reaches the workspace proxy.";
    Errors "Errors" "coderd reports errors about its license. The message quotes them.";
    Warnings "Warnings" "coderd reports warnings about its license. The message quotes them.";
    HighAvailabilityNotEntitled "HighAvailabilityNotEntitled"
        "More than one replica runs, and the license does not cover high availability. Set `replicas: 1`, or \
         apply a license that covers it.";
    OlderThanDatabase "OlderThanDatabase"
        "The image is older than the release that last ran on the database, so coderd does not start. Use that \
         release or a newer one.";
    Entitled "Entitled" "The license covers the feature.";
    NotEntitled "NotEntitled"
        "The license does not cover the feature. Apply a license that does; what runs already stays unless the \
         spec says otherwise.";
    EntitlementsQueryFailed "EntitlementsQueryFailed"
        "The operator asked coderd what the license covers and got no answer that it can use. The message says why; \
         nothing is withdrawn, and the operator retries.";
    AwaitingEntitlements "AwaitingEntitlements"
        "The operator waits for the first answer of coderd about what the license covers. It continues by itself; see \
         the conditions of the control plane if it does not.";

    // Jobs of a control plane.
    Runnable "Runnable" "Every pending provisioner job has a daemon that can run it.";
    NoDaemonMatches "NoDaemonMatches"
        "A pending provisioner job has no connected daemon with matching tags. The message names the tags and the \
         pool that would help.";

    // Control planes and credentials of pools and proxies.
    ControlPlaneAvailable "ControlPlaneAvailable" "The control plane exists and the operator can use it.";
    ControlPlaneUnavailable "ControlPlaneUnavailable"
        "The control plane does not exist, or cannot be used. The message says which: create it, correct \
         `spec.controlPlaneRef`, or see its conditions.";
    AwaitingControlPlane "AwaitingControlPlane"
        "The control plane exists, and its coderd has not answered yet or the operator has no access to it yet. The \
         operator continues by itself; see the conditions of the control plane if it does not.";
    OperatorAccessReady "OperatorAccessReady" "The object uses the operator token of its control plane.";
    OperatorAccessNotReady "OperatorAccessNotReady"
        "The control plane has no operator token. See its condition `OperatorAccessReady`.";
    OperatorTokenSecretRefMissing "OperatorTokenSecretRefMissing"
        "The status of the control plane names no Secret with its operator token. See its condition \
         `OperatorAccessReady`.";
    OperatorTokenSecretRefInvalid "OperatorTokenSecretRefInvalid"
        "The status of the control plane names the Secret of its operator token with an empty name. See its \
         condition `OperatorAccessReady`.";
    OperatorTokenSecretUnavailable "OperatorTokenSecretUnavailable"
        "The Secret with the operator token does not exist or is empty. The control plane creates or verifies it \
         again.";
    BootstrapSecretAvailable "BootstrapSecretAvailable"
        "The Secret in `bootstrap.credentialsSecretRef` holds a token.";
    BootstrapSecretUnavailable "BootstrapSecretUnavailable"
        "The Secret in `bootstrap.credentialsSecretRef` does not exist, or its key is missing or empty. Create \
         it; the operator notices at once.";
    CredentialsAvailable "CredentialsAvailable" "The operator has a token to register the proxy with.";
    CredentialsSecretUnavailable "CredentialsSecretUnavailable"
        "The Secret in `bootstrap.credentialsSecretRef` does not exist, or its key is missing or empty. Create \
         it; the operator notices at once.";
    SecretUnreadable "SecretUnreadable"
        "The operator cannot read a Secret. The message quotes the API server; the operator retries.";
    SecretUnknown "SecretUnknown"
        "A Secret that may hold the key has not been read. The operator decides nothing about the key until it \
         is.";
    SecretReady "SecretReady" "The Secret holds the credential.";
    SecretLost "SecretLost" "The Secret no longer holds the key, so the operator creates another key.";

    // The provisioner key of a pool.
    ProvisionerKeyReady "ProvisionerKeyReady" "coderd knows the key, with the organization and tags of the spec.";
    Creating "Creating" "The operator is creating the first key of the pool.";
    Rotating "Rotating"
        "The operator is replacing the key. Running daemons keep the old key until the new one is proven.";
    Recording "Recording"
        "coderd accepts the key, and the operator is updating the status and the annotations of the Secret.";
    FirstKey "FirstKey" "The pool has no key yet.";
    TagsChanged "TagsChanged" "`spec.tags` changed, which needs another key.";
    KeyNameChanged "KeyNameChanged" "`spec.key.name` changed, which needs another key.";
    OrganizationChanged "OrganizationChanged" "`spec.organizationName` changed, which needs another key.";
    ControlPlaneChanged "ControlPlaneChanged"
        "The object refers to another control plane, or another deployment answers for it, which needs another \
         key or registration.";
    KeyRefused "KeyRefused" "coderd does not accept the key in the Secret, so the operator creates another key.";
    KeyConflict "KeyConflict"
        "Another pool asked for this key name first, or coderd has a key of this name that the pool did not \
         create. Choose another `spec.key.name`, or delete that key.";
    KeyLeftAlone "KeyLeftAlone"
        "coderd has a key that could be mistaken for one of the pool, and the operator does not touch it. The \
         event names it; delete it if nobody needs it.";
    KeyAbandoned "KeyAbandoned" "The operator gave up deleting a key. The event names it; delete it in coderd.";
    OrganizationNotFound "OrganizationNotFound"
        "coderd has no organization of this name, or the credential may not see it. Correct \
         `spec.organizationName`.";
    ListIncomplete "ListIncomplete"
        "coderd does not list a key that the operator has just proven, so the list cannot be trusted: use \
         credentials that may read all keys of the organization. Or jobs and daemons have too many different tags \
         to be compared.";
    PodsUnknown "PodsUnknown" "The operator cannot list the pods of the pool, so it keeps the old key. It retries.";

    // The daemons of a pool.
    Connected "Connected" "The daemon of every ready pod is connected to coderd.";
    Connecting "Connecting" "A pod is ready, and its daemon still has time to connect.";
    NoPodsReady "NoPodsReady"
        "No pod is ready, so no daemon is connected and no proxy reports to coderd. See `DeploymentReady`.";
    NoneConnected "NoneConnected" "Pods are ready, but coderd lists none of their daemons. See the logs of the pods.";
    SomeConnected "SomeConnected"
        "Some pods are ready without a connected daemon. The message names them; see their logs.";
    StoppedTrying "StoppedTrying"
        "coderd refused the daemons earlier, and they do not try again. The operator restarts their pods once.";
    DuplicateName "DuplicateName"
        "Several pods, or a daemon with another key, use the same daemon name, and coderd keeps one of them. \
         Remove a fixed `CODER_PROVISIONER_DAEMON_NAME` or `--name` from the spec.";
    KeyNotAccepted "KeyNotAccepted"
        "coderd does not accept the key of the daemons. The operator creates another key and rolls the pods.";
    VersionRefused "VersionRefused"
        "The image is newer than coderd, which refuses the daemons. Use the image of the control plane, or \
         upgrade coderd first.";
    DaemonsRestarted "DaemonsRestarted" "The operator restarted pods whose daemons had stopped trying to connect.";

    // The scaling of a pool.
    Steady "Steady" "The pool has as many daemons as its jobs, its minimum and its spare daemons need.";
    ScalingUp "ScalingUp" "The operator adds daemons, or those that it added are starting.";
    ScalingDown "ScalingDown" "Daemons that were idle for `scaleDownAfter` leave.";
    WaitingForIdle "WaitingForIdle"
        "The pool has more daemons than it needs, and they have not been idle for `scaleDownAfter` yet.";
    AtMaximum "AtMaximum"
        "More jobs wait than `maxReplicas` permits daemons for. Raise `maxReplicas`, or wait for builds to end.";
    StartsFail "StartsFail"
        "More daemons are needed, and pods of the pool do not start or are refused, so that the pool does not grow. The \
         message says which.";
    QueueUnknown "QueueUnknown"
        "coderd does not say which jobs wait. No daemon that may run a build leaves, and the operator asks again.";
    TimeZoneUnknown "TimeZoneUnknown"
        "The operator does not know the time zone of a window, and ignores that window. Use another name for the zone.";
    ScaledByOthers "ScaledByOthers"
        "Somebody, such as a HorizontalPodAutoscaler, set the replicas of a pool that has `spec.autoscaling`, which \
         ignores them. Remove one of the two.";

    // The registration of a workspace proxy.
    Registered "Registered" "The proxy is registered in coderd, and the Secret holds its token.";
    Registering "Registering" "The operator is registering the proxy, or is requesting another token for it.";
    Updating "Updating" "The operator is changing the name, display name or icon of the registration.";
    FirstRegistration "FirstRegistration" "The proxy has no registration yet.";
    TokenGiven "TokenGiven"
        "The spec supplies the token (`proxySessionTokenSecretRef`), so the operator registers nothing.";
    TokenLost "TokenLost" "The Secret no longer holds the token, so the operator requests another token.";
    TokenSecretUnavailable "TokenSecretUnavailable"
        "The Secret in `proxySessionTokenSecretRef` does not exist, or its key is missing or empty. Create it; \
         the operator notices at once.";
    ProxyConflict "ProxyConflict"
        "Another object asked for this proxy name first, or coderd has a proxy of this name that the object did \
         not register. Choose another `proxyName`, or delete that proxy.";
    ProxyAbandoned "ProxyAbandoned"
        "The operator gave up deleting a registration. The event names it; delete the proxy in coderd.";
    ServiceWritten "ServiceWritten" "The Service of the proxy exists as the spec asks.";
    NotReported "NotReported"
        "The proxy is registered, and coderd has not heard from its pods yet. Wait a minute; if it stays, see the logs of \
         the pods.";
    Unregistered "Unregistered" "An earlier release of the operator reported `NotReported` under this name.";
    Unhealthy "Unhealthy" "The proxy reports errors to coderd. See the dashboard of coderd and the logs of the pods.";
    Unknown "Unknown"
        "coderd has not checked the health of the proxy yet, or reports one that the operator does not know.";

    // Events that announce the end of a condition.
    NotAutoscaling "NotAutoscaling"
        "The condition `Autoscaling` was removed, because the spec no longer has `autoscaling`.";
    NotScaleIgnored "NotScaleIgnored"
        "The condition `ScaleIgnored` was removed: nobody but the operator scales the pool.";
    NotDaemonsConnected "NotDaemonsConnected"
        "The condition `DaemonsConnected` was removed from the status, because it no longer applies.";
    NotDowngrade "NotDowngrade"
        "The condition `Downgrade` was removed: the image is no longer older than the database.";
    NotEntitlementsHealthy "NotEntitlementsHealthy"
        "The condition `EntitlementsHealthy` was removed from the status, because it no longer applies.";
    NotExposed "NotExposed" "The condition `Exposed` was removed from the status, because it no longer applies.";
    NotJobsRunnable "NotJobsRunnable"
        "The condition `JobsRunnable` was removed from the status, because it no longer applies.";
    NotLicenseApplied "NotLicenseApplied"
        "The condition `LicenseApplied` was removed from the status, because it no longer applies.";
    NotLicenseExpiring "NotLicenseExpiring"
        "The condition `LicenseExpiring` was removed from the status, because it no longer applies.";
    NotOperatorAccessReady "NotOperatorAccessReady"
        "The condition `OperatorAccessReady` was removed from the status, because it no longer applies.";
    NotPaused "NotPaused" "The annotation `coder.com/paused` was removed, and the operator writes again.";
    NotWorkspaceAccess "NotWorkspaceAccess"
        "The condition `WorkspaceAccess` was removed from the status, because it no longer applies.";
}

impl Reason {
    /// Returns `None` for a string that this release does not know, for example one that a later release wrote.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }

    /// Reads the reason back from a condition on status. `None` as for [`Reason::parse`].
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
    fn every_sentence_fits_into_one_row_of_a_table() {
        for reason in Reason::ALL {
            let sentence = reason.sentence();
            assert!(sentence.ends_with('.') && !sentence.contains(['\n', '|']), "{reason}: {sentence}");
            assert!(!sentence.contains("  "), "{reason}: {sentence}");
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
