//! The Deployment of coderd.

use coder_k8s_api::{Scaling, names::annotation};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Container};
use kube::ResourceExt;

use super::{Observed, access_url, image::Image};
use crate::{
    pod::{self, Needs, Server},
    service::HTTP,
    sources::SourceContents,
};

/// Name of the container.
pub const CONTAINER: &str = "coder";

/// The Deployment, given what its sources say and whether the pods have IPv6 addresses.
pub fn build(observed: &Observed, sources: &SourceContents, ipv6: bool) -> Deployment {
    let spec = &observed.object.spec;
    let mut env = pod::relay(ipv6, HTTP).to_vec();
    env.extend(access_url::addresses(&observed.object, sources).env);
    let (image, kept) = match observed.image() {
        Image::Asked => (spec.image.to_string(), None),
        Image::Kept(newer) => (newer.clone(), Some((annotation::KEPT_IMAGE.to_owned(), newer))),
    };
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(image),
        args: Some(vec![format!("--http-address={}", pod::listen(ipv6, HTTP))]),
        env: Some(env),
        ..Container::default()
    };
    let external = spec.scaling == Scaling::External;
    let scaled_by = external.then(|| (annotation::SCALING.to_owned(), "External".to_owned()));
    let needs = Needs {
        name: observed.object.name_any(),
        selector: observed.selector(),
        replicas: (!external).then_some(spec.replicas),
        container,
        service_account: observed.service_account(),
        annotations: scaled_by.into_iter().chain(kept).collect(),
        pod_annotations: [].into(),
        sources,
        prometheus: &spec.prometheus,
        server: Some(Server {
            http: HTTP,
            ipv6,
            tls: &spec.tls,
            readiness: &spec.readiness_probe,
            liveness: &spec.liveness_probe,
        }),
    };
    pod::deployment(&spec.pod, needs)
}
