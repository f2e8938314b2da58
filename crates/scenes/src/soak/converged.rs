//! What must hold of a life that has converged.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Secret, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Resource, ResourceExt};
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;

use super::{
    actions::POOLS,
    life::Life,
    pool::{Pool, is_of, name_of},
    proxy,
};

/// Whether all is well. An error says what is not.
pub async fn check(life: &Life) -> Result<(), String> {
    plane(life).await?;
    for (pool, wanted) in &life.pools {
        is_settled(life, &name_of(*pool), wanted).await?;
    }
    for pool in (0..POOLS).filter(|pool| !life.pools.contains_key(pool)) {
        is_gone(life, &name_of(pool)).await?;
    }
    proxy::check(life).await?;
    let keys: Vec<_> = life.sim.keys().into_iter().map(|key| key.name).collect();
    if keys.len() != life.pools.len() {
        return Err(format!("{} pools and the keys {keys:?}", life.pools.len()));
    }
    Ok(())
}

async fn plane(life: &Life) -> Result<(), String> {
    let plane = life.api::<CoderControlPlane>().get("coder").await.map_err(|error| error.to_string())?;
    let status = plane.status.clone().unwrap_or_default();
    let conditions = &status.workload.conditions;
    for kind in ["Ready", "OperatorAccessReady", "LicenseApplied", "EntitlementsHealthy"] {
        is_true(conditions, kind, plane.metadata.generation)
            .map_err(|why| format!("control plane: {why}"))?;
    }
    let license = coder_k8s_core::controlplane::coderd::license::hash(life.license.expose_secret());
    if status.license_last_applied_hash != Some(license) {
        return Err("control plane: another license is applied".to_owned());
    }
    let Some(based) = &life.based else { return Ok(()) };
    let client = based.database.connect_as_superuser().await.map_err(|error| error.to_string())?;
    let tokens = "SELECT count(*) FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'";
    let tokens: i64 = client.query_one(tokens, &[]).await.map_err(|error| error.to_string())?.get(0);
    if tokens == 1 { Ok(()) } else { Err(format!("{tokens} tokens of the operator in the database")) }
}

pub fn is_true(conditions: &[Condition], kind: &str, generation: Option<i64>) -> Result<(), String> {
    let found = conditions.iter().find(|condition| condition.type_ == kind);
    match found {
        Some(found) if found.status == "True" && found.observed_generation == generation => Ok(()),
        found => Err(format!("{kind} of generation {generation:?} is {found:?}")),
    }
}

/// A pool has one key in coderd, as its spec says, and its Secret holds that.
async fn is_settled(life: &Life, name: &str, wanted: &Pool) -> Result<(), String> {
    let pool = life.api::<CoderProvisioner>().get(name).await.map_err(|error| format!("{name}: {error}"))?;
    let status = pool.status.clone().unwrap_or_default();
    let told = |what: &str| format!("{name}: {what}: {}", serde_json::to_string(&status).unwrap());
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(told("it is going"));
    }
    is_true(&status.workload.conditions, "Ready", pool.metadata.generation).map_err(|why| told(&why))?;
    if status.pending_key.is_some() || !status.stale_keys.is_empty() {
        return Err(told("a key is under way"));
    }
    let keys: Vec<_> = life.sim.keys().into_iter().filter(|key| is_of(&key.name, name)).collect();
    let [key] = keys.as_slice() else {
        return Err(told(&format!("{} keys", keys.len())));
    };
    let organization = life.sim.default_organization();
    let mut tags = key.tags.clone();
    tags.retain(|tag, _| tag != "scope" && tag != "owner");
    if tags != wanted.tags() || (key.organization == organization) == wanted.elsewhere {
        return Err(told(&format!("the key has tags {tags:?} in {}", key.organization)));
    }
    let secret = wanted.secret(name);
    let held = life.api::<Secret>().get_opt(&secret).await.map_err(|error| error.to_string())?;
    let held = held.and_then(|secret| secret.data?.remove("key"));
    if held.is_none_or(|held| held.0 != key.material.expose_secret().as_bytes()) {
        return Err(told("the Secret holds something else"));
    }
    if status.provisioner_key_id.as_ref() != Some(&key.id) {
        return Err(told(&format!("the key is {}", key.id)));
    }
    let other =
        if secret.ends_with("-other") { format!("{name}-provisioner-key") } else { format!("{name}-other") };
    is_absent::<Secret>(life, &other).await
}

/// Nothing is left of a pool.
async fn is_gone(life: &Life, name: &str) -> Result<(), String> {
    is_absent::<CoderProvisioner>(life, name).await?;
    is_absent::<Deployment>(life, &format!("provisioner-{name}")).await?;
    is_absent::<ServiceAccount>(life, &format!("{name}-provisioner")).await?;
    is_absent::<Secret>(life, &format!("{name}-provisioner-key")).await?;
    is_absent::<Secret>(life, &format!("{name}-other")).await
}

pub async fn is_absent<K>(life: &Life, name: &str) -> Result<(), String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    match life.api::<K>().get_opt(name).await {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(format!("{} {} is still there", K::kind(&()), found.name_any())),
        Err(error) => Err(error.to_string()),
    }
}
