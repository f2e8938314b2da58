//! Revokes the operator token, when `operatorAccess.disabled` is set and when the object is deleted.
//!
//! What to revoke, in which order, and when to give up is decided in `core::controlplane::coderd::revocation`; this file
//! performs it in the database or in coderd and removes the Secret. A token that a person supplied is never revoked.

use std::{convert::Infallible, ops::ControlFlow, time::Duration};

use coder_k8s_api::{CoderKind, Reason, names::finalizer};
use coder_k8s_coderd::{CallLimits, ErrorKind};
use coder_k8s_core::{
    cleanup::Cleanup,
    controlplane::coderd::{
        Step,
        access::{self, Revocation},
        revocation::{self, ObservedRevocation, RevocationEffect, RevocationReport, TokenDeletion},
    },
    outcome::{Blocker, Retry},
};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use jiff::Timestamp;
use kube::Resource;

use super::{
    Plane, SyncState, database, first_user,
    token::{StoredSecret, token_id},
};
use crate::{
    coderd::{Protocol, blocker_of, run_protocol, targets},
    controller::{CleanupAttempt, Context},
    intervals::DELETED_TOGETHER,
};

/// Revokes the token because the access is disabled.
pub(super) async fn on_disabled(state: &mut SyncState, plane: Plane<'_>) -> Action {
    if access::is_revoked(plane.object) || matches!(state.report.revocation, Some(Revocation::Done)) {
        return Action::AwaitChange;
    }
    revoke(state, None, plane).await
}

/// Revokes the token of an object that is being deleted, within the clean-up deadline.
pub(super) async fn on_deletion(state: &mut SyncState, plane: Plane<'_>) -> Action {
    let Plane { key, object, ctx, .. } = plane;
    if !access::needs_cleaning(object, &state.report) {
        return Action::AwaitChange;
    }
    let Some(CleanupAttempt { cleanup, overdue }) = ctx.begin_cleanup(key, object, finalizer::CONTROL_PLANE)
    else {
        return Action::AwaitChange;
    };
    let now = Timestamp::now();
    let since = object.metadata.deletion_timestamp.as_ref().map_or(now, |at| at.0);
    let is_recent = now.duration_since(since) < DELETED_TOGETHER;
    let has_dependents = has_dependents(key, ctx, is_recent);
    let next = revoke(state, Some(TokenDeletion { cleanup, overdue, has_dependents }), plane).await;
    if access::needs_cleaning(object, &state.report) {
        ctx.cleanups.bound(key, next, Timestamp::now())
    } else {
        next
    }
}

async fn revoke(state: &mut SyncState, deletion: Option<TokenDeletion>, plane: Plane<'_>) -> Action {
    let Plane { key, object, ctx, .. } = plane;
    let observed = ObservedRevocation {
        token_name: plane.token_name(),
        recorded: access::minted_token(object),
        method: object.spec.operator_access.method,
        deletion,
        done: Vec::new(),
        blocker: None,
        last_blocker: match &state.report.revocation {
            Some(Revocation::Failing(blocker)) => Some(blocker.clone()),
            _ => None,
        },
    };
    state.report.foreign = None;
    let mut protocol = RevocationProtocol { observed, plane };
    let Some(report) = run_protocol(&mut protocol).await else {
        return Action::RequeueAfter(ctx.coderd_sync.schedule.failed(key, Retry::Backoff));
    };
    let RevocationReport { revocation, retry, within, event } = report;
    if let Some(blocker) = &protocol.observed.blocker {
        tracing::warn!(reason = %blocker.reason, "the operator token is not revoked: {}", blocker.message);
    }
    if let Some(event) = &event {
        ctx.events.publish(&object.object_ref(&()), event).await;
    }
    if matches!(revocation, Some(Revocation::Done)) {
        state.token = None;
        ctx.coderd_sync.schedule.succeeded(key);
    }
    state.report.revocation = revocation.or(state.report.revocation.take());
    let delay = retry.map(|retry| ctx.coderd_sync.schedule.failed(key, retry));
    [delay, within].into_iter().flatten().min().map_or(Action::AwaitChange, Action::RequeueAfter)
}

/// Whether an object that uses the token is being deleted, or may yet be deleted together with the control plane.
fn has_dependents(key: &ObjectKey, ctx: &Context, is_recent: bool) -> bool {
    let caches = &ctx.caches;
    ctx.references.of(key).into_iter().any(|dependent| {
        let (namespace, name) = (&dependent.namespace, &dependent.name);
        let meta = match CoderKind::named(dependent.kind) {
            Some(CoderKind::Provisioner) => {
                caches.provisioners.get(namespace, name).map(|pool| pool.metadata.clone())
            }
            Some(CoderKind::WorkspaceProxy) => {
                caches.workspace_proxies.get(namespace, name).map(|proxy| proxy.metadata.clone())
            }
            Some(CoderKind::ControlPlane) | None => None,
        };
        meta.is_some_and(|meta| {
            let has_finalizer = meta.finalizers.is_some_and(|all| !all.is_empty());
            meta.deletion_timestamp.is_some() || (is_recent && has_finalizer)
        })
    })
}

