//! The registration of a proxy: observes what [`decide`] rests on, answers its queries and performs its effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
};

use coder_k8s_api::{
    CoderWorkspaceProxy, CoderWorkspaceProxyStatus, Reason,
    names::{annotation, component, finalizer},
};
use coder_k8s_coderd::{
    Client, CoderdError, ErrorKind, IdentifiedServer, Proxy, ProxySettings, RegisteredProxy,
};
use coder_k8s_core::{
    credential::NameConflict,
    object::{self, Deletion},
    outcome::Blocker,
    provisioner::names::checksum,
    target::{CoderdTarget, SecretDataRef, Version},
    workspaceproxy::{
        Observed, TOKEN, own_url, pod_credential_of, primary_url,
        registration::{
            Decision, ListedProxy, ObservedRegistration, ProxyProfile, RegistrationContext,
            RegistrationEffect, RegistrationIntent, RegistrationMarks, RegistrationRecord, RegistrationRef,
            Registrations, SuppliedToken, TokenFacts, decide, token_id,
        },
        wanted_registration,
    },
};
use coder_k8s_engine::{
    cache::ObjectKey,
    secret::{self, SecretData},
};
use jiff::Timestamp;
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use super::ProxyTarget;
use crate::{
    coderd::{
        blocker_at,
        credential::{
            Interrupted, Made, Managed, Performed, Reconciler, deployment_id_of, older_claimant, workload,
        },
        targets,
    },
    controller::{Context, secrets},
};

/// The registration of one proxy in one reconcile.
pub(super) type RegistrationReconciler = Reconciler<Registrations>;

/// Reads what is known without coderd. None: the object has no UID, because it was never stored.
pub(super) async fn begin(
    key: &ObjectKey,
    proxy: &Observed,
    target: ProxyTarget,
    verify_due: bool,
    ctx: &Arc<Context>,
) -> Option<RegistrationReconciler> {
    let object = &*proxy.object;
    let url = primary_url(object, proxy.control_plane.as_deref());
    let may_make = match (&proxy.credentials, &proxy.gate) {
        (Some(Err(blocker)), _) => Err(blocker.clone()),
        (_, Some(gate)) if !gate.may_begin() => Err(Blocker::new(gate.reason, gate.message.clone())),
        _ => Ok(()),
    };
    let observed = ObservedRegistration {
        desired: wanted_registration(object),
        record: object.status.as_ref().map(RegistrationRecord::of).unwrap_or_default(),
        has_finalizer: object::has_finalizer(object, finalizer::WORKSPACE_PROXY),
        verify_due,
        may_make,
        secrets: BTreeMap::new(),
        workload: workload(
            proxy.children.deployment.as_deref(),
            pod_credential_of,
            url.clone().filter(|_| own_url(proxy)),
        ),
        late_effect_window: ctx.policy.late_effect_window,
        deletion: object::is_deleting(object).then_some(Deletion { overdue: false }),
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        tried: BTreeSet::new(),
        name_conflict: target.target.as_ref().ok().and_then(|target| name_conflict(object, target, ctx)),
        own: RegistrationContext { given: given(object, key, ctx).await, url },
        target: target.target,
    };
    let mut this = Reconciler::begin(key, proxy.object.clone(), observed, target.connections, ctx).await?;
    this.retry = target.retry;
    Some(this)
}

impl Managed for Registrations {
    type Object = CoderWorkspaceProxy;

    const FINALIZER: &'static str = finalizer::WORKSPACE_PROXY;
    const COMPONENT: &'static str = component::WORKSPACE_PROXY;
    const MARK: &'static str = annotation::PROXY_ID;
    const NOUN: &'static str = "workspace proxy";
    const DELETED_BY_NAME: bool = false;

    fn decide(observed: &ObservedRegistration, now: Timestamp) -> Decision {
        decide(observed, now)
    }

    fn target(target: &CoderdTarget) -> &CoderdTarget {
        target
    }

