//! Checks of licenses and entitlements.

use std::sync::Arc;

use coder_k8s_coderd::{
    Entitlement, Entitlements, Refreshed,
    license::{self, Claims},
};

use super::{Bench, Check, Finding, Needs, ensure, member, refused, text};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("anybody may read the entitlements", Needs::Enterprise, entitlements),
        Check::new("without a license nothing is entitled", Needs::Unlicensed, nothing_entitled),
        Check::new("a premium license entitles to daemons and proxies", Needs::Licensed, premium_entitled),
        Check::new("what is no license is refused as such", Needs::Enterprise, junk_license),
        Check::new("a license that is not there is not found", Needs::Enterprise, unknown_license),
        Check::new("a member sees no licenses and adds none", Needs::Enterprise, member_licenses),
        Check::new("entitlements are refreshed at most once a minute", Needs::Enterprise, refresh),
        Check::new("a license is added once, found, and deleted", Needs::SpareLicense, license_life),
    ]
}

const FEATURES: [&str; 5] = [
    "user_limit",
    "external_provisioner_daemons",
    "workspace_proxy",
    "custom_roles",
    "multiple_organizations",
];

async fn read(bench: &Bench) -> Result<Entitlements, String> {
    bench.nobody.entitlements().await.map_err(text)
}

async fn entitlements(bench: Arc<Bench>) -> Finding {
    let found = read(&bench).await?;
    for name in FEATURES {
        let feature = found.features.get(name).ok_or(format!("{name} is missing"))?;
        ensure(!matches!(feature.entitlement, Entitlement::Other(_)), name)?;
    }
    ensure(found.refreshed_at.is_some(), "the time of the last refresh")
}

async fn nothing_entitled(bench: Arc<Bench>) -> Finding {
    let found = read(&bench).await?;
    ensure(!found.has_license && !found.trial, "no license")?;
    for name in FEATURES.into_iter().filter(|name| *name != "user_limit") {
        let feature = found.features.get(name).ok_or(format!("{name} is missing"))?;
        ensure(feature.entitlement == Entitlement::NotEntitled && !feature.enabled, name)?;
    }
    Ok(())
}

async fn premium_entitled(bench: Arc<Bench>) -> Finding {
    let found = read(&bench).await?;
    ensure(found.has_license, "a license")?;
    for name in FEATURES {
        let feature = found.features.get(name).ok_or(format!("{name} is missing"))?;
        ensure(feature.entitlement != Entitlement::NotEntitled && feature.enabled, name)?;
    }
    Ok(())
}

async fn junk_license(bench: Arc<Bench>) -> Finding {
    // A license without a valid signature that is correct otherwise.
    let unsigned = "eyJhbGciOiJFZERTQSIsImtpZCI6IjIwMjItMDgtMTIifQ.eyJ2ZXJzaW9uIjozfQ.c2lnbmF0dXJl";
    for junk in ["", "junk", "a.b.c", unsigned] {
        refused(bench.owner.add_license(&junk.into()).await, "InvalidLicense")?;
    }
    Ok(())
}

async fn unknown_license(bench: Arc<Bench>) -> Finding {
    refused(bench.owner.delete_license(i32::MAX).await, "NotFound")
}

async fn member_licenses(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    ensure(member.licenses().await.map_err(text)?.is_empty(), "an empty list")?;
    refused(member.add_license(&"junk".into()).await, "Forbidden")?;
    refused(member.delete_license(1).await, "Forbidden")
}

async fn refresh(bench: Arc<Bench>) -> Finding {
    bench.owner.refresh_entitlements().await.map_err(text)?;
    let again = bench.owner.refresh_entitlements().await.map_err(text)?;
    ensure(again == Refreshed::Lately, "the second refresh comes too early")
}

async fn license_life(bench: Arc<Bench>) -> Finding {
    let license = bench.subject.spare_license.as_ref().ok_or("no spare license")?;
    let claims = Claims::read(license).map_err(|error| error.to_string())?;
    let before = bench.owner.licenses().await.map_err(text)?;
    ensure(license::find(&claims, &before).is_none(), "not installed yet")?;
    let added = bench.owner.add_license(license).await.map_err(text)?;
    ensure(added.claims == claims, "the claims are given back as they are")?;
    let again = bench.owner.add_license(license).await;
    let listed = bench.owner.licenses().await.map_err(text)?;
    let found = license::find(&claims, &listed).map(|found| found.id);
    let has_license = read(&bench).await?.has_license;
    bench.owner.delete_license(added.id).await.map_err(text)?;
    ensure(found == Some(added.id), "found by its claims")?;
    ensure(has_license, "the entitlements follow at once")?;
    refused(again, "Duplicate")?;
    refused(bench.owner.delete_license(added.id).await, "NotFound")
}
