//! The Secret with the operator's own token.
//!
//! It is read live before it is written, and written only onto the version that was read. A Secret that the operator does
//! not own is neither read from nor written to.

use std::collections::BTreeMap;

use coder_k8s_api::{CoderControlPlane, Reason, ReportedSecretRef, names::annotation};
use coder_k8s_core::{
    controlplane::coderd::access,
    outcome::{Blocker, ForeignObject, Retry},
};
use coder_k8s_engine::{
    apply::Owner,
    cache::ObjectKey,
    secret::{self, SecretData, SecretEntry, SecretOwnership},
};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use super::SyncState;
use crate::{coderd::blocker_of_secret, controller::Context};

const DATA_KEY: &str = "token";

/// The Secret of the spec, or what has its name.
pub(super) enum Found {
    Ours(StoredSecret),
    Foreign(ForeignObject),
}

/// Where the token is, and where it belongs.
pub(super) struct StoredSecret {
    name: String,
    live: Option<SecretData>,
    /// The Secret of an earlier `generatedTokenSecretName`.
    earlier: Option<(String, SecretData)>,
    /// The token in either of them.
    pub(super) token: Option<SecretString>,
}

/// Whether the Secret is as this process itself wrote it last.
pub(super) async fn is_own_write(
    state: &SyncState,
    key: &ObjectKey,
    object: &CoderControlPlane,
    ctx: &Context,
) -> bool {
    let read = secret::read(&ctx.client, &key.namespace, &access::secret_name(object)).await;
    let version = read.ok().flatten().map(|live| live.resource_version);
    version.is_some() && version == state.stored_version
}

/// Reads the Secret of the spec and, after a rename, the one before it.
pub(super) async fn read(owner: &Owner, object: &CoderControlPlane, ctx: &Context) -> Result<Found, Blocker> {
    let name = access::secret_name(object);
    let read = secret::read(&ctx.client, &owner.namespace, &name).await;
    let live = read.map_err(blocker_of_secret)?;
    match live.as_ref().map(|live| live.ownership(owner)) {
        None | Some(SecretOwnership::Ours) => {}
        Some(SecretOwnership::Leftover) => {
            let message =
                format!("waiting for the deletion of Secret {name} of an earlier object of the same name");
            return Err(Blocker::new(Reason::AwaitingDeletion, message));
        }
        Some(SecretOwnership::Foreign) => {
            let hand_over = format!("{}=CoderControlPlane/{}", annotation::ADOPT_BY, object.name_any());
            return Ok(Found::Foreign(ForeignObject { kind: "Secret".to_owned(), name, hand_over }));
        }
    }
    let token = live.as_ref().and_then(|live| live.text(DATA_KEY));
    let mut secret = StoredSecret { name, live, earlier: None, token };
    let recorded = object.status.as_ref().and_then(|status| status.operator_token_secret_ref.as_ref());
    let renamed =
        recorded.filter(|recorded| recorded.name != secret.name && access::minted_token(object).is_some());
    if let Some(recorded) = renamed {
        let read = secret::read(&ctx.client, &owner.namespace, &recorded.name).await;
        let earlier = read
            .map_err(blocker_of_secret)?
            .filter(|earlier| earlier.ownership(owner) == SecretOwnership::Ours);
        if secret.token.is_none() {
            secret.token = earlier.as_ref().and_then(|earlier| earlier.text(DATA_KEY));
        }
        secret.earlier = earlier.map(|earlier| (recorded.name.clone(), earlier));
    }
    Ok(Found::Ours(secret))
}

impl StoredSecret {
    /// Whether the Secret of the spec holds the token and no earlier one is left.
    pub(super) fn is_in_place(&self) -> bool {
        let holds = self.live.as_ref().and_then(|live| live.text(DATA_KEY)).is_some();
        holds && self.earlier.is_none()
    }

    /// Where readers find the token.
    pub(super) fn reference(&self) -> ReportedSecretRef {
        ReportedSecretRef { name: self.name.clone(), key: Some(DATA_KEY.to_owned()) }
    }

    /// Writes the token. Returns the new version. None: the Secret already holds it.
    pub(super) async fn write(
        &self,
        token: &SecretString,
        owner: &Owner,
        ctx: &Context,
    ) -> Result<Option<String>, Blocker> {
        let stored = self.live.as_ref().and_then(|live| live.text(DATA_KEY));
        if stored.is_some_and(|stored| stored.expose_secret() == token.expose_secret()) {
            return Ok(None);
        }
        let annotations = BTreeMap::new();
        let entry = SecretEntry { name: &self.name, key: DATA_KEY, value: token, annotations: &annotations };
        let written = secret::write(&ctx.client, owner, self.live.as_ref(), &entry).await;
        let Some(version) = written.map_err(blocker_of_secret)? else {
            let message = format!("Secret {} changed while the operator token was being stored", self.name);
            return Err(Blocker::new(Reason::Conflict, message).with_retry(Retry::Soon));
        };
        tracing::info!("stored the operator token in Secret {}", self.name);
        Ok(Some(version))
    }

    /// Removes the Secret of an earlier name.
    pub(super) async fn remove_earlier(&self, owner: &Owner, ctx: &Context) -> Result<(), secret::Error> {
        if let Some((name, live)) = &self.earlier
            && secret::remove(&ctx.client, &owner.namespace, name, live).await?
        {
            tracing::info!("removed Secret {name}: the operator token is in Secret {} now", self.name);
        }
        Ok(())
    }

    /// Removes every Secret with the token.
    pub(super) async fn remove(&self, owner: &Owner, ctx: &Context) -> Result<(), Blocker> {
        if let Some(live) = &self.live
            && secret::remove(&ctx.client, &owner.namespace, &self.name, live)
                .await
                .map_err(blocker_of_secret)?
        {
            tracing::info!("removed Secret {} with the operator token", self.name);
        }
        self.remove_earlier(owner, ctx).await.map_err(blocker_of_secret)
    }
}
