//! The license: read from its Secret, looked for in coderd, sent if it is not there.
//!
//! Its text is in memory only while it is hashed or sent.

use coder_k8s_api::{CoderControlPlane, Reason, condition::kind};
use coder_k8s_coderd::{self as coderd, Client, ErrorKind};
use coder_k8s_core::{
    controlplane::coderd::{Access, Blocker, Installed, License},
    entitlements::Tier,
    license::{self, InstalledLicense, LicenseRecord, LicenseStep},
    outcome,
};
use coder_k8s_engine::{key::Key, secret};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::{Talk, as_trouble, may_write, retry};
use crate::controller::Context;

/// Whether the license that the spec asks for was last known to be applied.
pub(super) fn is_applied(talk: &Talk, object: &CoderControlPlane) -> bool {
    match &talk.report.license {
        Some(License::Applied { .. }) => true,
        Some(_) => false,
        None => {
            let conditions = object.status.iter().flat_map(|status| &status.workload.conditions);
            let said = conditions.into_iter().find(|c| c.type_ == kind::LICENSE_APPLIED);
            object.spec.license_secret_ref.is_none() || said.is_some_and(|c| c.status == "True")
        }
    }
}

/// Whether there is still something to try. What coderd refused is left until something changes.
pub(super) fn is_open(talk: &Talk, object: &CoderControlPlane) -> bool {
    !is_applied(talk, object) && !matches!(talk.report.license, Some(License::Refused { .. }))
}

/// Whether the Secret holds another license than the one that was applied last: it was exchanged while nobody looked.
pub(super) async fn was_exchanged(key: &Key, object: &CoderControlPlane, ctx: &Context) -> bool {
    let recorded = object.status.as_ref().and_then(|status| status.license_last_applied_hash.clone());
    match read(key, object, ctx).await {
        Ok(Some(Ok(text))) => recorded != Some(license::hash(text.expose_secret())),
        _ => false,
    }
}

