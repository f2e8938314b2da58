//! Asks coderd for daemons and jobs.
//!
//! The token is the operator token of the control plane, else that of a pool with credentials of its own. It is bound to the
//! deployment that it belongs to and is never sent to another. Nothing here writes.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason};
use coder_k8s_coderd::{
    BoundToken, Client, CoderdError, DaemonFilter, ErrorKind, IdentifiedServer, Job, JobFilter, JobStatus,
    ListedDaemonStatus,
};
use coder_k8s_core::{
    daemon_listing,
    outcome::{Blocker, Retry},
    target::{Credentials, CredentialsKind},
};
use kube::ResourceExt;

use super::{organization, plane_of, server};
use crate::{
    coderd::{blocker_of, retry_of, targets},
    controller::Context,
};

/// What coderd answers about one organization.
pub(super) struct Answer {
    pub(super) daemons: Vec<daemon_listing::ListedDaemon>,
    pub(super) jobs: Option<Vec<daemon_listing::PendingJob>>,
    /// Why `jobs` is None.
    pub(super) blocker: Option<Blocker>,
    /// The token that coderd accepted.
    pub(super) token: BoundToken,
}

/// Why a poll brought no answer.
#[derive(Clone)]
pub(super) struct PollFailure {
    pub(super) blocker: Blocker,
    /// None: coderd was not asked, and the next attempt is at the next interval.
    pub(super) retry: Option<Retry>,
}

impl From<Blocker> for PollFailure {
    fn from(blocker: Blocker) -> Self {
        Self { blocker, retry: None }
    }
}

impl From<CoderdError> for PollFailure {
    fn from(error: CoderdError) -> Self {
        Self { retry: Some(retry_of(&error)), blocker: blocker_of(&error) }
    }
}

/// Lists the live daemons and the pending jobs of an organization.
pub(super) async fn daemons_and_jobs(
    server: &IdentifiedServer,
    token: Option<BoundToken>,
    plane: &CoderControlPlane,
    organization: &str,
    pools: &[Arc<CoderProvisioner>],
    ctx: &Context,
) -> Result<Answer, PollFailure> {
    let (client, token, daemons) = daemons(server, token, plane, organization, pools, ctx).await?;
    let (jobs, blocker) = match pending(&client, organization).await {
        Ok(jobs) => (Some(jobs), None),
        // The token of a pool may have the right to list daemons and not jobs.
        Err(error) if matches!(error.kind, ErrorKind::Forbidden { .. } | ErrorKind::NotFound { .. }) => {
            (None, Some(blocker_of(&error)))
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Answer { daemons, jobs, blocker, token })
}

/// The daemons of the pool's organization, read now. None: coderd does not answer.
pub(crate) async fn daemons_now(
    pool: &Arc<CoderProvisioner>,
    ctx: &Context,
) -> Option<Vec<daemon_listing::ListedDaemon>> {
    let (key, organization) = (plane_of(pool), organization(pool)?);
    let plane = ctx.caches.control_planes.get(&key.namespace, &key.name)?;
    let listed = async {
        let server = server(&plane, &key, ctx).await?.identify().await?;
        let token = ctx.daemon_poller.token(&key, &organization, &plane);
        let pools = std::slice::from_ref(pool);
        daemons(&server, token, &plane, &organization, pools, ctx).await
    };
    match listed.await {
        Ok((_, _, daemons)) => Some(daemons),
        Err(PollFailure { blocker, .. }) => {
            tracing::info!(reason = %blocker.reason, "cannot list busy daemons: {}", blocker.message);
            None
        }
    }
}

/// The daemons, with the client and token that listed them. If coderd refuses the remembered token, the Secret is read again,
/// because the token may have been replaced.
async fn daemons(
    server: &IdentifiedServer,
    remembered: Option<BoundToken>,
    plane: &CoderControlPlane,
    organization: &str,
    pools: &[Arc<CoderProvisioner>],
    ctx: &Context,
) -> Result<(Client, BoundToken, Vec<daemon_listing::ListedDaemon>), PollFailure> {
    if let Some(token) = remembered {
        let client = server.authenticate(&token).map_err(targets::blocker_of_credential)?;
        match alive(&client, organization).await {
            Ok(daemons) => return Ok((client, token, daemons)),
            Err(error) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let token = token(server, plane, pools, ctx).await?;
    let client = server.authenticate(&token).map_err(targets::blocker_of_credential)?;
    let daemons = alive(&client, organization).await?;
    Ok((client, token, daemons))
}

/// Without `offline` coderd lists only daemons that sent a heartbeat in the last 90 seconds.
async fn alive(
    client: &Client,
    organization: &str,
) -> Result<Vec<daemon_listing::ListedDaemon>, CoderdError> {
    let listed = client.provisioner_daemons(organization, DaemonFilter { offline: false }).await?;
    let daemons = listed.into_iter().map(|daemon| daemon_listing::ListedDaemon {
        busy: daemon.status == Some(ListedDaemonStatus::Busy),
        name: daemon.name,
        key: daemon.key_id,
        version: daemon.version,
        tags: daemon.tags,
        last_seen: daemon.last_seen_at,
    });
    let mut daemons: Vec<_> = daemons.collect();
    daemons.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(daemons)
}

async fn pending(
    client: &Client,
    organization: &str,
) -> Result<Vec<daemon_listing::PendingJob>, CoderdError> {
    let listed = client.provisioner_jobs(organization, JobFilter { pending_only: true }).await?;
    // Filtered here too: the answer is not trusted to respect the filter.
    let is_pending = |job: &Job| job.status == JobStatus::Pending;
    Ok(listed
        .into_iter()
        .filter(is_pending)
        .map(|job| daemon_listing::PendingJob { tags: job.tags, since: job.created_at })
        .collect())
}

/// The operator token of the control plane, else the token of a pool, bound to the deployment that it belongs to.
async fn token(
    server: &IdentifiedServer,
    plane: &CoderControlPlane,
    pools: &[Arc<CoderProvisioner>],
    ctx: &Context,
) -> Result<BoundToken, PollFailure> {
    let no_token = || {
        Blocker::new(
            Reason::OperatorAccessNotReady,
            "waiting for a token: neither the control plane nor a pool has one",
        )
    };
    let all = pools.iter().map(|pool| (pool, targets::credentials_of_pool(pool, Some(plane))));
    let rank = |found: &Result<Credentials, Blocker>| match found {
        Ok(credentials) if credentials.kind == CredentialsKind::Operator => 0,
        Ok(_) => 1,
        Err(_) => 2,
    };
    let Some((pool, found)) = all.min_by_key(|(_, found)| rank(found)) else {
        return Err(no_token().into());
    };
    let found = found?;
    let Some(secret) = &found.secret else { return Err(no_token().into()) };
    let token = targets::read_token(secret, &plane.namespace().unwrap_or_default(), ctx).await?;
    let missing = || targets::missing_token(Reason::OperatorTokenSecretUnavailable, secret);
    let token = token.ok_or_else(missing)?;
    let recorded = match found.kind {
        CredentialsKind::Operator => plane.status.as_ref().and_then(|status| status.deployment_id.clone()),
        CredentialsKind::Bootstrap => pool.status.as_ref().and_then(|status| status.deployment_id.clone()),
    };
    // Nothing is recorded of a token that the operator has not used yet: this is its first contact.
    Ok(BoundToken::new(token, recorded.unwrap_or_else(|| server.deployment_id().to_owned())))
}
