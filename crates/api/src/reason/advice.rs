//! What a person does who sees a reason: nothing, wait, or look at something and act.
//!
//! `docs/reference/reasons.md` is generated from this. The match has no default arm, so that a new reason does not
//! compile before somebody has written what to do about it. Links are relative to that page.

use super::Reason;

/// What to do about a reason. The texts are Markdown without line breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The good state, or an event that only informs.
    Nothing,
    /// The operator continues by itself. The text says what ends the wait, and when to look closer.
    Wait(&'static str),
    /// A person has to act.
    Act {
        /// Where the cause shows.
        look: &'static str,
        /// What ends the problem.
        act: &'static str,
    },
}

use Advice::{Act, Nothing, Wait};

const fn act(look: &'static str, act: &'static str) -> Advice {
    Act { look, act }
}

const MESSAGE: &str = "The message of the condition.";

impl Reason {
    /// The chapters of the documentation. Each begins with this reason and ends before the next chapter.
    pub const CHAPTERS: [(Self, &'static str); 14] = [
        (Self::Reconciled, "Rollout and every kind"),
        (Self::Invalid, "The API server"),
        (Self::Exposed, "Exposure and workspaces"),
        (Self::Unreachable, "Calls to coderd"),
        (Self::TokenAccepted, "Operator access and the database"),
        (Self::Applied, "License and entitlements"),
        (Self::Runnable, "Jobs"),
        (Self::ControlPlaneAvailable, "Control plane and credentials of pools and proxies"),
        (Self::ProvisionerKeyReady, "The key of a pool"),
        (Self::Connected, "The daemons of a pool"),
        (Self::Steady, "The scaling of a pool"),
        (Self::Registered, "The registration of a proxy"),
        (Self::ServiceWritten, "Service and health of a proxy"),
        (Self::NotAutoscaling, "Conditions that were removed"),
    ];

    /// What to do about it.
    #[expect(clippy::too_many_lines, reason = "one table")]
    pub const fn advice(self) -> Advice {
        match self {
            // Good states, and events that only inform.
            Self::Reconciled
            | Self::RolledOut
            | Self::MinimumReplicasReady
            | Self::Exposed
            | Self::Granted
            | Self::OwnerGone
            | Self::TokenAccepted
            | Self::Applied
            | Self::Valid
            | Self::Healthy
            | Self::Entitled
            | Self::Runnable
            | Self::ControlPlaneAvailable
            | Self::OperatorAccessReady
            | Self::BootstrapSecretAvailable
            | Self::CredentialsAvailable
            | Self::SecretReady
            | Self::ProvisionerKeyReady
            | Self::Connected
            | Self::DaemonsRestarted
            | Self::Registered
            | Self::TokenGiven
            | Self::ServiceWritten
            | Self::Disabled
            | Self::Steady
            | Self::ScalingDown
            | Self::NotAutoscaling
            | Self::NotScaleIgnored
            | Self::NotDaemonsConnected
            | Self::NotDowngrade
            | Self::NotEntitlementsHealthy
            | Self::NotExposed
            | Self::NotJobsRunnable
            | Self::NotLicenseApplied
            | Self::NotLicenseExpiring
            | Self::NotOperatorAccessReady
            | Self::NotPaused
            | Self::NotWorkspaceAccess => Nothing,

            // Rollout and every kind.
            Self::Pending => Wait(
                "The message names what the step waits for: most often a ready pod, or the next answer of coderd. See the reason of that condition if it takes more than a minute.",
            ),
            Self::Progressing => Wait(
                "A rollout that makes no progress for `progressDeadlineSeconds` (600) becomes `ProgressDeadlineExceeded`. `kubectl rollout status deployment/NAME` follows it.",
            ),
            Self::ScaledToZero => act(
                "`spec.replicas`, and who set it: `kubectl get --output yaml --show-managed-fields` names the last writer.",
                "Nothing, if no pods are wanted, or if the pool has `spec.autoscaling` and no job waits. Otherwise raise `spec.replicas`, for example with `kubectl scale ccp/NAME --replicas=1`.",
            ),
            Self::ProgressDeadlineExceeded => act(
                "The message quotes the newest pod. `kubectl describe pod` and `kubectl logs` of it say more: a wrong image name, a missing Secret, a database that coderd does not reach, a node without room.",
                "Correct the cause. The operator notices by itself; an edit of the spec starts a new rollout.",
            ),
            Self::PodsRefused => act(
                "The message quotes the refusal. `kubectl describe replicaset` shows it too.",
                "Raise the quota, or change the pods so that the admission policy accepts them: `resources`, `securityContext`, `podLabels`.",
            ),
            Self::DeploymentPaused => act(
                "`kubectl get deployment NAME --output jsonpath={.spec.paused}`.",
                "`kubectl rollout resume deployment/NAME`.",
            ),
            Self::NoReplicasReady => act(
                "The condition `Ready`, whose reason says why the rollout is not complete, and `kubectl describe pod`.",
                "What the reason of `Ready` says.",
            ),
            Self::Annotated => act(
                "The annotation `coder.com/paused` of the object.",
                "Remove it when you are done: `kubectl annotate ccp NAME coder.com/paused-`.",
            ),
            Self::Deleting => Wait(
                "A pool first lets its daemons finish their builds, for up to `terminationGracePeriodSeconds` (10 minutes). Then clean-up in coderd takes at most `--cleanup-timeout` (2 minutes), even if coderd does not answer. If it takes longer, the operator does not run: see [A deletion does not end](../troubleshooting.md#a-deletion-does-not-end).",
            ),
            Self::ForeignObject => act(
                "The message names the object and why the operator does not own it.",
                "Rename or delete that object. Or hand it over: `kubectl annotate KIND NAME coder.com/adopt-by=CoderControlPlane/coder`, with the kind and name of your object.",
            ),
            Self::AwaitingDeletion => Wait(
                "The garbage collector of Kubernetes removes the child within seconds. If it does not, look for a finalizer on the child.",
            ),
            Self::SecretImmutable => act(
                "The field `immutable` of the Secret that the message names.",
                "Delete the Secret. The operator creates it again, with a credential that works.",
            ),

            // The API server.
            Self::Invalid => act(
                MESSAGE,
                "Correct the field or name that it quotes. `kubectl explain ccp.spec` and the reference of the kind say what a field takes.",
            ),
            Self::Forbidden => act(
                "The message says whether Kubernetes or coderd refused, and for Kubernetes the verb and the resource.",
                "Kubernetes: apply the manifests or the chart of this release again, they hold [every permission](permissions.md). coderd: use the token of an owner.",
            ),
            Self::SchemaSkew => act(
                "`/readyz` of the operator, which names a CRD that is older than the operator.",
                "Apply the CRDs of this release, which `coder-k8s crds` prints, with `kubectl apply --server-side`. If a field of Kubernetes itself is unknown, the cluster is older than 1.33: upgrade it.",
            ),
            Self::Outdated | Self::Conflict => Wait(
                "At most a second. If it stays, another program writes the same object all the time: `kubectl get --show-managed-fields` names it.",
            ),
            Self::NotFound => act(
                "The message names what was looked for, and where.",
                "Create it, or correct the name. In coderd an object that the token may not see is not found either: use the token of an owner.",
            ),
            Self::RateLimited => Wait(
                "At most five minutes. If it comes back all the time, something else calls coderd or the API server too often.",
            ),
            Self::ApiServerError | Self::ApiServerUnreachable => Wait(
                "The operator retries with growing delays. If other clients fail too, look at the API server; if only the operator does, at its network policies.",
            ),
            Self::NotLeading => Wait(
                "Seconds. The instance that holds the lease `coder-k8s-controller.coder.com` does the work: `kubectl get lease --all-namespaces` names it.",
            ),
            Self::Timeout => Wait(
                "If it stays, coderd or the API server is overloaded, or a network policy drops packets: a name that resolves and a port that does not answer look like this.",
            ),
            Self::Error => Wait(
                "The message quotes the API server. If it stays, see whether the operator may read Secrets there ([permissions](permissions.md)).",
            ),

            // Exposure and workspaces.
            Self::GatewayApiMissing => act(
                "`kubectl get crd httproutes.gateway.networking.k8s.io`.",
                "Install the Gateway API of your Gateway's vendor, or use `expose.ingress`. See [Expose Coder](../how-to/expose.md).",
            ),
            Self::RouteNotAccepted => act(
                "The message quotes the Gateway. `kubectl describe httproute NAME` shows the conditions of each parent.",
                "Correct `expose.gateway.parentRefs`, or let the listener of the Gateway allow routes from this namespace and this host name. See [Expose Coder](../how-to/expose.md).",
            ),
            Self::ConsentMissing => act(
                "The message names the namespaces. `kubectl get namespace NAME --show-labels`.",
                "`kubectl label namespace NAME workspaces.coder.com/NAMESPACE=allow`, by somebody who may edit that Namespace. See [Workspaces in other namespaces](../how-to/workspace-namespaces.md).",
            ),
            Self::GrantAbandoned => act(
                "The event names the Role or RoleBinding and its namespace, and what refused the deletion.",
                "Nothing, if the cause is gone: the operator looks for such grants every 10 minutes. Or delete it by hand.",
            ),
            Self::RuleNotAllowed => act(
                "The message names the rule of `rbac.extraRules`.",
                "Remove it. If workspaces need it, let the administrator run the operator with `--allow-privileged-workspace-rules`.",
            ),

            // Calls to coderd.
            Self::Unreachable => act(
                "The message names the address. Are pods ready (`kubectl get pods`)? Does a NetworkPolicy let the operator's pods in? For a proxy: does `accessURL` lead to it from where coderd runs?",
                "Correct what is wrong; the operator retries by itself, at most five minutes later.",
            ),
            Self::ServerError => act(
                "The logs of coderd, around the time of the condition. The most common cause is its database.",
                "Correct what coderd complains about.",
            ),
            Self::UnexpectedAnswer => act(
                "`curl -i ADDRESS/api/v2/buildinfo` from inside the cluster shows who answers.",
                "Let `operatorAccess.apiURL` or `bootstrap.coderURL` name coderd itself, and keep login pages away from `/api/v2`.",
            ),
            Self::Redirected => act(
                "The message names the other address. `CODER_REDIRECT_TO_ACCESS_URL` in coderd's environment is the usual cause.",
                "Leave that variable out, or set `operatorAccess.apiURL` to the address that answers and let `--allowed-coder-urls` of the operator list it.",
            ),
            Self::Unauthenticated => act(
                "The message names the Secret. `coder tokens list` shows whether the token expired.",
                "Put a token of an owner into the Secret. The operator notices at once.",
            ),
            Self::Duplicate => act("The message names the object in coderd.", "Rename one of the two."),
            Self::NotSupported => act(
                "`status.image` and `status.version` of the control plane. AGPL builds have no licenses, pools and proxies.",
                "Use the image of the enterprise build, `ghcr.io/coder/coder`. No license changes what an AGPL build can do.",
            ),
            Self::BadTarget => act(
                "The message names the field and what is wrong with its URL or PEM.",
                "Correct the field or the Secret.",
            ),
            Self::BadToken => act(
                "The Secret's value, decoded (`kubectl get secret NAME --output jsonpath={.data.token}`): a line break, quotes or a file name instead of the token.",
                "Store the token alone: `kubectl create secret generic NAME --from-literal=token=...`.",
            ),
            Self::DeploymentChanged => act(
                "The message names both deployments. Has somebody restored another database, or does the address lead elsewhere?",
                "Correct the address. If the move is meant, supply a Secret with a token of the new deployment.",
            ),
            Self::CoderdUnavailable => act(MESSAGE, "Correct the URL, the CA or the token that it names."),
            Self::UrlNotAllowed => act(
                "The address in the message, and `--allowed-coder-urls` of the operator's Deployment.",
                "Use `controlPlaneRef`, or the Service of a control plane in the same namespace. Otherwise the administrator of the operator adds the address to the flag: scheme, host and port must match.",
            ),
            Self::AddressNotAllowed => act(
                "Where the host leads: `nslookup HOST` in a pod of the cluster.",
                "Name another host. If the address is meant, the administrator of the operator allows its range with `--allowed-address-ranges`. See [which addresses are refused](../security.md#which-addresses-does-the-operator-connect-to).",
            ),

            // Operator access and the database.
            Self::Kept => Wait("Until the next verification, within `--verify-interval` (10 minutes)."),
            Self::RenewalFails => act(
                "The message has the reason of the failure; it has an entry on this page.",
                "Correct it before the token expires: `status.operatorToken.expires`, where it is set. A renewal is first tried when a third of the lifetime is left: four months with the method `Postgres`, two days with `FirstUser` and coderd's default.",
            ),
            Self::TokenRefused => act(
                "Does coderd use the database of `CODER_PG_CONNECTION_URL`? A database proxy or a second environment variable can lead elsewhere.",
                "Let both use one database, or choose another `operatorAccess.method`.",
            ),
            Self::TokenAbandoned => act(
                "The event names the token and its user.",
                "Delete it: `coder tokens remove`, or in the settings of the user `coder-k8s-operator`.",
            ),
            Self::Revoking => {
                Wait("At most `--cleanup-timeout` (2 minutes) when the object is being deleted.")
            }
            Self::SecretMissing => act(
                "The message names the Secret or ConfigMap, the key and the field that refers to it.",
                "Create it. The operator notices at once.",
            ),
            Self::DatabaseUrlMissing => act(
                "`extraEnv` and `envFrom` of the control plane.",
                "Set `CODER_PG_CONNECTION_URL` there, or choose another method: `FirstUser` or `TokenSecret`. See [Operator access](../access.md).",
            ),
            Self::DatabaseAuthUnsupported => act(
                "`CODER_PG_AUTH` in the environment of coderd.",
                "Set `operatorAccess.method` to `FirstUser` or `TokenSecret`.",
            ),
            Self::BadConnectionUrl => act(
                "The message says which part cannot be used. [The table](../access.md#where-does-the-operator-find-the-database) lists what can.",
                "Correct the connection string. Percent-encode special characters of the password.",
            ),
            Self::BadDatabaseCa => act(
                "The key of the Secret in `operatorAccess.databaseCASecretRef` (`ca.crt` unless given).",
                "Store the CA as PEM, at most 256 KiB and 256 certificates.",
            ),
            Self::DatabaseUnreachable => act(
                "Host and port of the connection string, the pods of the database, and policies between the operator's namespace and the database. The operator connects by itself, not through coderd.",
                "Let the operator's pods reach the database, or choose another `operatorAccess.method`.",
            ),
            Self::DatabaseTimeout => Wait(
                "If it stays, look for a session of the database that holds a lock (`pg_stat_activity`), or for a network that drops packets.",
            ),
            Self::DatabaseAuthFailed => act(
                "Whether coderd itself can log in: its logs.",
                "Correct user and password in the Secret of the connection string.",
            ),
            Self::DatabaseTls => act(
                "`sslmode` of the connection string. `require` verifies nothing, `verify-full` verifies name and CA.",
                "Put the CA of the database into a Secret and name it in `operatorAccess.databaseCASecretRef`.",
            ),
            Self::DatabaseReadOnly => act(
                "Which instance the host of the connection string leads to.",
                "Name the primary. With CloudNativePG that is the Service that ends with `-rw`.",
            ),
            Self::DatabasePermissionDenied => act(
                "The user of the connection string, and who owns coderd's tables.",
                "Use the user that coderd connects as.",
            ),
            Self::DatabaseNotMigrated | Self::NoOrganization => Wait(
                "coderd sets up its database when it first starts. If it takes more than a few minutes, see the logs of coderd.",
            ),
            Self::SchemaUnknown => act(
                "The version of coderd (`status.version`). The operator knows the tables of coderd from migration 308 on.",
                "Set `operatorAccess.method` to `TokenSecret` or `FirstUser`, which do not touch the database. Or use a release of the operator that knows this coderd.",
            ),
            Self::AccountTaken => act(
                "The users of coderd named `coder-k8s-operator`, or with its e-mail address.",
                "Rename that account in coderd, or choose another `operatorAccess.method`.",
            ),
            Self::DatabaseError => act(
                "The SQLSTATE in the message, and the logs of the database.",
                "Correct what the database complains about. The operator retries by itself.",
            ),
            Self::FirstUserInvalid => act(
                "The message quotes coderd. The Secret needs `username`, `email` and `password`, and coderd has rules for each.",
                "Correct the Secret of `operatorAccess.firstUserSecretRef`.",
            ),
            Self::AlreadyInitialised => act(
                "Who set up this coderd, and with which account.",
                "Put that account into the Secret. Or use `TokenSecret` with the token of an owner.",
            ),

            // License and entitlements.
            Self::InvalidLicense => act(
                "The message quotes coderd. `coder licenses list` shows those that it has.",
                "Put another license into the Secret. See [Apply and rotate a license](../how-to/license.md).",
            ),
            Self::NotALicense => act(
                "The value in the Secret. A license is one line with two dots.",
                "Store it as Coder issued it: `kubectl create secret generic coder-license --from-file=license=license.jwt`.",
            ),
            Self::LicenseRefused => act(
                "The condition `LicenseApplied`, whose reason says why.",
                "What the entry of that reason says.",
            ),
            Self::ExpiresIn30Days | Self::ExpiresIn7Days | Self::ExpiresIn1Day => act(
                "`status.license` of the control plane: account, tier and days left.",
                "Get a new license and put it into the Secret. See [Apply and rotate a license](../how-to/license.md).",
            ),
            Self::Expired => act(
                "`status.license`, and `EntitlementsHealthy` for what coderd says about its grace period.",
                "Put a new license into the Secret. Running pools and proxies go on as far as coderd lets them.",
            ),
            Self::Errors | Self::Warnings => act(
                "The message quotes coderd, up to 20 of each.",
                "What coderd asks for: most often more seats, or a renewal.",
            ),
            Self::HighAvailabilityNotEntitled => act(
                "`spec.replicas`, and `status.entitlements` for `high_availability`.",
                "`kubectl scale ccp/NAME --replicas=1`, or apply a license that covers high availability. Without it the replicas do not connect workspaces with each other.",
            ),
            Self::OlderThanDatabase => act(
                "The message names both versions.",
                "Set `spec.image` to the release that ran last, or a newer one. To go back, restore a backup first: see [Back up and upgrade Coder](../how-to/upgrade-coder.md).",
            ),
            Self::NotEntitled => act(
                "`kubectl get ccp`: the column LICENSE has the tier. `status.entitlements` of the control plane lists the features. External provisioners and workspace proxies need Premium.",
                "Put a license that covers the feature into the Secret of the control plane: see [Apply and rotate a license](../how-to/license.md). Within two minutes the operator continues by itself. What runs already stays, unless `onEntitlementLost: ScaleDown` is set.",
            ),
            Self::AwaitingEntitlements => Wait(
                "coderd is asked as soon as the operator has access to it. If it takes more than a minute, see the conditions `OperatorAccessReady` and `Ready` of the control plane.",
            ),
            Self::EntitlementsQueryFailed => Wait(
                "The operator asks again within 30 seconds, and withdraws nothing meanwhile. If it stays, see why coderd does not answer: the condition `OperatorAccessReady` of the control plane has the reason.",
            ),

            // Jobs.
            Self::NoDaemonMatches => act(
                "The message names the tags of up to five sets of jobs, and the pool that would match if it were connected or had replicas.",
                "Scale or repair that pool, or create a pool with these tags. See [Pools and tags](../how-to/pools.md).",
            ),

            // Control plane and credentials of pools and proxies.
            Self::ControlPlaneUnavailable => act(
                "`kubectl get ccp` in the same namespace: does the control plane of `controlPlaneRef` exist, and what does its `Ready` say?",
                "Create or correct it. The operator notices at once.",
            ),
            Self::AwaitingControlPlane => Wait(
                "The control plane exists and is on its way. If it takes more than a few minutes, see its conditions `OperatorAccessReady` and `DeploymentReady`.",
            ),
            Self::OperatorAccessNotReady
            | Self::OperatorTokenSecretRefMissing
            | Self::OperatorTokenSecretRefInvalid => act(
                "The condition `OperatorAccessReady` of the control plane, whose reason says why.",
                "What the entry of that reason says. Or give the pool a token of its own in `bootstrap.credentialsSecretRef`.",
            ),
            Self::OperatorTokenSecretUnavailable => Wait(
                "The control plane creates the Secret again. If it stays, see its condition `OperatorAccessReady`.",
            ),
            Self::BootstrapSecretUnavailable | Self::CredentialsSecretUnavailable => act(
                "`bootstrap.credentialsSecretRef`: name and key (`token` unless given).",
                "Create the Secret in the namespace of the object. The operator notices at once.",
            ),
            Self::SecretUnreadable | Self::SecretUnknown => Wait(
                "The operator retries with growing delays and changes nothing meanwhile. If it stays, see whether it may read Secrets there ([permissions](permissions.md)).",
            ),
            Self::SecretLost => Wait(
                "The pool gets another key, and its pods roll. If it comes back, something keeps emptying or deleting the Secret.",
            ),

            // The key of a pool.
            Self::Creating | Self::Recording | Self::FirstKey => {
                Wait("Seconds. `status.pendingKey` shows the key that is being created.")
            }
            Self::Rotating => Wait(
                "Seconds, until the new key is proven. Then the pods roll. `status.staleKeys` shows the old key until the last old daemon has stopped.",
            ),
            Self::TagsChanged
            | Self::KeyNameChanged
            | Self::OrganizationChanged
            | Self::ControlPlaneChanged => Wait(
                "The new key is proven first, then the pods roll. A daemon that runs a build has its grace period (10 minutes unless set) to finish it; a longer build fails. It is over when `Ready` is True and `status.staleKeys` is empty. For longer builds see [Pools and tags](../how-to/pools.md#what-if-builds-take-longer-than-ten-minutes).",
            ),
            Self::KeyRefused => {
                Wait("Somebody deleted the key in coderd. The pool gets another one, and its pods roll.")
            }
            Self::KeyConflict => act(
                "`coder provisioner keys list --org ORGANIZATION` shows who has the name. Keys of other tools are never touched.",
                "Leave `spec.key.name` out, or choose another one: only a name that you set can conflict. Or delete the other key, if nobody needs it; the operator looks again within `--verify-interval` (10 minutes).",
            ),
            Self::KeyLeftAlone => act(
                "The event names the key. `coder provisioner keys list --org ORGANIZATION`.",
                "Delete it with `coder provisioner keys delete NAME --org ORGANIZATION`, if nobody needs it.",
            ),
            Self::KeyAbandoned => act(
                "The event names the key, its organization and its coderd.",
                "Delete it with `coder provisioner keys delete NAME --org ORGANIZATION`.",
            ),
            Self::OrganizationNotFound => act(
                "`coder organizations show all`, with the account of the token.",
                "Correct `spec.organizationName`, or use a token that may see the organization.",
            ),
            Self::ListIncomplete => act(
                "The rights of the token in `bootstrap.credentialsSecretRef`: it must see all keys of the organization.",
                "Use the token of an owner.",
            ),
            Self::PodsUnknown => Wait("The old key stays meanwhile, so that no daemon is cut."),

            // The daemons of a pool.
            Self::Connecting => Wait("Up to three minutes after the pod is ready."),
            Self::NoPodsReady => act(
                "`DeploymentReady` and `Ready` of the pool, and `kubectl describe pod`.",
                "What the reason of `Ready` says.",
            ),
            Self::NoneConnected | Self::SomeConnected => act(
                "`kubectl logs` of the pods that the message names. Can they reach the address in `CODER_URL`? Do they trust its certificate?",
                "Let the pods reach coderd. A CA of your own goes into `certs.secrets`.",
            ),
            Self::StoppedTrying => Wait(
                "The operator deletes those pods once, with their grace period. If the reason stays, delete the pods by hand and see their logs.",
            ),
            Self::DuplicateName => act(
                "`extraEnv` and `extraArgs` of the pool, for `CODER_PROVISIONER_DAEMON_NAME` and `--name`; and the daemons in coderd's dashboard.",
                "Leave the name out. Each daemon then has the name of its pod.",
            ),
            Self::KeyNotAccepted => {
                Wait("The operator verifies the key at once, creates another one and rolls the pods.")
            }
            Self::VersionRefused => act(
                "The message names both versions. `spec.image` of the pool is newer than coderd.",
                "Leave `spec.image` out: the pool then follows what the control plane has rolled out.",
            ),

            // The scaling of a pool.
            Self::ScalingUp => Wait(
                "Until the new pods are ready and their daemons connected: seconds, or minutes if the cluster adds a node. Pods that do not start become `StartsFail`.",
            ),
            Self::WaitingForIdle => Wait(
                "`status.autoscaling.until` says when time alone may change that: most often, when the first daemon may leave.",
            ),
            Self::AtMaximum => act(
                "`status.autoscaling`: how many jobs wait and how many daemons are busy. The metric `coder_k8s_pool_jobs_longest_wait_seconds` shows for how long.",
                "Raise `spec.autoscaling.maxReplicas`, if jobs should not wait. See [Scale a pool by its queue](../how-to/autoscaling.md).",
            ),
            Self::StartsFail => act(
                "`kubectl describe pod` of the pods that are not ready, and the events of the ReplicaSet: a quota, an image that cannot be pulled, no room on any node.",
                "Correct the cause. The pool grows again as soon as a pod starts.",
            ),
            Self::QueueUnknown => act(
                "The message, and `JobsRunnable` and `OperatorAccessReady` of the control plane, which say why coderd does not answer. A token that may list daemons may not be allowed to list jobs.",
                "Let coderd answer. Nothing that may run a build stops meanwhile; after 15 minutes pods that never connected leave.",
            ),
            Self::TimeZoneUnknown => act(
                "The message names the zone. The operator has the time zones of its release.",
                "Use the canonical name of the zone, such as `Europe/Berlin`, or a newer release of the operator.",
            ),
            Self::ScaledByOthers => act(
                "The message names who wrote the replicas. `kubectl get hpa,scaledobject` lists autoscalers.",
                "Remove that autoscaler, or `spec.autoscaling`. Then clear what it wrote: `kubectl patch cprov NAME --type=merge --patch '{\"spec\":{\"replicas\":0}}'`, and the same with `null`.",
            ),

            // The registration of a proxy.
            Self::Registering | Self::Updating | Self::FirstRegistration | Self::TokenLost => {
                Wait("Seconds. `status.pendingRegistration` shows the registration that is being created.")
            }
            Self::TokenSecretUnavailable => act(
                "`proxySessionTokenSecretRef`: name and key (`token` unless given).",
                "Create the Secret. The operator notices at once.",
            ),
            Self::ProxyConflict => act(
                "`coder wsproxy ls` shows who has the name.",
                "Choose another name, or delete the other proxy, if nobody needs it.",
            ),
            Self::ProxyAbandoned => act(
                "The event names the registration and its coderd.",
                "Delete it with `coder wsproxy delete NAME`.",
            ),
            Self::NotReported | Self::Unregistered => Wait(
                "The pods register when they start. If it takes more than a minute, see their logs: they must reach the primary access URL.",
            ),
            Self::Unhealthy => act(
                "The dashboard of coderd (Deployment, Workspace proxies) quotes the errors; so do the logs of the pods.",
                "Correct what they complain about. The most common are a wildcard host that does not resolve and a relay that is blocked.",
            ),
            Self::Unknown => Wait("coderd checks its proxies about once a minute."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_one_paragraph_of_whole_sentences() {
        for reason in Reason::ALL {
            let texts = match reason.advice() {
                Nothing => vec![],
                Wait(text) => vec![text],
                Act { look, act } => vec![look, act],
            };
            for text in texts {
                assert!(text.ends_with(['.', '?']) && !text.contains(['\n', '|']), "{reason}: {text}");
            }
        }
    }

    #[test]
    fn chapters_follow_the_order_of_the_reasons() {
        let places = Reason::CHAPTERS
            .map(|(first, _)| Reason::ALL.iter().position(|reason| *reason == first).unwrap_or(usize::MAX));
        assert!(places.is_sorted() && places[0] == 0, "{places:?}");
    }
}