/// The license of the Secret. None: none is asked for. The inner error says what is missing.
async fn read(
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<Option<Result<SecretString, Blocker>>, secret::Error> {
    let Some(reference) = &object.spec.license_secret_ref else { return Ok(None) };
    let data_key = reference.key.as_ref().map_or("license", AsRef::as_ref);
    let data = secret::read(&ctx.client, &key.namespace, reference.name.as_str()).await?;
    let missing = |what: &str| {
        let message = format!("Secret {} for licenseSecretRef {what}", reference.name);
        Ok(Some(Err(Blocker::new(Reason::SecretMissing, message))))
    };
    let Some(data) = data else { return missing("is not there") };
    let Some(value) = data.value(data_key) else { return missing(&format!("has no key {data_key}")) };
    let Ok(text) = std::str::from_utf8(value) else {
        return missing(&format!("holds no text under {data_key}"));
    };
    if text.trim().is_empty() {
        return missing(&format!("holds nothing but blanks under {data_key}"));
    }
    Ok(Some(Ok(SecretString::from(text.trim().to_owned()))))
}

/// Makes coderd hold the license of the Secret.
pub(super) async fn apply(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    client: &Client,
    ctx: &Context,
) -> Result<(), outcome::Retry> {
    let text = match read(key, object, ctx).await {
        Ok(None) => {
            talk.report.license = None;
            return Ok(());
        }
        Ok(Some(Err(missing))) => {
            talk.report.license = Some(License::Blocker(missing));
            return Ok(());
        }
        Ok(Some(Ok(text))) => text,
        Err(error) => {
            talk.report.license = Some(License::Blocker(Blocker::new(Reason::Error, error.to_string())));
            return Err(outcome::Retry::Backoff);
        }
    };
    let hash = license::hash(text.expose_secret());
    let recorded = recorded(talk, object);
    let same = recorded.hash.as_ref() == Some(&hash) && is_applied(talk, object);
    let version = talk.report.server.as_ref().map(|server| server.version.clone()).unwrap_or_default();
    let claims = coderd::license::Claims::read(&text);
    let listed = match client.licenses().await {
        Ok(listed) => listed,
        Err(error) => return fails(talk, &error, same, &hash, &version),
    };
    let ours = claims.as_ref().ok().and_then(|claims| coderd::license::find(claims, &listed));
    let all: Vec<InstalledLicense> = listed.iter().map(in_list).collect();
    let next = license::step(
        &hash,
        &version,
        claims.is_ok(),
        ours.map(in_list).as_ref(),
        &all,
        &recorded,
        object.spec.license.remove_replaced,
    );
    match next {
        LicenseStep::Rest => applied(talk, hash, None, ours, None),
        LicenseStep::Remove(old) => {
            applied(talk, hash.clone(), None, ours, Some(&old));
            remove(&old, client, ctx).await?;
            applied(talk, hash, None, ours, None);
        }
        LicenseStep::Refused => {}
        LicenseStep::Send if !may_write(ctx) => return Err(outcome::Retry::Backoff),
        LicenseStep::Send => match client.add_license(&text).await {
            Ok(added) => {
                tracing::info!(license = added.id, "coderd accepted the license");
                let added_one = in_list(&added);
                let with: Vec<InstalledLicense> = all.into_iter().chain([added_one.clone()]).collect();
                let then = license::step(
                    &hash,
                    &version,
                    true,
                    Some(&added_one),
                    &with,
                    &recorded,
                    object.spec.license.remove_replaced,
                );
                let now = Some(Timestamp::now());
                if let LicenseStep::Remove(old) = then {
                    applied(talk, hash.clone(), now, Some(&added), Some(&old));
                    remove(&old, client, ctx).await?;
                }
                applied(talk, hash, now, Some(&added), None);
            }
            Err(error) if matches!(error.kind, ErrorKind::Duplicate { .. }) => {
                // Somebody was quicker. The list shows it now, and the next conversation looks at what it replaces.
                let listed = client.licenses().await.unwrap_or_default();
                let ours = claims.as_ref().ok().and_then(|claims| coderd::license::find(claims, &listed));
                let before = recorded.uuid.filter(|uuid| ours.is_some_and(|ours| ours.uuid != *uuid));
                let old = before.and_then(|uuid| listed.iter().map(in_list).find(|old| old.uuid == uuid));
                let old = old.filter(|_| object.spec.license.remove_replaced);
                applied(talk, hash, Some(Timestamp::now()), ours, old.as_ref());
            }
            Err(error) => return fails(talk, &error, same, &hash, &version),
        },
    }
    Ok(())
}

/// What earlier conversations left: in this process, else on the status.
fn recorded(talk: &Talk, object: &CoderControlPlane) -> LicenseRecord {
    let status = object.status.as_ref();
    let shown = status.and_then(|status| status.license.as_ref());
    let on_status = LicenseRecord {
        hash: status.and_then(|status| status.license_last_applied_hash.clone()),
        uuid: shown.and_then(|license| license.replaces.clone().or_else(|| license.uuid.clone())),
        refused: shown.and_then(|license| license.refused.clone()),
    };
    match &talk.report.license {
        Some(License::Applied { hash, installed, .. }) => LicenseRecord {
            hash: Some(hash.clone()),
            uuid: installed
                .as_ref()
                .map(|installed| installed.replaces.clone().unwrap_or_else(|| installed.uuid.clone()))
                .or(on_status.uuid),
            refused: None,
        },
        Some(License::Refused { mark, .. }) => LicenseRecord { refused: Some(mark.clone()), ..on_status },
        _ => on_status,
    }
}

/// Removes a license whose successor is there.
async fn remove(old: &InstalledLicense, client: &Client, ctx: &Context) -> Result<(), outcome::Retry> {
    let Ok(id) = i32::try_from(old.id) else { return Ok(()) };
    if !may_write(ctx) {
        return Err(outcome::Retry::Backoff);
    }
    match client.delete_license(id).await {
        Ok(()) => tracing::info!(license = id, "removed the license that was replaced"),
        Err(error) if error.is_not_found() => {}
        Err(error) => {
            tracing::warn!("the license that was replaced could not be removed: {error}");
            return Err(retry(&error));
        }
    }
    Ok(())
}

/// Notes a failed call. What was applied stays so while a passing trouble lasts.
fn fails(
    talk: &mut Talk,
    error: &coderd::Error,
    same: bool,
    hash: &str,
    version: &str,
) -> Result<(), outcome::Retry> {
    let what = as_trouble(error);
    match &error.kind {
        ErrorKind::InvalidLicense { .. } | ErrorKind::NotSupported => {
            let mark = license::mark(hash, version);
            talk.report.license = Some(License::Refused { blocker: what, mark });
            Ok(())
        }
        ErrorKind::Unauthenticated { .. } if same => {
            talk.report.access = Some(Access::Refused(what));
            Ok(())
        }
        ErrorKind::Unauthenticated { .. } => {
            talk.report.access = Some(Access::Refused(what.clone()));
            talk.report.license = Some(License::Blocker(what));
            Ok(())
        }
        ErrorKind::Forbidden { .. } | ErrorKind::Redirected { .. } if same => {
            talk.report.access = Some(super::access::in_trouble(error));
            Ok(())
        }
        ErrorKind::Forbidden { .. } | ErrorKind::Redirected { .. } => {
            talk.report.license = Some(License::Blocker(what));
            Ok(())
        }
        _ if same => {
            talk.report.access = Some(Access::Degraded(what));
            Err(retry(error))
        }
        _ => {
            talk.report.license = Some(License::Blocker(what));
            Err(retry(error))
        }
    }
}

/// Notes that coderd holds the license, and which one is still to be removed for it.
fn applied(
    talk: &mut Talk,
    hash: String,
    accepted: Option<Timestamp>,
    installed: Option<&coderd::License>,
    replaces: Option<&InstalledLicense>,
) {
    let before = match &talk.report.license {
        Some(License::Applied { hash: before, accepted, .. }) if *before == hash => *accepted,
        _ => None,
    };
    talk.report.license = Some(License::Applied {
        hash,
        accepted: accepted.or(before),
        installed: installed.map(|license| Installed {
            id: license.id.into(),
            uuid: license.uuid.clone(),
            account: license.claims.account_id.clone(),
            tier: Tier::claimed(&license.claims.feature_set, license.claims.trial),
            expires: license.claims.license_expires,
            replaces: replaces.map(|old| old.uuid.clone()),
        }),
    });
}

fn in_list(license: &coderd::License) -> InstalledLicense {
    InstalledLicense { id: license.id.into(), uuid: license.uuid.clone() }
}
