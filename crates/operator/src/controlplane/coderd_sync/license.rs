//! Answers the queries and performs the effects of the license protocol: reads the Secret; lists, sends and removes licenses.
//!
//! What to do is decided in `core::controlplane::coderd::license`. The text of a license is read live and is in memory only
//! while it is hashed or sent.

use std::ops::ControlFlow;

use coder_k8s_api::{LicenseStatus, Reason};
use coder_k8s_coderd::{self as coderd, Client, ErrorKind};
use coder_k8s_core::{
    condition::whole_seconds,
    controlplane::coderd::{
        Step,
        license::{
            self, InstalledLicense, LicenseEffect, LicenseList, LicenseQuery, LicenseRecord, LicenseReport,
            LicenseText, LicenseVerdict, ObservedLicense,
        },
        license_inputs,
    },
    license_gate::Tier,
    outcome::{Blocker, Retry},
    sources,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use secrecy::{ExposeSecret, SecretString};

use super::{Exchange, Plane};
use crate::coderd::{Protocol, blocker_of, run_protocol, targets};

/// Reads the license. None: the spec names no Secret. Besides, the digest of what was read, if it could be read.
async fn read(plane: Plane<'_>) -> (Result<Option<SecretString>, Blocker>, Option<String>) {
    let Some((name, key)) = license::secret_key(plane.object) else { return (Ok(None), None) };
    let data = match targets::read_secret(&plane.key.namespace, name, plane.ctx).await {
        Ok(data) => data,
        Err(blocker) => return (Err(blocker), None),
    };
    let uid = plane.object.metadata.uid.as_deref().unwrap_or_default();
    let digest = sources::secret_digest(uid, name, key, data.as_ref().and_then(|data| data.value(key)));
    let missing = |what: &str| {
        let message = format!("Secret {name} of licenseSecretRef {what}");
        Err(Blocker::until_change(Reason::SecretMissing, message))
    };
    let text = match &data {
        None => missing("does not exist"),
        Some(data) => match data.value(key).map(std::str::from_utf8) {
            None => missing(&format!("has no key {key}")),
            Some(Err(_)) => missing(&format!("holds no text under the key {key}")),
            Some(Ok(text)) if text.trim().is_empty() => missing(&format!("is empty under the key {key}")),
            Some(Ok(text)) if text.trim().len() > coderd::intervals::MAX_LICENSE_BYTES => {
                let most = coderd::intervals::MAX_LICENSE_BYTES / 1024;
                let message = format!(
                    "Secret {name} of licenseSecretRef holds more than {most} KiB under the key {key}, which is no license"
                );
                Err(Blocker::until_change(Reason::NotALicense, message))
            }
            Some(Ok(text)) => Ok(Some(SecretString::from(text.trim().to_owned()))),
        },
    };
    (text, Some(digest))
}

/// Runs the protocol and puts its report into the state. Returns when to try again.
pub(super) async fn sync(exchange: &mut Exchange<'_>, client: &Client) -> Option<Retry> {
    let (object, server) = (exchange.plane.object, exchange.state.report.server.as_ref());
    let observed = ObservedLicense {
        server_version: server.map(|server| server.version.clone()).unwrap_or_default(),
        remove_replaced: object.spec.license.remove_replaced,
        was_applied: license::is_applied(&exchange.state.report, object, &exchange.present),
        record: LicenseRecord::of(&exchange.state.report, object),
        ..ObservedLicense::default()
    };
    let mut protocol = LicenseProtocol { observed, exchange, client, text: None, inputs: None };
    let Some(report) = run_protocol(&mut protocol).await else { return Some(Retry::Backoff) };
    let inputs = protocol.inputs;
    let LicenseReport { license, keeps, access, retry } = report;
    let known = &mut exchange.state.report;
    if keeps && matches!(known.license, Some(LicenseVerdict::Refused { .. })) {
        // The same value under another name: coderd need not refuse it again.
        known.license_inputs = inputs;
    } else if !keeps {
        known.license_inputs = inputs;
        known.license = license.map(|license| license.keeping_time_of(known.license.as_ref()));
    }
    known.access = access.or(known.access.take());
    retry
}

struct LicenseProtocol<'a, 'e> {
    observed: ObservedLicense,
    exchange: &'a mut Exchange<'e>,
    client: &'a Client,
    text: Option<SecretString>,
    /// The inputs of `LicenseApplied` that this run is about: with the license as it was read.
    inputs: Option<String>,
}

impl Protocol for LicenseProtocol<'_, '_> {
    type Query = LicenseQuery;
    type Effect = LicenseEffect;
    type Done = LicenseReport;

    fn decide(&mut self) -> Step<LicenseQuery, LicenseEffect, LicenseReport> {
        license::decide(&self.observed, Timestamp::now())
    }

    async fn ask(&mut self, query: LicenseQuery) {
        match query {
            LicenseQuery::Secret => {
                let (read, digest) = read(self.exchange.plane).await;
                self.inputs = digest.map(|digest| license_inputs(self.exchange.plane.object, &digest));
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
        let uploaded_at = ours.and_then(|ours| ours.uploaded_at);
        Ok(LicenseList { ours: ours.map(installed), uploaded_at, all: all.collect() })
    }

    async fn send(&mut self) {
        let Some(text) = &self.text else { return };
        self.observed.sent = Some(match self.client.add_license(text).await {
            Ok(added) => {
                tracing::info!("coderd accepted the license, as number {}", added.id);
                Ok(installed(&added))
            }
            Err(error) => {
                // coderd already has this very license: an earlier request may have been carried out unanswered. The list
                // says whether that is so.
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    self.observed.list = Some(self.list().await);
                }
                Err(blocker_of(&error))
            }
        });
    }

    async fn remove(&self, old: &InstalledLicense) -> Result<(), Blocker> {
        let Ok(id) = i32::try_from(old.id) else { return Ok(()) };
        match self.client.delete_license(id).await {
            Ok(()) => tracing::info!("removed license {id} in coderd, which was replaced"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!("cannot remove license {id} in coderd, which was replaced: {error}");
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