struct RevocationProtocol<'a> {
    observed: ObservedRevocation,
    plane: Plane<'a>,
}

impl Protocol for RevocationProtocol<'_> {
    type Query = Infallible;
    type Effect = RevocationEffect;
    type Done = RevocationReport;

    fn decide(&mut self) -> Step<Infallible, RevocationEffect, RevocationReport> {
        revocation::decide(&self.observed)
    }

    async fn ask(&mut self, query: Infallible) {
        match query {}
    }

    async fn act(&mut self, effect: RevocationEffect) -> ControlFlow<RevocationReport> {
        let began = tokio::time::Instant::now();
        // The fence of the Kubernetes client does not cover coderd and the database.
        let acted = if self.plane.ctx.fence.is_open() {
            match &effect {
                RevocationEffect::RemoveSecret => StoredSecret::remove(self.plane).await,
                RevocationEffect::RevokeInDatabase => {
                    self.in_time(Reason::DatabaseTimeout, Cleanup::call_timeout, database::revoke(self.plane))
                        .await
                }
                RevocationEffect::RevokeInCoderd { user_id } => {
                    let revoked = self.revoke_in_coderd(user_id.as_deref());
                    self.in_time(Reason::Timeout, Cleanup::attempt_timeout, revoked).await
                }
            }
        } else {
            Err(Blocker::new(
                Reason::NotLeading,
                "waiting for the leading instance of the operator to revoke the token",
            ))
        };
        if let Some(deletion) = &mut self.observed.deletion {
            deletion.cleanup.left = deletion.cleanup.left.saturating_sub(began.elapsed());
        }
        match acted {
            Ok(()) => self.observed.done.push(effect),
            Err(blocker) => self.observed.blocker = Some(blocker),
        }
        ControlFlow::Continue(())
    }
}

impl RevocationProtocol<'_> {
    /// The deadline of a deletion.
    fn cleanup(&self) -> Option<Cleanup> {
        self.observed.deletion.map(|deletion| deletion.cleanup)
    }

    /// The result of an effect, which in a deletion must come within a part of what is left of its deadline.
    async fn in_time(
        &self,
        reason: Reason,
        timeout: fn(Cleanup) -> Duration,
        revoked: impl Future<Output = Result<(), Blocker>>,
    ) -> Result<(), Blocker> {
        let Some(limit) = self.cleanup().map(timeout) else { return revoked.await };
        tokio::time::timeout(limit, revoked).await.unwrap_or_else(|_| {
            Err(Blocker::new(reason, "no complete answer in the time that the deletion has left"))
        })
    }

    /// Deletes the tokens of the first user: with the token in the Secret, or after a login if coderd refuses it. `user_id`
    /// is the user on record.
    async fn revoke_in_coderd(&self, user_id: Option<&str>) -> Result<(), Blocker> {
        let plane = self.plane;
        let stored = StoredSecret::read(plane).await?;
        let current = stored.ok().and_then(|secret| secret.token());
        let mut server = targets::server_of(plane.object, plane.ctx).await?;
        if let Some(cleanup) = self.cleanup() {
            server = server.within(CallLimits {
                timeout: Some(cleanup.call_timeout()),
                patience: Some(cleanup.patience()),
            });
        }
        let server = server.identify().await.map_err(|error| blocker_of(&error))?;
        let known = plane.object.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        if known.is_some_and(|known| known != server.deployment_id()) {
            // Neither the token nor the password is for this server.
            let message = "another deployment answers than the one that accepted the operator token";
            return Err(Blocker::new(Reason::DeploymentChanged, message));
        }
        if let Some(token) = current
            && let Ok(client) = plane.client(&server, &token, &[], true)
        {
            match (client.me().await, user_id) {
                // The token in the Secret came by another method, and its user may delete the tokens of the first user.
                (Ok(me), Some(user)) if user != me.id => {
                    return first_user::remove_tokens(plane, &client, user, None).await;
                }
                (Ok(_), _) => {
                    // The others first: the token that makes the calls is deleted last.
                    first_user::remove_tokens(plane, &client, "me", Some(token_id(&token))).await?;
                    return first_user::delete(&client, "me", token_id(&token)).await;
                }
                (Err(error), _) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {}
                (Err(error), _) => return Err(blocker_of(&error)),
            }
        }
        first_user::remove_all(plane, &server).await
    }
}
