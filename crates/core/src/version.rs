//! Versions of coderd and its daemons, as they and their images call themselves.

/// Major, minor and patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Major and minor: what two programs must share to be of one release.
    pub fn release(self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

/// The version in a text such as `v2.30.0-rc.1+abc`.
pub fn parse(text: &str) -> Option<Version> {
    let core = text.trim_start_matches('v').split(['-', '+']).next()?;
    let mut parts = core.split('.').map(|part| part.parse().ok());
    let found = Version { major: parts.next()??, minor: parts.next()??, patch: parts.next()?? };
    parts.next().is_none().then_some(found)
}

/// The version that the tag of an image says.
pub fn of_image(image: &str) -> Option<Version> {
    let image = image.split('@').next()?;
    let name = image.rsplit('/').next()?;
    parse(name.split_once(':').map(|(_, tag)| tag)?)
}
