//! How a registration is called, and whether it may be.

use super::{
    decide::{Flow, Pass, Stop},
    finding::Finding,
    seen::{Listed, Wanted},
    step::Settings,
};

/// The icon of a proxy for which nobody chose one. Without any, coderd would refuse every later change.
const ICON: &str = "/emojis/1f5fa.png";

/// Whether nobody else has the wanted name.
pub(super) fn is_free(
    pass: &Pass<'_>,
    wanted: &Wanted,
    listing: &[Listed],
    own: Option<&String>,
) -> Flow<()> {
    let conflict = |message| Err(Stop::Wait(Finding::stalled("ProxyConflict", message)));
    if let Some(elder) = &pass.seen.elder {
        return conflict(format!(
            "{elder} asks for the name {} too, and was there first; choose another one with proxyName",
            wanted.name
        ));
    }
    let other = listing
        .iter()
        .find(|listed| listed.name.eq_ignore_ascii_case(&wanted.name) && Some(&listed.id) != own);
    if other.is_none() {
        return Ok(());
    }
    conflict(format!(
        "coderd has a workspace proxy {} that this object did not register; delete it there, or choose another name with \
         proxyName",
        wanted.name
    ))
}

/// How it is called.
pub(super) fn called(listed: &Listed) -> Settings {
    Settings {
        name: listed.name.clone(),
        display_name: listed.display_name.clone(),
        icon: listed.icon.clone(),
    }
}

/// How the registration is to be called. What nobody chose stays as it is.
pub(super) fn settings(wanted: &Wanted, listed: Option<&Listed>) -> Settings {
    let kept = |text: fn(&Listed) -> &String| listed.map(text).filter(|text| !text.is_empty()).cloned();
    let display_name = wanted.display_name.clone().or_else(|| kept(|listed| &listed.display_name));
    let icon = wanted.icon.clone().or_else(|| kept(|listed| &listed.icon));
    Settings {
        // coderd takes names of another case for the same, and so does nobody rename for it.
        name: listed
            .map(|listed| listed.name.clone())
            .filter(|name| name.eq_ignore_ascii_case(&wanted.name))
            .unwrap_or_else(|| wanted.name.clone()),
        display_name: display_name.unwrap_or_else(|| wanted.name.clone()),
        icon: icon.unwrap_or_else(|| ICON.to_owned()),
    }
}
