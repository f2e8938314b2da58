//! Reads of one Secret, from the real API server and from one whose responses are invalid.

use coder_k8s_api::crds;
use coder_k8s_engine::secret::{self, Error};
use coder_k8s_testbed::shared_with;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams, client::Body};
use serde_json::json;

const CANARY: &str = "canary-5up3r53cr37";

#[tokio::test]
async fn a_secret_is_read_and_prints_its_keys_alone() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("secret").await;
    let client = shared.cluster.client();
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace.name());
    let made = json!({"metadata": {"name": "token"}, "stringData": {"token": CANARY}});
    let made = api.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
    let read = secret::read(&client, namespace.name(), "token").await.unwrap().unwrap();
    assert_eq!(read.value("token"), Some(CANARY.as_bytes()));
    assert_eq!(read.value("other"), None);
    assert_eq!(Some(&read.resource_version), made.metadata.resource_version.as_ref());
    assert_eq!(format!("{read:?}"), r#"SecretData { keys: ["token"], .. }"#);
    assert!(secret::read(&client, namespace.name(), "missing").await.unwrap().is_none());
    let nobody = shared.cluster.client_as("nobody", &[]);
    let refused = secret::read(&nobody, namespace.name(), "token").await.unwrap_err().to_string();
    assert!(refused.contains(r#"cannot get resource "secrets""#), "{refused}");
}

#[tokio::test]
async fn a_secret_that_cannot_be_decoded_is_not_quoted() {
    let bodies: [Vec<u8>; 4] = [
        json!({"metadata": CANARY, "data": {"token": "eA=="}}).to_string().into_bytes(),
        json!({"metadata": {}, "data": {"token": CANARY}}).to_string().into_bytes(),
        format!("{CANARY} is not JSON").into_bytes(),
        [CANARY.as_bytes(), &[0xff, 0xfe]].concat(),
    ];
    for body in bodies {
        let service = tower::service_fn(move |_: Request<Body>| {
            let body = body.clone();
            async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(body))) }
        });
        let client = Client::new(service, "default");
        let Err(error) = secret::read(&client, "ns", "token").await else { panic!("it was decoded") };
        assert!(matches!(error, Error::Decode { .. }), "{error}");
        assert_eq!(error.to_string(), "the Secret ns/token cannot be decoded");
        assert!(!format!("{error:?}").contains(CANARY));
    }
}
