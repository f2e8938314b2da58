//! A token of the operator's own: made, kept in a Secret, proven, and replaced before it ends.
//!
//! The old one works until the new one is proven. Every step can be the last before a crash: whoever comes next looks
//! at the Secret and at coderd, and goes on from there.

use coder_k8s_api::{AccessMethod, CoderControlPlane, Reason, names::component};
use coder_k8s_coderd::{Client, ErrorKind, User};
use coder_k8s_core::{
    controlplane::coderd::{Access, Blocker, Grant, access},
    outcome,
};
use coder_k8s_engine::{apply::Owner, key::Key};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};

use super::{Failed, first_user, postgres, revoke, store, turn_down, with_token};
use crate::{
    controller::{Context, children},
    controlplane::talk::{Talk, blocker, may_write},
};

/// How long a token of ours lives if nobody says.
const LIFETIME_DAYS: i64 = 365;

/// A token that was made, or found to be good.
pub(super) struct Made {
    pub(super) token: SecretString,
    pub(super) expires: Timestamp,
    pub(super) renew_after: Timestamp,
    /// Whether nothing else of ours is left beside it.
    pub(super) settled: bool,
}

/// What a way to a token needs.
pub(super) struct Asking<'a> {
    pub(super) object: &'a CoderControlPlane,
    pub(super) key: &'a Key,
    pub(super) ctx: &'a Context,
    pub(super) anonymous: &'a Client,
    /// The identity of the server.
    pub(super) server: Option<String>,
    /// The token that there is.
    pub(super) current: Option<&'a SecretString>,
    /// Whether it came this way and works: it only gets a successor.
    pub(super) renews: bool,
    /// Whether coderd does not accept it.
    pub(super) refused: bool,
}

impl Asking<'_> {
    /// How long a token is to live.
    pub(super) fn lifetime(&self) -> SignedDuration {
        let days = self.object.spec.operator_access.token_lifetime_days.map_or(LIFETIME_DAYS, i64::from);
        SignedDuration::from_hours(24 * days)
    }

    /// Finds out whether the way is open, before anything is made or recorded.
    async fn prepare(&self) -> Result<(), Failed> {
        match self.object.spec.operator_access.method {
            AccessMethod::FirstUser => first_user::prepare(self).await,
            _ => postgres::prepare(self).await,
        }
    }

    async fn make(&self) -> Result<Made, Failed> {
        match self.object.spec.operator_access.method {
            AccessMethod::FirstUser => first_user::make(self).await,
            _ => postgres::make(self).await,
        }
    }

    /// Removes what is left of ours beside a token that is proven.
    async fn settle(&self, client: &Client, token: &SecretString) -> Result<(), Failed> {
        match self.object.spec.operator_access.method {
            AccessMethod::FirstUser => first_user::settle(self, client, token).await,
            _ => postgres::settle(self, token).await,
        }
    }
}

/// Why there must be another token, or why the one there is must be looked into.
enum Lack {
    /// There is none.
    Token,
    /// coderd does not accept it.
    Accepted,
    /// It ends soon, or nobody knows when.
    Time,
    /// Its user may not do everything, or is not in every organization.
    Rights,
}

