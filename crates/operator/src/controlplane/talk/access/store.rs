//! The Secret with the operator's own token.
//!
//! It is read live before it is written, and written onto exactly what was read. A Secret of others under its name is
//! neither read from nor written to.

use std::collections::BTreeMap;

use coder_k8s_api::{CoderControlPlane, Reason, ReportedSecretRef, names::annotation};
use coder_k8s_core::{controlplane::coderd::access, outcome, outcome::ForeignObject};
use coder_k8s_engine::{
    apply::Owner,
    key::Key,
    secret::{self, Belongs, Entry, SecretData},
};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use super::Failed;
use crate::{controller::Context, controlplane::talk::Talk};

/// The key of the token.
pub(super) const KEY: &str = "token";

/// Where the token is, and where it is to be.
pub(super) struct CoderdTarget {
    name: String,
    held: Option<SecretData>,
    /// Where it was under an earlier name.
    earlier: Option<(String, SecretData)>,
    /// The token that was found.
    pub(super) token: Option<SecretString>,
}

/// Whether a Secret is as this process itself wrote it last.
pub(in crate::controlplane::talk) async fn is_own_write(
    talk: &Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> bool {
    let read = secret::read(&ctx.client, &key.namespace, &access::secret_name(object)).await;
    let version = read.ok().flatten().map(|held| held.resource_version);
    version.is_some() && version == talk.stored
}

/// Looks for the token. None: a Secret of others is in the way, which the report says.
pub(super) async fn look(
    talk: &mut Talk,
    owner: &Owner,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<Option<CoderdTarget>, Failed> {
    let name = access::secret_name(object);
    let held = secret::read(&ctx.client, &owner.namespace, &name).await?;
    talk.report.foreign = None;
    match held.as_ref().map(|held| held.belongs(owner)) {
        None | Some(Belongs::Ours) => {}
        Some(Belongs::Leftover) => {
            let message = format!("Secret {name} of a deleted object of the same name is still there");
            return Err(Failed::new(Reason::AwaitingDeletion, message, outcome::Retry::Backoff));
        }
        Some(Belongs::Others) => {
            let hand_over = format!("{}=CoderControlPlane/{}", annotation::ADOPT_BY, object.name_any());
            talk.report.foreign = Some(ForeignObject { kind: "Secret".to_owned(), name, hand_over });
            return Ok(None);
        }
    }
    let token = held.as_ref().and_then(|held| held.text(KEY));
    let mut place = CoderdTarget { name, held, earlier: None, token };
    let told = object.status.as_ref().and_then(|status| status.operator_token_secret_ref.as_ref());
    if let Some(told) = told.filter(|told| told.name != place.name && access::held(object).is_some()) {
        let earlier = secret::read(&ctx.client, &owner.namespace, &told.name).await?;
        let earlier = earlier.filter(|earlier| earlier.belongs(owner) == Belongs::Ours);
        if place.token.is_none() {
            place.token = earlier.as_ref().and_then(|earlier| earlier.text(KEY));
        }
        place.earlier = earlier.map(|earlier| (told.name.clone(), earlier));
    }
    Ok(Some(place))
}

impl CoderdTarget {
    /// Whether the Secret holds this token.
    fn holds(&self, token: &SecretString) -> bool {
        let stored = self.held.as_ref().and_then(|held| held.text(KEY));
        stored.is_some_and(|stored| stored.expose_secret() == token.expose_secret())
    }

    /// Makes the Secret hold the token.
    pub(super) async fn keep(
        &self,
        talk: &mut Talk,
        token: &SecretString,
        owner: &Owner,
        ctx: &Context,
    ) -> Result<(), Failed> {
        if !self.holds(token) {
            let none = BTreeMap::new();
            let entry = Entry { name: &self.name, key: KEY, value: token, annotations: &none };
            let written = secret::write(&ctx.client, owner, self.held.as_ref(), &entry).await?;
            let Some(version) = written else {
                let message = format!("Secret {} has changed in the meantime", self.name);
                return Err(Failed::new(Reason::Conflict, message, outcome::Retry::Soon));
            };
            tracing::info!("stored the operator's token in Secret {}", self.name);
            talk.stored = Some(version);
        }
        talk.token = Some(token.clone());
        talk.report.token = Some(self.reference());
        Ok(())
    }

    /// Where readers find the token.
    pub(super) fn reference(&self) -> ReportedSecretRef {
        ReportedSecretRef { name: self.name.clone(), key: Some(KEY.to_owned()) }
    }

    /// Removes the Secret of an earlier name, once the token is elsewhere and in use.
    pub(super) async fn tidy(&self, owner: &Owner, ctx: &Context) -> Result<(), Failed> {
        if let Some((name, held)) = &self.earlier
            && secret::remove(&ctx.client, &owner.namespace, name, held).await?
        {
            tracing::info!("removed Secret {name}: the operator's token is in {} now", self.name);
        }
        Ok(())
    }

    /// Removes every Secret with the token.
    pub(super) async fn clear(&self, owner: &Owner, ctx: &Context) -> Result<(), Failed> {
        if let Some(held) = &self.held
            && secret::remove(&ctx.client, &owner.namespace, &self.name, held).await?
        {
            tracing::info!("removed Secret {} with the operator's token", self.name);
        }
        self.tidy(owner, ctx).await
    }
}
