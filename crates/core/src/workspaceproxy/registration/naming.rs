//! How a registration is called, and whether it may be.

use super::{
    decide::{Flow, RegistrationFacts, Stop},
    effect::ProxyProfile,
    observed::{DesiredRegistration, ListedProxy},
    verdict::CredentialVerdict,
};
use coder_k8s_api::Reason;

/// The icon of a proxy for which nobody chose one. Without any, coderd would refuse every later change.
const ICON: &str = "/emojis/1f5fa.png";

/// Whether nobody else has the wanted name.
pub(super) fn is_free(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    listing: &[ListedProxy],
    own: Option<&String>,
) -> Flow<()> {
    let conflict = |message| Err(Stop::Wait(CredentialVerdict::stalled(Reason::ProxyConflict, message)));
    if let Some(name_conflict) = &facts.observed.name_conflict {
        return conflict(format!(
            "{name_conflict} asks for the name {} too, and was there first; choose another one with proxyName",
            desired.name
        ));
    }
    let other = listing
        .iter()
        .find(|listed| listed.name.eq_ignore_ascii_case(&desired.name) && Some(&listed.id) != own);
    if other.is_none() {
        return Ok(());
    }
    conflict(format!(
        "coderd has a workspace proxy {} that this object did not register; delete it there, or choose another name with \
         proxyName",
        desired.name
    ))
}

/// How it is called.
pub(super) fn called(listed: &ListedProxy) -> ProxyProfile {
    ProxyProfile {
        name: listed.name.clone(),
        display_name: listed.display_name.clone(),
        icon: listed.icon.clone(),
    }
}

/// How the registration is to be called. What nobody chose stays as it is.
pub(super) fn settings(desired: &DesiredRegistration, listed: Option<&ListedProxy>) -> ProxyProfile {
    let kept = |text: fn(&ListedProxy) -> &String| listed.map(text).filter(|text| !text.is_empty()).cloned();
    let display_name = desired.display_name.clone().or_else(|| kept(|listed| &listed.display_name));
    let icon = desired.icon.clone().or_else(|| kept(|listed| &listed.icon));
    ProxyProfile {
        // coderd takes names of another case for the same, and so does nobody rename for it.
        name: listed
            .map(|listed| listed.name.clone())
            .filter(|name| name.eq_ignore_ascii_case(&desired.name))
            .unwrap_or_else(|| desired.name.clone()),
        display_name: display_name.unwrap_or_else(|| desired.name.clone()),
        icon: icon.unwrap_or_else(|| ICON.to_owned()),
    }
}
