//! The key of a pool: observes what [`decide`] rests on, answers its queries and performs its effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
};

use coder_k8s_api::{
    CoderProvisioner, CoderProvisionerStatus, Reason,
    names::{annotation, component, finalizer},
};
use coder_k8s_coderd::{
    Client, CoderdError, Daemon, DaemonFilter, ErrorKind, IdentifiedServer, ListedProvisionerKey,
};
use coder_k8s_core::{
    credential::NameConflict,
    object::{self, Deletion},
    provisioner::{
        self, Observed,
        keys::{
            Blocker, CoderdTarget, Decision, DesiredKey, FoundKey, KeyContext, KeyIntent, KeyMarks, KeyQuery,
            KeyRecord, KeyRef, KeyScope, Keys, ListedKey, ObservedKeys, SecretDataRef, Version, decide,
            tags::Tags,
        },
        names, own_url, pod_credential_of,
    },
};
use coder_k8s_engine::{
    cache::ObjectKey,
    secret::{SecretData, SecretPatch},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::{Api, ResourceExt, api::ListParams};
use secrecy::SecretString;

use crate::{
    coderd::{
        credential::{
            Interrupted, Made, Managed, Performed, Reconciler, deployment_id_of, older_claimant, workload,
        },
        targets::{self, Connections, other_deployment},
    },
    controller::Context,
};

/// The key of one pool in one reconcile.
pub(super) type KeyReconciler = Reconciler<Keys>;

/// Reads what is known without coderd. None: the object has no UID, because it was never stored.
pub(super) async fn begin(
    key: &ObjectKey,
    pool: &Observed,
    connections: Connections,
    verify_due: bool,
    ctx: &Arc<Context>,
) -> Option<KeyReconciler> {
    let object = &*pool.object;
    let plane = pool.control_plane.as_deref().filter(|_| own_url(object));
    let own_url = plane.map(provisioner::pods_url);
    let observed = ObservedKeys {
        desired: desired(object),
        record: object.status.as_ref().map(KeyRecord::of).unwrap_or_default(),
        has_finalizer: object::has_finalizer(object, finalizer::PROVISIONER),
        verify_due,
        may_make: may_make(pool),
        target: target(pool),
        secrets: BTreeMap::new(),
        workload: workload(pool.children.deployment.as_deref(), pod_credential_of, own_url),
        late_effect_window: ctx.policy.late_effect_window,
        deletion: object::is_deleting(object).then_some(Deletion { overdue: false }),
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        tried: BTreeSet::new(),
        name_conflict: name_conflict(object, pool, ctx),
        own: KeyContext { organization: None, old_pods: None },
    };
    Reconciler::begin(key, pool.object.clone(), observed, connections, ctx).await
}

impl Managed for Keys {
    type Object = CoderProvisioner;

    const FINALIZER: &'static str = finalizer::PROVISIONER;
    const COMPONENT: &'static str = component::PROVISIONER;
    const MARK: &'static str = annotation::KEY_NAME;
    const NOUN: &'static str = "provisioner key";
    const DELETED_BY_NAME: bool = true;

    fn decide(observed: &ObservedKeys, now: Timestamp) -> Decision {
        decide(observed, now)
    }

    fn target(scope: &KeyScope) -> &CoderdTarget {
        &scope.target
    }

    fn blocker_of(_: &CoderProvisioner, error: &CoderdError) -> Blocker {
        let message = match error.kind {
            ErrorKind::RateLimited { .. } => {
                "Coder API rate limited while reconciling provisioner key".to_owned()
            }
            _ => error.to_string(),
        };
        Blocker::new(error.reason(), message)
    }

    fn recorded(object: &CoderProvisioner, record: &KeyRecord) -> CoderProvisionerStatus {
        let mut status = object.status.clone().unwrap_or_default();
        record.write(&mut status);
        status
    }

    fn held(data: &SecretData, key: &str, uid: &str) -> Option<[String; 2]> {
        let value = data.value(key).filter(|value| !value.is_empty())?;
        Some([names::checksum(uid, value), names::go_operator_checksum(value)])
    }

    fn data_keys(annotations: &BTreeMap<String, String>) -> BTreeSet<String> {
        let list = annotations.get(annotation::KEY_DATA_KEYS).map(String::as_str).unwrap_or_default();
        list.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    fn marks_in(get: impl Fn(&str) -> Option<String>) -> Option<KeyMarks> {
        Some(KeyMarks {
            id: get(annotation::KEY_ID),
            name: get(annotation::KEY_NAME)?,
            organization: get(annotation::KEY_ORGANIZATION_ID),
            tags_hash: get(annotation::KEY_TAGS_HASH),
            deployment_id: get(annotation::KEY_DEPLOYMENT_ID),
        })
    }

    fn annotations(
        marks: &KeyMarks,
        place: &SecretDataRef,
        live: Option<&SecretData>,
    ) -> BTreeMap<String, Option<String>> {
        let KeyMarks { id, name, organization, tags_hash, deployment_id } = marks.clone();
        let mut data_keys = live.map(|live| Self::data_keys(&live.annotations)).unwrap_or_default();
        data_keys.insert(place.key.clone());
        [
            (annotation::KEY_ID, id),
            (annotation::KEY_NAME, Some(name)),
            (annotation::KEY_ORGANIZATION_ID, organization),
            (annotation::KEY_TAGS_HASH, tags_hash),
            (annotation::KEY_DEPLOYMENT_ID, deployment_id),
            (annotation::KEY_DATA_KEYS, Some(list(data_keys))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// A Secret stays while it holds another key of ours, or something of others.
    fn without(live: &SecretData, place: &SecretDataRef) -> Option<SecretPatch> {
        let mut ours = Self::data_keys(&live.annotations);
        ours.remove(&place.key);
        let is_last = ours.is_empty() && !live.keys().any(|key| key != place.key);
        (!is_last).then(|| SecretPatch {
            data: [(place.key.clone(), None)].into(),
            annotations: [(annotation::KEY_DATA_KEYS.to_owned(), Some(list(ours)))].into(),
        })
    }

    async fn prove(server: &IdentifiedServer, material: &SecretString) -> Result<FoundKey, CoderdError> {
        Ok(found(&server.anonymous().provisioner_key_details(material).await?))
    }

    /// coderd answers 400 to what cannot be a key at all.
    fn is_refusal(kind: &ErrorKind) -> bool {
        matches!(kind, ErrorKind::Unauthenticated { .. } | ErrorKind::Invalid { .. })
    }

    /// The keys of an organization, and what is known of their daemons.
    async fn list(client: &Client, scope: &KeyScope) -> Result<Vec<ListedKey>, CoderdError> {
        let organization = scope.organization.word();
        let keys = client.provisioner_keys(organization).await?;
        let daemons = client.provisioner_daemons(organization, DaemonFilter { offline: true }).await?;
        let mut by_key: BTreeMap<&str, Vec<&Daemon>> = BTreeMap::new();
        for daemon in &daemons {
            by_key.entry(&daemon.key_id).or_default().push(daemon);
        }
        let listed = |key: &ListedProvisionerKey| {
            let daemons = by_key.get(key.id.as_str());
            ListedKey {
                key: found(key),
                created: key.created_at,
                was_used: daemons.is_some(),
                last_seen: daemons.into_iter().flatten().filter_map(|daemon| daemon.last_seen_at).max(),
            }
        };
        Ok(keys.iter().map(listed).collect())
    }

    async fn delete(client: &Client, scope: &KeyScope, name: &str, _: &str) -> Result<(), CoderdError> {
        client.delete_provisioner_key(scope.organization.word(), name).await
    }

    async fn ask(this: &mut KeyReconciler, query: KeyQuery) {
        match query {
            KeyQuery::Organization => this.observed.own.organization = Some(organization(this).await),
            KeyQuery::Pods => this.observed.own.old_pods = Some(old_pods(this).await),
        }
    }

    async fn make(
        this: &mut KeyReconciler,
        pending: KeyIntent,
        tags: Tags,
        _: &SecretDataRef,
        _: &Version,
    ) -> Result<Made<Self>, Interrupted> {
        let key = pending.credential;
        let client = this.maker(&key.target).await?;
        let organization = key.details.organization.word();
        let made = client.create_provisioner_key(organization, &key.name, &tags).await;
        let material = made.map_err(|error| this.not_made(&key.name, &error))?;
        tracing::info!("created provisioner key {} in coderd", key.name);
        this.ctx.dependents.created(&this.object_key);
        this.observed.listings.clear();
        let id = made_id(&client.at_once(), organization, &key.name, &material).await;
        let Some(id) = id.map_err(|error| Interrupted(Some(this.failed(&error))))? else {
            return Err(this.outdated());
        };
        let credential = KeyRef { id: Some(id), ..key };
        let mut record = this.observed.record.clone();
        if let Some(pending) = &mut record.pending {
            pending.credential.id.clone_from(&credential.id);
        }
        Ok(Made { credential, record, material })
    }

    async fn act(_: &mut KeyReconciler, effect: Infallible) -> Performed {
        match effect {}
    }
}

/// The UUID of a key that was just made, because coderd answers with the material alone. None: coderd has no such key any more.
///
/// If this fails, the material is lost and the key is made again. coderd says whose material it is. Where it does not, the list
/// does, which grows with the keys of others; coderd lifts its rate limit for an owner who asks for it.
async fn made_id(
    client: &Client,
    organization: &str,
    name: &str,
    material: &SecretString,
) -> Result<Option<String>, CoderdError> {
    if let Ok(made) = client.provisioner_key_details(material).await {
        return Ok((made.name == name).then_some(made.id));
    }
    let listed = client.provisioner_keys(organization).await?;
    Ok(listed.into_iter().find(|made| made.name == name).map(|made| made.id))
}

/// The UUID of the wanted organization. None: coderd knows no such organization.
async fn organization(this: &mut KeyReconciler) -> Result<Option<String>, Blocker> {
    let target = this.observed.target.clone()?;
    let client = this.client(&target).await;
    let client = client.map_err(|blocker| blocker.unwrap_or_else(other_deployment))?;
    match client.organization(&this.observed.desired.organization).await {
        Ok(found) => {
            this.accepted(&target);
            Ok(Some(found.id))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(this.failed(&error)),
    }
}

/// Data keys as the annotation lists them.
fn list(data_keys: BTreeSet<String>) -> String {
    data_keys.into_iter().collect::<Vec<_>>().join(",")
}

/// Whether a pod is left that runs with something else than the Deployment asks for.
async fn old_pods(this: &KeyReconciler) -> Result<bool, Blocker> {
    let Some(workload) = &this.observed.workload else { return Ok(false) };
    let labels = this.owner.labels.iter().map(|(name, value)| format!("{name}={value}"));
    let labels = labels.collect::<Vec<_>>().join(",");
    let api: Api<Pod> = Api::namespaced(this.ctx.client.clone(), &this.object_key.namespace);
    let pods = api.list(&ListParams::default().labels(&labels)).await.map_err(|error| {
        Blocker::new(
            Reason::PodsUnknown,
            format!("cannot list the pods: {}", coder_k8s_engine::client::describe(&error)),
        )
    })?;
    let is_over = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let is_old = |pod: &Pod| {
        let template = PodTemplateSpec { metadata: Some(pod.metadata.clone()), spec: pod.spec.clone() };
        pod_credential_of(&template).is_none_or(|pod_credential| {
            let url = own_url(&this.object) || pod_credential.url == workload.pod_credential.url;
            !url || pod_credential.secret != workload.pod_credential.secret
                || pod_credential.checksum != workload.pod_credential.checksum
        })
    };
    Ok(pods.iter().any(|pod| !is_over(pod) && is_old(pod)))
}

fn found(key: &ListedProvisionerKey) -> FoundKey {
    let ListedProvisionerKey { id, name, organization, tags, created_at: _ } = key;
    FoundKey { id: id.clone(), name: name.clone(), organization: organization.clone(), tags: tags.clone() }
}

fn desired(object: &CoderProvisioner) -> DesiredKey {
    let (spec, name) = (&object.spec, object.name_any());
    let namespace = object.namespace().unwrap_or_default();
    let key = spec.key.as_ref();
    let given = key.and_then(|key| key.name.as_ref()).map(AsRef::as_ref);
    DesiredKey {
        control_plane: spec.control_plane_ref.name.to_string(),
        organization: spec
            .organization_name
            .as_ref()
            .map_or_else(|| "default".to_owned(), ToString::to_string),
        name: names::KeyBase::new(given, &namespace, &name),
        tags: spec.tags.clone(),
        secret: SecretDataRef {
            name: key
                .and_then(|key| key.secret_name.as_ref())
                .map_or_else(|| names::secret(&name), ToString::to_string),
            key: key
                .and_then(|key| key.secret_key.as_ref())
                .map_or_else(|| "key".to_owned(), ToString::to_string),
        },
    }
}

/// The group of the pools that claim the same name in an organization of the same name, whatever their coderd.
pub(crate) fn claim(object: &CoderProvisioner) -> String {
    let DesiredKey { organization, name, .. } = desired(object);
    format!("key {organization}/{}", name.name)
}

/// Another pool that claims the name in the same organization of the same coderd, and was there first.
fn name_conflict(object: &CoderProvisioner, pool: &Observed, ctx: &Context) -> Option<NameConflict> {
    let (own, deployment) = (desired(object), pool.deployment_id.as_ref()?);
    older_claimant(object, &ctx.caches.provisioners, &claim(object), |other| {
        let theirs = desired(other);
        let recorded = other.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        theirs.name.name == own.name.name
            && theirs.organization == own.organization
            && deployment_id_of(other, Some(&theirs.control_plane), recorded, ctx).as_ref()
                == Some(deployment)
    })
}

/// Whether a key may be made now.
fn may_make(pool: &Observed) -> Result<(), Blocker> {
    // First, because without it neither its token nor its license is known.
    provisioner::control_plane(pool)?;
    pool.credentials.clone()?;
    if pool.gate.may_begin() {
        return Ok(());
    }
    Err(Blocker::new(pool.gate.reason, pool.gate.message.clone()))
}

/// The coderd that the spec leads to.
fn target(pool: &Observed) -> Result<CoderdTarget, Blocker> {
    let plane = provisioner::control_plane(pool)?;
    Ok(CoderdTarget {
        control_plane: plane.name_any(),
        url: provisioner::pods_url(plane),
        deployment_id: pool.deployment_id.clone(),
        credentials: Some(targets::credentials_of_pool(&pool.object, Some(plane))?),
    })
}
