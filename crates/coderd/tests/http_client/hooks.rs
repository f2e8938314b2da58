//! The one narrow place: every call is counted, and can be made to fail before and after its effect.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coder_k8s_coderd::{Call, Connector, Endpoint, Fault, Faults, Settings};
use coder_k8s_testbed::codersim::{Mode, SimFault};

use super::{Notes, sim};

/// One fault for one call.
struct Once {
    call: &'static str,
    before: Option<Fault>,
    after: Option<Fault>,
}

impl Faults for Once {
    fn before(&self, call: &Call) -> Option<Fault> {
        self.before.filter(|_| call.name == self.call)
    }

    fn after(&self, call: &Call) -> Option<Fault> {
        self.after.filter(|_| call.name == self.call)
    }
}

#[tokio::test]
async fn faults_strike_before_or_after_the_effect() {
    let call = "create provisionerkey";
    for (before, after, keys, reason) in [
        (Some(Fault::Error), None, 0, "Unreachable"),
        (Some(Fault::Status(503)), None, 0, "ServerError"),
        (Some(Fault::Status(404)), None, 0, "NotFound"),
        (None, Some(Fault::Error), 1, "Unreachable"),
        (None, Some(Fault::Status(500)), 1, "ServerError"),
        (None, Some(Fault::Delay(Duration::from_mins(1))), 1, "Timeout"),
        (Some(Fault::Delay(Duration::from_mins(1))), None, 0, "Timeout"),
    ] {
        let sim = sim(Mode::Licensed).await;
        let faults: Arc<dyn Faults> = Arc::new(Once { call, before, after });
        let settings =
            Settings { faults: Some(faults), deadline: Duration::from_secs(2), ..Settings::on_loopback() };
        let target = Endpoint::new(sim.url());
        let client = Connector::new(settings).client(&target, Some(&sim.owner_token())).unwrap();
        client.me().await.unwrap();
        let error = client.create_provisioner_key("default", "key", &BTreeMap::new()).await.unwrap_err();
        assert_eq!((error.reason().as_str(), sim.keys().len()), (reason, keys), "{before:?} {after:?}");
    }
}

#[tokio::test]
async fn every_call_is_counted_with_its_outcome() {
    let sim = sim(Mode::Unlicensed).await;
    let (notes, settings) = Notes::settings();
    let connector = Connector::new(settings);
    let client = connector.client(&Endpoint::new(sim.url()), Some(&sim.owner_token())).unwrap();
    client.licenses().await.unwrap();
    client.proxies().await.unwrap_err();
    let member = client.with_any_token(&sim.token_with_roles("member", &[])).unwrap();
    member.me().await.unwrap();
    let expected = [
        ("list licenses", "ok"),
        ("list workspaceproxies", "NotEntitled"),
        ("get user", "BypassRefused"),
        ("get user", "ok"),
    ];
    assert_eq!(notes.take(), expected.map(|(call, outcome)| (call, outcome.to_owned())));

    sim.fault("*", "/**", SimFault::html(200), Some(1));
    client.licenses().await.unwrap_err();
    assert_eq!(
        notes.take(),
        [("list licenses", "UnexpectedAnswer".to_owned())],
        "a login page is not counted as ok"
    );
    sim.fault("*", "/**", SimFault::Latency(Duration::from_mins(1)), None);
    let given_up = tokio::time::timeout(Duration::from_millis(50), client.licenses()).await;
    assert!(given_up.is_err());
    assert_eq!(notes.take(), [("list licenses", "canceled".to_owned())]);
}
