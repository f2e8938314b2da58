//! Giving a token back: when the access is disabled, when it comes another way, and when the object goes.

use coder_k8s_api::{AccessMethod, CoderControlPlane, Reason, names::component};
use coder_k8s_coderd::{Client, ErrorKind};
use coder_k8s_core::{
    controlplane::coderd::{
        Revocation,
        access::{self, Held},
    },
    outcome::{self, EventNote},
};
use coder_k8s_engine::{apply::Owner, key::Key, queue::Action};
use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use std::time::Duration;

use super::{
    Failed, client, find_authority, first_user,
    own::{Asking, id},
    postgres, store,
};
use crate::{
    controller::{Context, children},
    controlplane::talk::{Talk, may_write},
};

/// How soon to look again whether dependents have gone.
const DEPENDENTS: Duration = Duration::from_millis(500);
/// How long after the control plane its dependents may be deleted and still find the token: one command deletes one
/// object after the other.
const TOGETHER: SignedDuration = SignedDuration::from_secs(3);

/// Gives the access up.
pub(in crate::controlplane::talk) async fn disable(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Action {
    if access::is_given_up(object) || matches!(talk.report.revocation, Some(Revocation::Done)) {
        return Action::AwaitChange;
    }
    match give_back(talk, key, object, ctx).await {
        Ok(()) => {
            talk.report.revocation = Some(Revocation::Done);
            ctx.talks.failures.forget(key);
            Action::AwaitChange
        }
        // Nothing was ever made that could not be found now.
        Err(Failed { retry: None, .. }) if access::held(object).is_none() => {
            talk.report.revocation = Some(Revocation::Done);
            Action::AwaitChange
        }
        Err(failed) => {
            let retry = failed.retry.unwrap_or(outcome::Retry::Backoff);
            tracing::warn!(
                reason = %failed.blocker.reason,
                "the operator's token is not revoked: {}",
                failed.blocker.message
            );
            talk.report.revocation = Some(Revocation::Failing(failed.blocker));
            Action::RequeueAfter(ctx.talks.failures.failed(key, retry))
        }
    }
}

/// Cleans up after an object that is going, within a deadline.
pub(in crate::controlplane::talk) async fn go(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Action {
    if !access::needs_cleaning(object, &talk.report) {
        return Action::AwaitChange;
    }
    let since = object.metadata.deletion_timestamp.as_ref().map_or_else(Timestamp::now, |at| at.0);
    let limit = SignedDuration::try_from(ctx.cleanup_timeout).unwrap_or(SignedDuration::MAX);
    let left = Duration::try_from(limit - Timestamp::now().duration_since(since)).unwrap_or_default();
    let just_now = Timestamp::now().duration_since(since) < TOGETHER;
    if !left.is_zero() && any_dependent(key, ctx, just_now) {
        // They need the token to clean up after themselves.
        return Action::RequeueAfter(DEPENDENTS.min(left));
    }
    let failed = match give_back(talk, key, object, ctx).await {
        Ok(()) => {
            talk.report.revocation = Some(Revocation::Done);
            return Action::AwaitChange;
        }
        Err(failed) => failed,
    };
    if left.is_zero() {
        let name = coder_k8s_core::names::operator_token(&key.namespace, &key.name);
        let message = format!(
            "the operator's token {name} may still be valid in coderd and could not be revoked: {}",
            failed.blocker.message
        );
        tracing::warn!("{message}");
        let note = EventNote { warning: true, reason: Reason::TokenAbandoned, message };
        ctx.events.publish(&object.object_ref(&()), &note).await;
        talk.report.revocation = Some(Revocation::Abandoned);
        return Action::AwaitChange;
    }
    let delay = ctx.talks.failures.failed(key, failed.retry.unwrap_or(outcome::Retry::Backoff));
    talk.report.revocation = Some(Revocation::Failing(failed.blocker));
    Action::RequeueAfter(delay.min(left))
}

/// Whether an object that uses the token is itself going, or may yet be deleted together with the control plane.
fn any_dependent(key: &Key, ctx: &Context, just_now: bool) -> bool {
    let caches = &ctx.caches;
    ctx.references.of(key).into_iter().any(|dependent| {
        let (namespace, name) = (&dependent.namespace, &dependent.name);
        let waits = |meta: &kube::core::ObjectMeta| {
            let held = meta.finalizers.as_ref().is_some_and(|all| !all.is_empty());
            meta.deletion_timestamp.is_some() || (just_now && held)
        };
        caches.provisioners.get(namespace, name).is_some_and(|object| waits(object.meta()))
            || caches.workspace_proxies.get(namespace, name).is_some_and(|object| waits(object.meta()))
    })
}

/// Revokes all tokens of ours and removes their Secret.
async fn give_back(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), Failed> {
    if !may_write(ctx) {
        return Err(Failed::new(Reason::NotLeading, "another operator leads", outcome::Retry::Backoff));
    }
    let Some(owner) = children::owner_of(object, component::CONTROL_PLANE) else { return Ok(()) };
    let method = object.spec.operator_access.method;
    let held = access::held(object).unwrap_or(Held { method, user_id: None });
    let place = store::look(talk, &owner, object, ctx).await?;
    talk.report.foreign = None;
    match held.method {
        AccessMethod::TokenSecret => return Ok(()),
        AccessMethod::Postgres => {
            // Nobody shall find a token that is about to be worthless.
            clear(place.as_ref(), &owner, ctx).await?;
            postgres::revoke(key, object, ctx).await?;
        }
        AccessMethod::FirstUser => {
            let current = place.as_ref().and_then(|place| place.token.clone());
            talk.token = current;
            through_coderd(talk, key, object, ctx).await?;
            clear(place.as_ref(), &owner, ctx).await?;
        }
    }
    talk.token = None;
    let replaced =
        object.status.as_ref().and_then(|status| status.operator_token.as_ref()?.replaces.as_ref());
    if replaced.is_some_and(|replaced| replaced.method == AccessMethod::Postgres) {
        postgres::revoke(key, object, ctx).await?;
    }
    Ok(())
}

async fn clear(place: Option<&store::CoderdTarget>, owner: &Owner, ctx: &Context) -> Result<(), Failed> {
    match place {
        Some(place) => place.clear(owner, ctx).await,
        None => Ok(()),
    }
}

/// Revokes tokens of the first administrator: with the token itself, else after logging in once more.
async fn through_coderd(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), Failed> {
    find_authority(talk, key, object, ctx)
        .await
        .map_err(|retry| Failed::new(Reason::Error, "the CA of coderd could not be read", retry))?;
    let Some(anonymous) = client(talk, object, ctx) else {
        return Err(Failed::for_good(Reason::BadTarget, "coderd cannot be called"));
    };
    let asking = Asking {
        object,
        key,
        ctx,
        anonymous: &anonymous,
        server: None,
        current: None,
        renews: false,
        refused: false,
    };
    if let Some(token) = talk.token.clone()
        && let Ok(client) = anonymous.with_token(&token)
    {
        // It removes the others first and itself last.
        match client.me().await {
            Ok(_) => {
                first_user::remove_others(&asking, &client, "me", Some(id(&token))).await?;
                return first_user::delete(&client, "me", id(&token)).await;
            }
            Err(error) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {}
            Err(error) => return Err(Failed::from(&error)),
        }
    }
    let session = first_user::log_in(&asking).await?;
    let Ok(client) = anonymous.with_token(&session) else { return Ok(()) };
    let removed = first_user::remove_others(&asking, &client, "me", None).await;
    first_user::delete(&client, "me", id(&session)).await?;
    removed
}

/// Gives back a token that came another way than the one that works now.
pub(super) async fn outdated(
    talk: &mut Talk,
    client: Option<&Client>,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), outcome::Retry> {
    let Some(old) = access::outdated(object) else { return Ok(()) };
    let method = object.spec.operator_access.method;
    if method != AccessMethod::TokenSecret && talk.report.grant.is_none() {
        // Only what works by the record is a successor.
        return Ok(());
    }
    if !may_write(ctx) {
        return Err(outcome::Retry::Backoff);
    }
    let revoked = match (old.method, client) {
        (AccessMethod::Postgres, _) => postgres::revoke(key, object, ctx).await,
        (AccessMethod::FirstUser, Some(client)) => {
            let user = old.user_id.as_deref().unwrap_or("me");
            let asking = Asking {
                object,
                key,
                ctx,
                anonymous: client,
                server: None,
                current: None,
                renews: false,
                refused: false,
            };
            first_user::remove_others(&asking, client, user, None).await
        }
        (AccessMethod::FirstUser | AccessMethod::TokenSecret, _) => Ok(()),
    };
    match revoked {
        Ok(()) => {}
        Err(Failed { blocker, retry: None }) => {
            let message = format!(
                "the token that the operator had by {:?} may still be valid in coderd and could not be revoked: {}",
                old.method, blocker.message
            );
            tracing::warn!("{message}");
            let note = EventNote { warning: true, reason: Reason::TokenAbandoned, message };
            ctx.events.publish(&object.object_ref(&()), &note).await;
        }
        Err(Failed { blocker, retry: Some(retry) }) => {
            tracing::warn!(
                reason = %blocker.reason,
                "an earlier token is not revoked yet: {}",
                blocker.message
            );
            return Err(retry);
        }
    }
    if let Some(grant) = &mut talk.report.grant {
        grant.replaces = None;
    } else {
        talk.report.revocation = Some(Revocation::Done);
        forget_secret(talk, object, ctx).await;
    }
    Ok(())
}

/// Removes the Secret of a token that was revoked.
async fn forget_secret(talk: &mut Talk, object: &CoderControlPlane, ctx: &Context) {
    let Some(owner) = children::owner_of(object, component::CONTROL_PLANE) else { return };
    let Ok(Some(place)) = store::look(talk, &owner, object, ctx).await else { return };
    if let Err(failed) = place.clear(&owner, ctx).await {
        tracing::warn!("{}", failed.blocker.message);
    }
}
