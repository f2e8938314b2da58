//! Decides the image of coderd, and what the condition `Downgrade` says about it.
//!
//! coderd migrates its database when it starts, and does not start on a database that a newer minor release has migrated.
//! So a newer image that somebody else set on the Deployment, and that has run, is kept until a person edits `spec.image`.
//! An edit of `spec.image` is always followed. Releases are compared by the names of images: one that is no version, such
//! as `latest`, is never older or newer.

use coder_k8s_api::{CoderControlPlane, names::annotation};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use crate::workload::{self, Release, Rollout};

/// The image that the Deployment gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// That of the spec.
    Asked,
    /// The newer one that the Deployment has.
    Kept(String),
}

/// Decides the image, given the Deployment as it is.
pub(super) fn decide(object: &CoderControlPlane, live: Option<&Deployment>) -> Image {
    let asked = object.spec.image.as_str();
    let kept = live.filter(|_| !is_edited(object)).and_then(|deployment| {
        let image = workload::image(deployment).filter(|image| image != asked)?;
        let (asked, has) = (Release::of_image(asked)?, Release::of_image(&image));
        let reported = object.status.as_ref().and_then(|status| Release::parse(status.version.as_deref()?));
        let kept_before = deployment.annotations().get(annotation::KEPT_IMAGE);
        let ran = reported.max(kept_before.and_then(|image| Release::of_image(image)));
        let rollout = Rollout::of(Some(deployment));
        let has_run = rollout.is_rolled_out() && rollout.ready > 0;
        let is_newer = match has {
            Some(has) => has > asked && (has_run || ran > Some(asked)),
            None => ran > Some(asked),
        };
        is_newer.then_some(image)
    });
    kept.map_or(Image::Asked, Image::Kept)
}

/// Whether the newer image of a Deployment is about to be replaced by the older one of the spec that nobody edited. A cached
/// Deployment may not show yet that the newer one has run: it is read live before that is decided.
pub fn replaces_newer(object: &CoderControlPlane, cached: Option<&Deployment>) -> bool {
    let has = cached.and_then(workload::image).and_then(|image| Release::of_image(&image));
    let is_newer =
        has.zip(Release::of_image(object.spec.image.as_str())).is_some_and(|(has, asked)| has > asked);
    is_newer && !is_edited(object) && decide(object, cached) == Image::Asked
}

/// Whether `spec.image` was edited since the Deployment last had the image of the spec. A status of an earlier version of the
/// operator does not record that image: then any edit since that status counts.
fn is_edited(object: &CoderControlPlane) -> bool {
    let Some(status) = &object.status else { return true };
    match &status.applied_image {
        Some(applied) => applied != object.spec.image.as_str(),
        None => status.workload.observed_generation != object.metadata.generation,
    }
}

/// The `appliedImage` of the status, given the Deployment as it is now. It follows the spec only when the Deployment does, so
/// that an edit counts as one until it is written.
pub(super) fn applied(
    object: &CoderControlPlane,
    image: &Image,
    live: Option<&Deployment>,
) -> Option<String> {
    let asked = object.spec.image.to_string();
    let is_applied = live.and_then(workload::image).as_ref() == Some(&asked);
    if is_applied || matches!(image, Image::Kept(_)) {
        return Some(asked);
    }
    object.status.as_ref().and_then(|status| status.applied_image.clone())
}

/// The message of the condition `Downgrade`. None: the image of the spec is not of an older minor release than the one that
/// ran on the database, or its name does not show it.
pub(super) fn downgrade(asked: &str, image: &Image, last_ran: Option<&str>) -> Option<String> {
    if let Image::Kept(kept) = image {
        return Some(format!(
            "the Deployment has the image {kept}, which somebody else set and which has run on this database; \
             spec.image is {asked}, an older release, whose coderd does not start on a database of a newer one. \
             The operator keeps {kept}: set spec.image to it or to a newer release; to go back, restore a backup of the \
             database and set the image of the Deployment to {asked}"
        ));
    }
    let ran = last_ran?;
    (Release::of_image(asked)? < Release::parse(ran)?).then(|| {
        format!(
            "the image {asked} is older than coderd {ran}, which last ran on this database; \
             coderd does not start on a database of a newer release: restore a backup, or go back to the newer image"
        )
    })
}

