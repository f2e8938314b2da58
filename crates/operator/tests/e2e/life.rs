//! A control plane and the real coderd, from the first start to a change of image.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::{Connector, Settings};
use coder_k8s_testbed::{CoderSim, binaries::CODER_VERSION};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::ListParams;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use coder_k8s_scenes::{
    request,
    scene::{condition, message, status},
};

use crate::{real::NEXT_IMAGE, real::Real};

#[tokio::test]
async fn the_deployment_of_the_operator_starts_coderd_and_its_facts_are_on_status() {
    let (real, token) = Real::owned("start", json!({})).await;
    real.scene.until_ready("coder").await;
    let plane = real.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let (connector, target) = (Connector::new(Settings::on_loopback()), real.target().await);
    let nobody = connector.client(&target, None).unwrap();
    let owner = connector.client(&target, Some(&token)).unwrap();
    let info = nobody.build_info().await.unwrap();
    assert_eq!(info.version, CODER_VERSION);
    let said = status(&plane);
    assert_eq!(said.version, Some(info.version));
    assert_eq!(said.deployment_id, Some(info.deployment_id));
    assert!(owner.me().await.unwrap().is_owner());
}

#[tokio::test]
async fn a_server_without_a_license_is_entitled_to_nothing() {
    let (real, _) = Real::owned("entitled", json!({})).await;
    let plane = real
        .scene
        .until("coder", |plane: &CoderControlPlane| status(plane).entitlements_last_checked.is_some())
        .await;
    let said = status(&plane);
    assert_eq!(said.license_tier.as_deref(), Some("none"));
    assert_eq!(said.external_provisioner_daemons_entitlement.as_deref(), Some("not_entitled"));
    assert!(!said.entitlements.unwrap().has_license);
}

#[tokio::test]
async fn a_license_that_coder_did_not_sign_is_refused_and_said_to_be() {
    // Everything about it is right but the signature.
    let junk = CoderSim::license().feature_set("premium").build();
    let (real, _) = Real::owned("junk", json!({"licenseSecretRef": {"name": "license"}})).await;
    real.secret("license", "license", &junk).await;
    let plane = real.until_condition("LicenseApplied", "False", "InvalidLicense").await;
    assert!(!message(&plane, "LicenseApplied").contains(junk.expose_secret()));
    assert_eq!(condition(&plane, "Ready").unwrap().status, "False");
    assert_eq!(status(&plane).license_last_applied_hash, None);
    let said = status(
        &real.scene.until("coder", |plane: &CoderControlPlane| status(plane).license_tier.is_some()).await,
    );
    assert_eq!(said.license_tier.as_deref(), Some("none"));
}

#[tokio::test]
async fn the_api_keeps_answering_while_a_change_of_image_rolls() {
    let (real, _) = Real::owned("roll", json!({})).await;
    real.scene.until_ready("coder").await;
    let first = real.address().await;
    let over = CancellationToken::new();
    let asking = tokio::spawn({
        let (resolver, host, over) = (real.resolver.clone(), real.host(), over.clone());
        async move {
            let (mut asked, mut failed) = (0, Vec::new());
            while !over.is_cancelled() {
                asked += 1;
                match resolver.find(&host, 80).await {
                    Ok(found) => {
                        let text = "GET /api/v2/buildinfo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                        let asking = tokio::spawn(async move { request(&found[0].to_string(), text).await });
                        match tokio::time::timeout(Duration::from_secs(10), asking).await {
                            Ok(Ok((200, _))) => {}
                            other => failed.push(format!("{other:?}")),
                        }
                    }
                    Err(error) => failed.push(error.to_string()),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (asked, failed)
        }
    });
    real.scene.spec("coder", json!({"image": NEXT_IMAGE})).await;
    real.scene
        .until("coder", |deployment: &Deployment| {
            let image =
                deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].image.clone();
            let status = deployment.status.clone().unwrap_or_default();
            image.as_deref() == Some(NEXT_IMAGE)
                && status.observed_generation == deployment.metadata.generation
                && status.updated_replicas == Some(1)
                && status.replicas == Some(1)
                && status.available_replicas == Some(1)
        })
        .await;
    // The Deployment counts a pod no more that still serves in its pause before the end.
    let gone = coder_k8s_testbed::eventually(Duration::from_mins(2), || async {
        let pods =
            real.scene.api::<Pod>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        if pods.items.len() == 1 { Ok(()) } else { Err(format!("{} pods", pods.items.len())) }
    });
    gone.await.unwrap();
    real.scene.until_ready("coder").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    over.cancel();
    let (asked, failed) = asking.await.unwrap();
    println!("{asked} requests while the image was changed, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {asked}: {failed:?}", failed.len());
    assert!(asked > 100, "only {asked} requests");
    assert_ne!(real.address().await, first, "the new pod has an address of its own");
    assert!(request_refused(first).await, "the old process is gone");
}

async fn request_refused(address: std::net::SocketAddr) -> bool {
    tokio::net::TcpStream::connect(address).await.is_err()
}