    fn blocker_of(object: &CoderWorkspaceProxy, error: &CoderdError) -> Blocker {
        let field = match &object.spec.bootstrap {
            Some(_) => "bootstrap.coderURL",
            None => "operatorAccess.apiURL of the control plane",
        };
        match error.kind {
            ErrorKind::RateLimited { .. } => {
                let message = "Coder API rate limited while reconciling the workspace proxy";
                Blocker::new(error.reason(), message)
            }
            _ => blocker_at(error, field),
        }
    }

    fn recorded(object: &CoderWorkspaceProxy, record: &RegistrationRecord) -> CoderWorkspaceProxyStatus {
        let mut status = object.status.clone().unwrap_or_default();
        record.write(&mut status);
        status
    }

    fn held(data: &SecretData, key: &str, uid: &str) -> Option<TokenFacts> {
        data.text(key).map(|text| token(&text, uid))
    }

    fn data_keys(_: &BTreeMap<String, String>) -> BTreeSet<String> {
        [TOKEN.to_owned()].into()
    }

    fn marks_in(get: impl Fn(&str) -> Option<String>) -> Option<RegistrationMarks> {
        Some(RegistrationMarks {
            id: get(annotation::PROXY_ID)?,
            name: get(annotation::PROXY_NAME).unwrap_or_default(),
            deployment_id: get(annotation::PROXY_DEPLOYMENT_ID),
        })
    }

