//! Whether an image is older than the release that last ran on the database.
//!
//! coderd migrates its database when it starts and refuses one that a newer release has migrated. So going back to an
//! older image needs a backup of the database, which is worth a warning before anybody wonders.

use crate::workload::Release;

/// What to say about it. None: no downgrade, or none that the names show.
pub(super) fn warning(image: &str, last_ran: Option<&str>) -> Option<String> {
    let (asked, ran) = (Release::of_image(image)?, Release::parse(last_ran?)?);
    (asked < ran).then(|| {
        format!(
            "the image {image} is older than coderd {}, which last ran on this database; \
             coderd does not start on a database of a newer release: restore a backup, or go back to the newer image",
            last_ran.unwrap_or_default()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_certain_downgrade_is_warned_about() {
        let ran = Some("v2.31.1+abc123");
        for (image, warned) in [
            ("ghcr.io/coder/coder:v2.30.0", true),
            ("registry:5000/coder:v2.31.0@sha256:00", true),
            ("ghcr.io/coder/coder:v2.31.1", false),
            ("ghcr.io/coder/coder:v2.32.0", false),
            ("ghcr.io/coder/coder:latest", false),
            ("registry:5000/coder", false),
            ("ghcr.io/coder/coder@sha256:00", false),
        ] {
            assert_eq!(warning(image, ran).is_some(), warned, "{image}");
        }
        assert_eq!(warning("ghcr.io/coder/coder:v2.30.0", None), None);
        assert_eq!(warning("ghcr.io/coder/coder:v2.30.0", Some("devel")), None);
    }
}
