//! Answers the queries and performs the effects of the license protocol: reads the Secret; lists, sends and removes licenses.
//!
//! What to do is decided in `core::controlplane::coderd::license`. The text of a license is read live and is in memory only
//! while it is hashed or sent.

use std::ops::ControlFlow;

use coder_k8s_api::{CoderControlPlane, LicenseStatus, Reason, condition::kind};
use coder_k8s_coderd::{self as coderd, Client, ErrorKind};
use coder_k8s_core::{
    condition::whole_seconds,
    controlplane::coderd::license::{
        self, InstalledLicense, License, LicenseEffect, LicenseList, LicenseQuery, LicenseRecord,
        LicenseReport, LicenseText, ObservedLicense,
    },
    entitlements::Tier,
    outcome::{Blocker, Retry},
    steps::Step,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use secrecy::{ExposeSecret, SecretString};

use super::{Exchange, Plane, SyncState};
use crate::coderd::{blocker_of, driver, targets};

/// Whether the license of the spec is applied, by the last exchange or else by the status. True if the spec names none.
pub(super) fn is_applied(state: &SyncState, object: &CoderControlPlane) -> bool {
    match &state.report.license {
        Some(License::Applied { .. }) => true,
        Some(License::Blocker(_) | License::Refused { .. }) => false,
        None => {
            let mut conditions = object.status.iter().flat_map(|status| &status.workload.conditions);
            let condition = conditions.find(|c| c.type_ == kind::LICENSE_APPLIED);
            object.spec.license_secret_ref.is_none() || condition.is_some_and(|c| c.status == "True")
        }
    }
}

/// Whether an exchange between two verifications should try to apply the license. A license that coderd rejected waits for a
/// change.
pub(super) fn is_pending(state: &SyncState, object: &CoderControlPlane) -> bool {
    !is_applied(state, object) && !matches!(state.report.license, Some(License::Refused { .. }))
}

/// Whether the Secret holds another license than the one that was applied last. False if it cannot be read: the exchange
/// reports that.
pub(super) async fn secret_changed(plane: Plane<'_>) -> bool {
    let recorded = plane.object.status.as_ref().and_then(|status| status.license_last_applied_hash.clone());
    match read(plane).await {
        Ok(Some(text)) => recorded != Some(license::hash(text.expose_secret())),
        Ok(None) | Err(_) => false,
    }
}

/// Reads the license. None: the spec names no Secret.
async fn read(Plane { key, object, ctx, .. }: Plane<'_>) -> Result<Option<SecretString>, Blocker> {
    let Some(reference) = &object.spec.license_secret_ref else { return Ok(None) };
    let data_key = reference.key.as_ref().map_or("license", AsRef::as_ref);
    let data = targets::read_secret(&key.namespace, reference.name.as_str(), ctx).await?;
    let missing = |what: &str| {
        let message = format!("Secret {} of licenseSecretRef {what}", reference.name);
        Err(Blocker::until_change(Reason::SecretMissing, message))
    };
    let Some(data) = data else { return missing("does not exist") };
    let Some(value) = data.value(data_key) else { return missing(&format!("has no key {data_key}")) };
    let Ok(text) = std::str::from_utf8(value) else {
        return missing(&format!("holds no text under the key {data_key}"));
    };
    if text.trim().is_empty() {
        return missing(&format!("is empty under the key {data_key}"));
    }
    Ok(Some(SecretString::from(text.trim().to_owned())))
}

/// Runs the protocol and puts its report into the state. Returns when to try again.
pub(super) async fn sync(exchange: &mut Exchange<'_>, client: &Client) -> Option<Retry> {
    let (object, server) = (exchange.plane.object, exchange.state.report.server.as_ref());
    let observed = ObservedLicense {
        server_version: server.map(|server| server.version.clone()).unwrap_or_default(),
        remove_replaced: object.spec.license.remove_replaced,
        was_applied: is_applied(exchange.state, object),
        record: record(exchange.state, object),
        ..ObservedLicense::default()
    };
    let mut protocol = LicenseProtocol { observed, exchange, client, text: None };
    let Some(report) = driver::run(&mut protocol).await else { return Some(Retry::Backoff) };
    let LicenseReport { license, keeps, access, retry } = report;
    let known = &mut exchange.state.report;
    if !keeps {
        known.license = license.map(|license| license.keeping_time_of(known.license.as_ref()));
    }
    if access.is_some() {
        known.access = access;
    }
    retry
}

/// What is recorded of earlier exchanges: in this process, else on the status.
fn record(state: &SyncState, object: &CoderControlPlane) -> LicenseRecord {
    let status = object.status.as_ref();
    let on_status = status.and_then(|status| status.license.as_ref());
    let recorded = LicenseRecord {
        hash: status.and_then(|status| status.license_last_applied_hash.clone()),
        uuid: on_status.and_then(|license| license.replaces.clone().or_else(|| license.uuid.clone())),
        refused: on_status.and_then(|license| license.refused.clone()),
    };
    match &state.report.license {
        Some(License::Applied { hash, installed, .. }) => LicenseRecord {
            hash: Some(hash.clone()),
            uuid: match installed {
                Some(installed) => installed.replaces.clone().or_else(|| installed.uuid.clone()),
                None => recorded.uuid,
            },
            refused: None,
        },
        Some(License::Refused { mark, .. }) => LicenseRecord { refused: Some(mark.clone()), ..recorded },
        Some(License::Blocker(_)) | None => recorded,
    }
}

struct LicenseProtocol<'a, 'e> {
    observed: ObservedLicense,
    exchange: &'a mut Exchange<'e>,
    client: &'a Client,
    text: Option<SecretString>,
}

impl driver::Protocol for LicenseProtocol<'_, '_> {
    type Query = LicenseQuery;
    type Effect = LicenseEffect;
    type Done = LicenseReport;

    fn decide(&mut self) -> Step<LicenseQuery, LicenseEffect, LicenseReport> {
        license::decide(&self.observed, Timestamp::now())
    }

    async fn ask(&mut self, query: LicenseQuery) {
        match query {
            LicenseQuery::Secret => {
                let read = read(self.exchange.plane).await;
                self.observed.secret = Some(read.map(|text| {
                    self.text = text;
                    self.text.as_ref().map(|text| LicenseText {
                        hash: license::hash(text.expose_secret()),
                        is_recognisable: coderd::license::Claims::read(text).is_ok(),
                    })
                }));
            }
            LicenseQuery::List => self.observed.list = Some(self.list().await),
        }
    }

    async fn act(&mut self, effect: LicenseEffect) -> ControlFlow<LicenseReport> {
        // The license of a spec that was edited meanwhile must not be sent.
        if !self.exchange.plane.ctx.is_unedited(self.exchange.plane.object).await {
            let (keeps, retry) = (true, Some(Retry::Backoff));
            return ControlFlow::Break(LicenseReport { keeps, retry, ..LicenseReport::default() });
        }
        match effect {
            LicenseEffect::Send => self.send().await,
            LicenseEffect::Remove(old) => self.observed.removed = Some(self.remove(&old).await),
        }
        ControlFlow::Continue(())
    }
}

impl LicenseProtocol<'_, '_> {
    async fn list(&self) -> Result<LicenseList, Blocker> {
        let listed = self.client.licenses().await.map_err(|error| blocker_of(&error))?;
        let claims = self.text.as_ref().and_then(|text| coderd::license::Claims::read(text).ok());
        let ours = claims.as_ref().and_then(|claims| coderd::license::find(claims, &listed));
        let all = listed.iter().map(|one| InstalledLicense { id: one.id.into(), uuid: one.uuid.clone() });
        Ok(LicenseList { ours: ours.map(installed), all: all.collect() })
    }

    async fn send(&mut self) {
        let Some(text) = &self.text else { return };
        self.observed.sent = Some(match self.client.add_license(text).await {
            Ok(added) => {
                tracing::info!(license = added.id, "coderd accepted the license");
                Ok(installed(&added))
            }
            Err(error) => {
                // coderd already has this very license: an earlier request may have been carried out unanswered.
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    self.observed.list = Some(Ok(self.list().await.unwrap_or_default()));
                }
                Err(blocker_of(&error))
            }
        });
    }

    async fn remove(&self, old: &InstalledLicense) -> Result<(), Blocker> {
        let Ok(id) = i32::try_from(old.id) else { return Ok(()) };
        match self.client.delete_license(id).await {
            Ok(()) => tracing::info!(license = id, "removed the license that was replaced"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(license = id, "cannot remove the license that was replaced: {error}");
                return Err(blocker_of(&error));
            }
        }
        Ok(())
    }
}

/// A license as the status shows it, from which what coderd leaves empty is left out.
fn installed(license: &coderd::License) -> LicenseStatus {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    LicenseStatus {
        id: Some(license.id.into()),
        uuid: given(&license.uuid),
        account: given(&license.claims.account_id),
        tier: Some(Tier::claimed(&license.claims.feature_set, license.claims.trial).as_str().to_owned()),
        expires: license.claims.license_expires.map(|at| Time(whole_seconds(at))),
        ..LicenseStatus::default()
    }
}