    fn annotations(
        marks: &RegistrationMarks,
        _: &SecretDataRef,
        _: Option<&SecretData>,
    ) -> BTreeMap<String, Option<String>> {
        let RegistrationMarks { id, name, deployment_id } = marks.clone();
        [
            (annotation::PROXY_ID, Some(id)),
            (annotation::PROXY_NAME, Some(name)),
            (annotation::PROXY_DEPLOYMENT_ID, deployment_id),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    async fn prove(server: &IdentifiedServer, token: &SecretString) -> Result<(), CoderdError> {
        server.anonymous().prove_proxy_token(token).await
    }

    async fn list(client: &Client, _: &CoderdTarget) -> Result<Vec<ListedProxy>, CoderdError> {
        // coderd itself is listed first, and is no proxy of anybody.
        let own = |proxy: &&Proxy| proxy.name != "primary" && !proxy.deleted;
        Ok(client.proxies().await?.iter().filter(own).map(listed).collect())
    }

    async fn delete(client: &Client, _: &CoderdTarget, _: &str, id: &str) -> Result<(), CoderdError> {
        client.delete_proxy(id).await
    }

    async fn ask(_: &mut RegistrationReconciler, query: Infallible) {
        match query {}
    }

    /// Registers the proxy as announced, or gives it another token.
    async fn make(
        this: &mut RegistrationReconciler,
        pending: RegistrationIntent,
        settings: ProxyProfile,
        place: &SecretDataRef,
        version: &Version,
    ) -> Result<Made<Self>, Interrupted> {
        let RegistrationRef { id: known, name, target, details: _ } = &pending.credential;
        let client = this.maker(target).await?;
        // Another token ends the one in the Secret, which must still be the Secret that was decided on.
        if !is_unchanged(this, place, version).await {
            return Err(this.outdated());
        }
        let settings = as_sent(settings);
        let made = match known {
            None => client.create_proxy(&settings).await,
            Some(id) => client.update_proxy(id, &settings, true).await,
        };
        this.observed.listings.clear();
        let RegisteredProxy { proxy, token } = match made {
            Ok(made) => made,
            Err(error) => {
                let not_made = this.not_made(name, &error);
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    // The name was free a moment ago. Whoever has it now must not be taken for what was announced.
                    let record = RegistrationRecord { pending: None, ..this.observed.record.clone() };
                    // That the name is taken is what the conditions tell, whether or not the status could be written.
                    drop(this.record(&record).await);
                }
                return Err(not_made);
            }
        };
        this.ctx.dependents.created(&this.object_key);
        let Some(token) = token else { return Err(this.outdated()) };
        tracing::info!("coderd gave a token for workspace proxy {}", proxy.name);
        let id = Some(proxy.id.to_ascii_lowercase());
        let credential = RegistrationRef::new(id.clone(), proxy.name, target.clone());
        let pending =
            RegistrationIntent { credential: RegistrationRef { id, ..pending.credential }, ..pending };
        let (current, pending) = (Some(credential.clone()), Some(pending));
        let record = RegistrationRecord { current, pending, ..this.observed.record.clone() };
        Ok(Made { credential, record, material: token })
    }

    /// Changes what a registration is called.
    async fn act(this: &mut RegistrationReconciler, effect: RegistrationEffect) -> Performed {
        let RegistrationEffect::Update { target, id, settings } = effect;
        let Ok(client) = this.client(&target).await else { return Err(this.outdated()) };
        this.observed.listings.remove(&target);
        let updated = client.update_proxy(&id, &as_sent(settings), false).await;
        let updated = updated.map_err(|error| Interrupted(Some(this.failed(&error))))?;
        tracing::info!("updated workspace proxy {} in coderd", updated.proxy.name);
        Ok(())
    }
}

async fn is_unchanged(this: &RegistrationReconciler, place: &SecretDataRef, version: &Version) -> bool {
    match secret::read(&this.ctx.client, &this.object_key.namespace, &place.name).await {
        Ok(Some(live)) => secrets::is_version(&live, version),
        Ok(None) => *version == Version::Absent,
        Err(_) => false,
    }
}

fn as_sent(settings: ProxyProfile) -> ProxySettings {
    let ProxyProfile { name, display_name, icon } = settings;
    ProxySettings { name, display_name, icon }
}

fn listed(proxy: &Proxy) -> ListedProxy {
    ListedProxy {
        id: proxy.id.to_ascii_lowercase(),
        name: proxy.name.clone(),
        display_name: proxy.display_name.clone(),
        icon: proxy.icon_url.clone(),
        created: proxy.created_at,
        version: proxy.version.clone(),
        health: proxy.status.status.clone(),
    }
}

/// The token that a person supplies. The error says why there is none.
async fn given(
    object: &CoderWorkspaceProxy,
    key: &ObjectKey,
    ctx: &Context,
) -> Result<SuppliedToken, Blocker> {
    const MISSING: Reason = Reason::TokenSecretUnavailable;
    let Some(reference) = &object.spec.proxy_session_token_secret_ref else {
        return Err(Blocker::new(MISSING, "nobody supplies a token".to_owned()));
    };
    let data_key = reference.key.as_ref().map_or(TOKEN, AsRef::as_ref).to_owned();
    let place = SecretDataRef { name: reference.name.to_string(), key: data_key };
    match targets::read_token(&place, &key.namespace, ctx).await? {
        Some(text) => {
            let token = token(&text, &object.uid().unwrap_or_default());
            Ok(SuppliedToken { place, token })
        }
        None => Err(targets::missing_token(MISSING, &place)),
    }
}

fn token(text: &SecretString, uid: &str) -> TokenFacts {
    let text = text.expose_secret();
    TokenFacts { checksum: checksum(uid, text.as_bytes()), id: token_id(text) }
}

/// The group of the proxies that ask for the same name, whatever their coderd. coderd compares names without regard to case.
pub(crate) fn claim(object: &CoderWorkspaceProxy) -> Option<String> {
    wanted_registration(object).map(|desired| desired.name.to_ascii_lowercase())
}

/// Another proxy that asks for the same name in the same coderd, and was there first.
fn name_conflict(object: &CoderWorkspaceProxy, target: &CoderdTarget, ctx: &Context) -> Option<NameConflict> {
    let (claim, deployment) = (claim(object)?, target.deployment_id.as_ref()?);
    older_claimant(object, &ctx.caches.workspace_proxies, &claim, |other| {
        let plane = other.spec.control_plane_ref.as_ref().map(|plane| plane.name.as_str());
        let recorded = other.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        deployment_id_of(other, plane, recorded, ctx).as_ref() == Some(deployment)
    })
}
