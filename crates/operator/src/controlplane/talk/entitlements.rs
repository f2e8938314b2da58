//! What the license of a server allows. Anybody may ask, so that it needs no access.

use std::collections::BTreeMap;

use coder_k8s_api::{CoderControlPlane, EntitlementsStatus};
use coder_k8s_coderd::{Client, Entitlement, ErrorKind};
use coder_k8s_core::{
    controlplane::coderd::Entitlements,
    entitlements::{Tier, is_granted, state},
    outcome,
};
use jiff::Timestamp;

use super::{Talk, blocker};

/// Whether there is nothing to refresh: a server that knows no licenses will not learn of them.
pub(super) fn are_known_for_good(talk: &Talk) -> bool {
    talk.report.entitlements.as_ref().is_some_and(|known| known.details.is_none())
}

/// Asks once.
pub(super) async fn refresh(
    talk: &mut Talk,
    object: &CoderControlPlane,
    client: &Client,
) -> Result<(), outcome::Retry> {
    let checked = Timestamp::now();
    let found = match client.entitlements().await {
        Ok(found) => found,
        Err(error) if error.kind == ErrorKind::NotSupported => {
            // Known for good, so that its time does not move and nothing is written.
            let checked = talk.report.entitlements.as_ref().map_or(checked, |known| known.checked);
            let external_provisioners = "not_entitled".to_owned();
            talk.report.entitlements =
                Some(Entitlements { checked, tier: Tier::None, external_provisioners, details: None });
            return Ok(());
        }
        Err(error) => return Err(blocker(talk, object, &error)),
    };
    let features: BTreeMap<String, String> =
        found.features.iter().map(|(name, feature)| (name.clone(), word(&feature.entitlement))).collect();
    let details = EntitlementsStatus {
        has_license: found.has_license,
        trial: found.trial,
        features: features.clone().into_iter().filter(|(_, state)| is_granted(state)).collect(),
        warnings: found.warnings,
        errors: found.errors,
    };
    talk.report.entitlements = Some(Entitlements {
        checked,
        tier: Tier::of(found.has_license, found.trial, &features),
        external_provisioners: state(&features, "external_provisioner_daemons"),
        details: Some(details),
    });
    Ok(())
}

fn word(entitlement: &Entitlement) -> String {
    match entitlement {
        Entitlement::Entitled => "entitled",
        Entitlement::GracePeriod => "grace_period",
        Entitlement::NotEntitled => "not_entitled",
        Entitlement::Other(_) => "unknown",
    }
    .to_owned()
}
