//! Asking coderd who is there: with the control plane's token, or with that of a pool which brings its own.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason};
use coder_k8s_coderd::{Client, Daemons, Error, ErrorKind, Job, JobStatus, Jobs};
use coder_k8s_core::{
    daemon_listing,
    outcome::Retry,
    provisioner::keys::{Blocker, Credentials, CredentialsKind},
};
use coder_k8s_engine::{key::Key, secret};
use kube::ResourceExt;

use super::{RememberedClient, organization, plane_of, retry_of};
use crate::controller::{Context, coderd};

/// What coderd said.
pub(super) struct Answer {
    pub(super) daemons: Vec<daemon_listing::Daemon>,
    pub(super) jobs: Option<Vec<daemon_listing::Job>>,
    /// Why there are no jobs.
    pub(super) blocker: Option<Blocker>,
    pub(super) kept: RememberedClient,
}

/// Why it said nothing.
pub(super) struct Unanswered {
    pub(super) blocker: Blocker,
    /// None: at the next interval.
    pub(super) retry: Option<Retry>,
}

impl From<Blocker> for Unanswered {
    fn from(blocker: Blocker) -> Self {
        Self { blocker, retry: None }
    }
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        Self { retry: Some(retry_of(&error)), blocker: blocker(&error) }
    }
}

fn blocker(error: &Error) -> Blocker {
    Blocker::new(error.reason(), error.to_string())
}

/// Asks for the daemons of an organization that are alive, and the jobs that wait there.
pub(super) async fn ask(
    plane: &CoderControlPlane,
    organization: &str,
    pools: &[Arc<CoderProvisioner>],
    key: &Key,
    ctx: &Context,
) -> Result<Answer, Unanswered> {
    let generation = plane.metadata.generation;
    let kept = ctx.daemon_poller.kept(key, organization, generation);
    let (client, listed) = listed(kept, plane, organization, pools, ctx).await?;
    let (jobs, blocker) = match pending(&client, organization).await {
        Ok(jobs) => (Some(jobs), None),
        // A pool's own token may list daemons and nothing else.
        Err(error) if matches!(error.kind, ErrorKind::Forbidden { .. } | ErrorKind::NotFound { .. }) => {
            (None, Some(blocker(&error)))
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Answer { daemons: listed, jobs, blocker, kept: RememberedClient { generation, client } })
}

/// The daemons of the pool's organization at this moment. None: coderd cannot be asked.
pub(crate) async fn daemons_now(
    pool: &Arc<CoderProvisioner>,
    ctx: &Context,
) -> Option<Vec<daemon_listing::Daemon>> {
    let (key, organization) = (plane_of(pool), organization(pool)?);
    let plane = ctx.caches.control_planes.get(&key.namespace, &key.name)?;
    let kept = ctx.daemon_poller.kept(&key, &organization, plane.metadata.generation);
    let found = listed(kept, &plane, &organization, std::slice::from_ref(pool), ctx).await;
    match found {
        Ok((_, daemons)) => Some(daemons),
        Err(Unanswered { blocker, .. }) => {
            tracing::info!(
                reason = %blocker.reason,
                "cannot ask which daemons are at work: {}",
                blocker.message
            );
            None
        }
    }
}

/// The daemons, with the client that got them. A token that is no longer accepted may have been replaced.
async fn listed(
    kept: Option<Client>,
    plane: &CoderControlPlane,
    organization: &str,
    pools: &[Arc<CoderProvisioner>],
    ctx: &Context,
) -> Result<(Client, Vec<daemon_listing::Daemon>), Unanswered> {
    if let Some(client) = kept {
        match alive(&client, organization).await {
            Ok(daemons) => return Ok((client, daemons)),
            Err(error) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let client = client(plane, pools, ctx).await?;
    let daemons = alive(&client, organization).await?;
    Ok((client, daemons))
}

async fn alive(client: &Client, organization: &str) -> Result<Vec<daemon_listing::Daemon>, Error> {
    let listed = client.provisioner_daemons(organization, Daemons { offline: false }).await?;
    let daemons = listed.into_iter().map(|daemon| daemon_listing::Daemon {
        busy: daemon.status == Some(coder_k8s_coderd::DaemonStatus::Busy),
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

async fn pending(client: &Client, organization: &str) -> Result<Vec<daemon_listing::Job>, Error> {
    let which = Jobs { status: vec![JobStatus::Pending] };
    let listed = client.provisioner_jobs(organization, &which).await?;
    let waits = |job: &Job| job.status == JobStatus::Pending;
    Ok(listed
        .into_iter()
        .filter(waits)
        .map(|job| daemon_listing::Job { tags: job.tags, since: job.created_at })
        .collect())
}

/// A client with the control plane's token, else with that of a pool.
async fn client(
    plane: &CoderControlPlane,
    pools: &[Arc<CoderProvisioner>],
    ctx: &Context,
) -> Result<Client, Unanswered> {
    let all = pools.iter().map(|pool| (pool, coderd::credentials(pool, Some(plane))));
    let mut all: Vec<_> = all.collect();
    let rank = |found: &Result<Credentials, Blocker>| match found {
        Ok(credentials) if credentials.kind == CredentialsKind::Operator => 0,
        Ok(_) => 1,
        Err(_) => 2,
    };
    all.sort_by_key(|(_, found)| rank(found));
    let Some((pool, credentials)) = all.into_iter().next() else {
        return Err(Blocker::new(Reason::OperatorAccessNotReady, "there is no token".to_owned()).into());
    };
    let credentials = credentials?;
    let Some(place) = &credentials.secret else {
        return Err(Blocker::new(Reason::OperatorAccessNotReady, "there is no token".to_owned()).into());
    };
    let namespace = plane.namespace().unwrap_or_default();
    let unreadable = |message: String| Blocker::new(Reason::SecretUnreadable, message);
    let read = secret::read(&ctx.client, &namespace, &place.name).await;
    let held = read.map_err(|error| unreadable(error.to_string()))?;
    let token = held.and_then(|held| held.text(&place.key)).ok_or_else(|| {
        let message = format!("Secret {} with the key {} is not there, or empty", place.name, place.key);
        Blocker::new(Reason::OperatorTokenSecretUnavailable, message)
    })?;
    let anonymous = coderd::client(plane, ctx).await?;
    if credentials.kind == CredentialsKind::Bootstrap {
        // Nobody but the pool vouches for its token: it goes to the deployment that it belongs to.
        let answers = anonymous.build_info().await?.deployment_id;
        let own = pool.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        if own.is_some_and(|own| *own != answers) {
            let message = "another deployment answers than the one that is recorded".to_owned();
            return Err(Blocker::new(Reason::ControlPlaneUnavailable, message).into());
        }
    }
    let bad = |bad: coder_k8s_coderd::BadTarget| Blocker::new(Reason::BadToken, bad.to_string());
    Ok(anonymous.with_token(&token).map_err(bad)?)
}