#[cfg(test)]
mod tests {
    use coder_k8s_api::CoderControlPlaneStatus;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_certain_downgrade_is_warned_about() {
        for (tag, ran, warned) in [
            (":v2.30.0", "v2.31.1+abc123", true),
            (":v2.30.9@sha256:00", "v2.31.1", true),
            (":v1.44.0", "v2.0.0", true),
            (":v2.34.3", "v2.34.8", false),
            (":v2.31.0@sha256:00", "v2.31.1", false),
            (":v2.31.1", "v2.31.1", false),
            (":v2.32.0", "v2.31.1", false),
            // A release candidate is before its release, and of the same minor release.
            (":v2.35.0-rc.1", "v2.35.0", false),
            (":v2.35.0", "v2.35.0-rc.1", false),
            (":v2.35.0-rc.1", "v2.34.9", false),
            (":v2.34.9", "v2.35.0-rc.1", true),
            (":v2.34.9-rc.0", "v2.35.0-rc.1+abc", true),
            (":latest", "v2.31.1", false),
            (":main", "v2.31.1", false),
            ("", "v2.31.1", false),
            ("@sha256:00", "v2.31.1", false),
            (":v2.30.0", "devel", false),
        ] {
            let image = format!("registry:5000/coder/coder{tag}");
            let message = downgrade(&image, &Image::Asked, Some(ran));
            assert_eq!(message.is_some(), warned, "{image} after {ran}");
        }
        assert_eq!(downgrade("ghcr.io/coder/coder:v2.30.0", &Image::Asked, None), None);
    }

    fn plane(asked: &str, applied: Option<&str>, version: &str) -> CoderControlPlane {
        let mut object = CoderControlPlane::new(
            "coder",
            serde_json::from_value(json!({"image": format!("coder:{asked}")})).unwrap(),
        );
        object.metadata.generation = Some(2);
        object.status = Some(CoderControlPlaneStatus {
            version: Some(version.to_owned()),
            applied_image: applied.map(|tag| format!("coder:{tag}")),
            ..Default::default()
        });
        object
    }