/// Gets a client whose token coderd accepts. None: there is none, and the report says why.
pub(super) async fn establish(
    talk: &mut Talk,
    anonymous: &Client,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<Option<Client>, outcome::Retry> {
    let Some(owner) = children::owner_of(object, component::CONTROL_PLANE) else { return Ok(None) };
    let place = match store::look(talk, &owner, object, ctx).await {
        Ok(Some(place)) => place,
        Ok(None) => {
            let message = "the Secret for the operator's token belongs to somebody else".to_owned();
            turn_down(talk, object, Blocker::new(Reason::ForeignObject, message));
            return Ok(None);
        }
        Err(failed) => return note(talk, object, anonymous, false, failed),
    };
    let current = place.token.clone();
    talk.token.clone_from(&current);
    let lack = lacking(talk, current.as_ref(), anonymous, object).await?;
    let Some(lack) = lack else {
        let Some(token) = &current else { return Ok(None) };
        if let Err(failed) = store_and_tidy(talk, &place, token, &owner, ctx).await {
            return note(talk, object, anonymous, true, failed);
        }
        talk.report.access = Some(Access::Ready);
        talk.replaced = false;
        let client = with_token(talk, anonymous, token);
        revoke::outdated(talk, client.as_ref(), key, object, ctx).await?;
        return Ok(client);
    };
    let works = matches!(lack, Lack::Time | Lack::Rights);
    if works {
        talk.report.access = Some(Access::Ready);
        talk.report.token = Some(place.reference());
    }
    if matches!(lack, Lack::Accepted) && talk.replaced {
        turn_down(talk, object, unaccepted(object));
        return Ok(None);
    }
    if !may_write(ctx) {
        return Err(outcome::Retry::Backoff);
    }
    let refused = matches!(lack, Lack::Accepted);
    let asking = Asking {
        object,
        key,
        ctx,
        anonymous,
        server: talk.report.server.as_ref().map(|server| server.deployment_id.clone()),
        current: current.as_ref(),
        renews: works && renewal(object).is_some(),
        refused,
    };
    if !access::is_recorded(object) {
        if let Err(failed) = asking.prepare().await {
            return note(talk, object, anonymous, works, failed);
        }
        // What is about to be made must be known to whoever comes later.
        let replaces = access::outdated(object);
        talk.report.grant =
            Some(Grant { method: object.spec.operator_access.method, replaces, ..Grant::default() });
        talk.unrecorded = true;
        return Ok(current.clone().filter(|_| works).and_then(|token| with_token(talk, anonymous, &token)));
    }
    let made = match asking.make().await {
        Ok(made) => made,
        Err(failed) => return note(talk, object, anonymous, works, failed),
    };
    if let Err(failed) = store_and_tidy(talk, &place, &made.token, &owner, ctx).await {
        return note(talk, object, anonymous, works, failed);
    }
    talk.replaced |= refused;
    prove(talk, &asking, &made).await
}

/// Whether anything is wrong with the token that there is.
async fn lacking(
    talk: &mut Talk,
    current: Option<&SecretString>,
    anonymous: &Client,
    object: &CoderControlPlane,
) -> Result<Option<Lack>, outcome::Retry> {
    let Some(client) = current.and_then(|token| anonymous.with_token(token).ok()) else {
        return Ok(Some(Lack::Token));
    };
    let user = match client.me().await {
        Ok(user) => user,
        Err(error) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {
            return Ok(Some(Lack::Accepted));
        }
        Err(error) => return Err(blocker(talk, object, &error)),
    };
    if renewal(object).is_none_or(|at| at <= Timestamp::now()) {
        return Ok(Some(Lack::Time));
    }
    let rights = has_rights(&user, &client, object).await.map_err(|error| blocker(talk, object, &error))?;
    Ok((!rights).then_some(Lack::Rights))
}

/// When the token that is recorded is to be replaced.
fn renewal(object: &CoderControlPlane) -> Option<Timestamp> {
    let recorded = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    let recorded = recorded.filter(|token| token.method == object.spec.operator_access.method);
    recorded.and_then(|token| token.renew_after.as_ref()).map(|at| at.0)
}

/// Whether a user of ours may do everything and is in every organization. A person's rights are not ours to mend.
async fn has_rights(
    user: &User,
    client: &Client,
    object: &CoderControlPlane,
) -> Result<bool, coder_k8s_coderd::Error> {
    if object.spec.operator_access.method == AccessMethod::FirstUser {
        return Ok(true);
    }
    if !user.is_owner() {
        return Ok(false);
    }
    let all = client.organizations().await?;
    Ok(all.iter().all(|organization| user.organization_ids.contains(&organization.id)))
}

async fn store_and_tidy(
    talk: &mut Talk,
    place: &store::CoderdTarget,
    token: &SecretString,
    owner: &Owner,
    ctx: &Context,
) -> Result<(), Failed> {
    place.keep(talk, token, owner, ctx).await?;
    place.tidy(owner, ctx).await
}

/// Asks coderd whether it accepts the token that was made, and lets go of what it replaces.
async fn prove(talk: &mut Talk, asking: &Asking<'_>, made: &Made) -> Result<Option<Client>, outcome::Retry> {
    let object = asking.object;
    let Some(client) = with_token(talk, asking.anonymous, &made.token) else { return Ok(None) };
    let user = match client.me().await {
        Ok(user) => user,
        Err(error) if matches!(error.kind, ErrorKind::Unauthenticated { .. }) => {
            talk.replaced = true;
            turn_down(talk, object, unaccepted(object));
            return Ok(None);
        }
        Err(error) => return Err(blocker(talk, object, &error)),
    };
    talk.report.access = Some(Access::Ready);
    if !made.settled
        && let Err(failed) = asking.settle(&client, &made.token).await
    {
        return note(talk, object, asking.anonymous, true, failed);
    }
    talk.replaced = false;
    talk.report.grant = Some(Grant {
        method: object.spec.operator_access.method,
        user_id: Some(user.id),
        expires: Some(made.expires),
        renew_after: Some(made.renew_after),
        replaces: access::outdated(object),
    });
    revoke::outdated(talk, Some(&client), asking.key, object, asking.ctx).await?;
    Ok(Some(client))
}

/// coderd does not accept what was made for it. Another one would fare no better.
fn unaccepted(object: &CoderControlPlane) -> Blocker {
    let hint = match object.spec.operator_access.method {
        AccessMethod::Postgres => ": does it run on the database of CODER_PG_CONNECTION_URL?",
        _ => "",
    };
    let message = format!("coderd does not accept the token that was made for it{hint}");
    Blocker::new(Reason::TokenRefused, message)
}

/// Notes a failure. A token that works goes on working.
fn note(
    talk: &mut Talk,
    object: &CoderControlPlane,
    anonymous: &Client,
    works: bool,
    failed: Failed,
) -> Result<Option<Client>, outcome::Retry> {
    let Failed { blocker, retry } = failed;
    tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
    if works {
        talk.report.access = Some(Access::Overdue(blocker));
    } else {
        turn_down(talk, object, blocker);
    }
    match retry {
        Some(retry) => Err(retry),
        None => {
            Ok(talk.token.clone().filter(|_| works).and_then(|token| with_token(talk, anonymous, &token)))
        }
    }
}

/// The public half of a token.
pub(super) fn id(token: &SecretString) -> &str {
    let text = token.expose_secret();
    text.split_once('-').map_or(text, |(id, _)| id)
}