    fn deployment(tag: &str, ready: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"generation": 1},
            "spec": {"replicas": 1, "selector": {}, "template": {
                "spec": {"containers": [{"name": "coder", "image": format!("coder:{tag}")}]}}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": ready, "readyReplicas": ready,
                "availableReplicas": ready},
        }))
        .unwrap()
    }

    #[test]
    fn a_newer_image_that_has_run_is_kept_until_the_spec_is_edited() {
        for (asked, applied, version, live, ready, kept) in [
            // Somebody set a newer image, and coderd reported it, or its pods are ready.
            ("v2.34.1", "v2.34.1", "v2.35.0", "v2.35.0", 0, true),
            ("v2.34.1", "v2.34.1", "v2.34.1", "v2.35.0", 1, true),
            ("v2.34.1", "v2.34.1", "v2.35.0", "latest", 1, true),
            ("v2.34.1", "v2.34.1", "v2.36.0", "v2.35.0-rc.1", 0, true),
            // It has not run.
            ("v2.34.1", "v2.34.1", "v2.34.1", "v2.35.0", 0, false),
            ("v2.34.1", "v2.34.1", "v2.34.1", "latest", 1, false),
            // The same minor release has the same database.
            ("v2.34.1", "v2.34.1", "v2.34.8", "v2.34.8", 1, false),
            ("v2.35.0", "v2.35.0", "v2.35.0", "v2.35.0-rc.1", 1, false),
            // It is older, or the names do not show it.
            ("v2.35.0", "v2.35.0", "v2.35.0", "v2.34.0", 1, false),
            ("latest", "latest", "v2.35.0", "v2.35.0", 1, false),
            // A person edited the spec.
            ("v2.34.1", "v2.35.0", "v2.35.0", "v2.35.0", 1, false),
            ("v2.33.0", "v2.34.1", "v2.35.0", "v2.35.0", 1, false),
        ] {
            let object = plane(asked, Some(applied), version);
            let decided = decide(&object, Some(&deployment(live, ready)));
            let expected = if kept { Image::Kept(format!("coder:{live}")) } else { Image::Asked };
            assert_eq!(decided, expected, "{asked} over {live}, {version} reported, {ready} ready");
        }
        assert_eq!(decide(&plane("v2.34.1", Some("v2.34.1"), "v2.35.0"), None), Image::Asked);
    }

    #[test]
    fn what_was_kept_before_is_kept_while_it_rolls_out_again() {
        let object = plane("v2.34.1", Some("v2.34.1"), "v2.34.1");
        let mut live = deployment("v2.35.0", 0);
        assert_eq!(decide(&object, Some(&live)), Image::Asked, "it has not run");
        let kept = [(annotation::KEPT_IMAGE.to_owned(), "coder:v2.35.0".to_owned())];
        live.metadata.annotations = Some(kept.clone().into());
        assert_eq!(decide(&object, Some(&live)), Image::Kept("coder:v2.35.0".into()));
        assert!(!replaces_newer(&object, Some(&live)));
        let mut newer = deployment("v2.36.0", 0);
        newer.metadata.annotations = Some(kept.into());
        assert_eq!(decide(&object, Some(&newer)), Image::Kept("coder:v2.36.0".into()), "v2.35.0 has run");
        let edited = plane("v2.33.0", Some("v2.34.1"), "v2.34.1");
        assert_eq!(decide(&edited, Some(&live)), Image::Asked, "an edit is followed");
    }

    #[test]
    fn without_a_record_an_edit_shows_in_the_generation() {
        let mut object = plane("v2.34.1", None, "v2.35.0");
        let live = deployment("v2.35.0", 1);
        for (observed, kept) in [(Some(2), true), (Some(1), false), (None, false)] {
            object.status.as_mut().unwrap().workload.observed_generation = observed;
            let decided = decide(&object, Some(&live));
            assert_eq!(matches!(decided, Image::Kept(_)), kept, "{observed:?}");
        }
    }

    #[test]
    fn a_newer_image_is_read_live_before_an_older_one_replaces_it() {
        for (asked, applied, live, ready, expected) in [
            ("v2.34.1", "v2.34.1", "v2.35.0", 0, true),
            ("v2.34.1", "v2.34.1", "v2.35.0", 1, false),
            ("v2.34.1", "v2.35.0", "v2.35.0", 0, false),
            ("v2.34.1", "v2.34.1", "v2.34.0", 0, false),
            ("v2.34.1", "v2.34.1", "latest", 0, false),
            ("latest", "latest", "v2.35.0", 0, false),
        ] {
            let object = plane(asked, Some(applied), "v2.34.1");
            let found = replaces_newer(&object, Some(&deployment(live, ready)));
            assert_eq!(found, expected, "{asked} over {live}, {ready} ready");
        }
    }

    #[test]
    fn an_edit_counts_until_it_is_written() {
        let edited = plane("v2.33.0", Some("v2.34.1"), "v2.35.0");
        let not_written = applied(&edited, &Image::Asked, Some(&deployment("v2.35.0", 1)));
        assert_eq!(not_written.as_deref(), Some("coder:v2.34.1"));
        let written = applied(&edited, &Image::Asked, Some(&deployment("v2.33.0", 0)));
        assert_eq!(written.as_deref(), Some("coder:v2.33.0"));
        let unrecorded = plane("v2.34.1", None, "v2.35.0");
        let kept = Image::Kept("coder:v2.35.0".into());
        let kept = applied(&unrecorded, &kept, Some(&deployment("v2.35.0", 1)));
        assert_eq!(kept.as_deref(), Some("coder:v2.34.1"));
    }
}
