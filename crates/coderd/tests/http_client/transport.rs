//! What crosses the wire, and what does not.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use coder_k8s_coderd::{
    AddressPolicy, BadEndpoint, Connector, Endpoint, ErrorKind, Outage, Resolve, RetryAdvice, Settings,
    Unexpected, intervals::UNREACHABLE_DELAY_MIN,
};
use coder_k8s_testbed::{
    CoderSim,
    codersim::{Mode, SimFault},
};
use futures::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{hasty, nobody, owner, sim};

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_credential_stays() {
    let (here, there) = (sim(Mode::Licensed).await, sim(Mode::Licensed).await);
    let client = owner(&here);
    let location = format!("http://user:hunter2@{}/api/v2/licenses?x=y", there.address());
    here.fault("*", "/api/v2/licenses", SimFault::redirect(&location), None);
    let license = CoderSim::license().build();
    for error in [client.licenses().await.unwrap_err(), client.add_license(&license).await.unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::Redirected { to: there.address().to_string() });
        assert_eq!(error.retry(), RetryAdvice::OnChange);
        assert!(!error.to_string().contains("hunter2"));
    }
    assert!(there.requests().is_empty(), "nothing went to the other host");
}

#[tokio::test]
async fn the_token_goes_as_a_header_and_never_as_a_cookie() {
    let sim = sim(Mode::Licensed).await;
    let password = "A-long-enough-passw0rd!".into();
    let nobody = nobody(&sim);
    let user = coder_k8s_coderd::NewFirstUser {
        email: "a@example.com".to_owned(),
        username: "a".to_owned(),
        password,
    };
    nobody.create_first_user(&user).await.unwrap();
    let session = nobody.log_in(&user.email, &user.password).await.unwrap();
    let client = nobody.with_any_token(&session).unwrap();
    client.create_token("me", "one", None).await.unwrap();
    assert!(sim.requests().iter().all(|entry| !entry.cookie), "the login's cookie is not kept");
    let mark = sim.mark();
    client.entitlements().await.unwrap();
    client.build_info().await.unwrap();
    assert!(sim.since(mark).iter().all(|entry| entry.credential.is_none()), "what needs none gets none");
}

#[tokio::test]
async fn a_web_page_is_no_answer_even_with_status_200() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    sim.fault("*", "/**", SimFault::html(200), None);
    let page = ErrorKind::UnexpectedAnswer { status: 200, what: Unexpected::WebPage };
    assert_eq!(client.build_info().await.unwrap_err().kind, page);
    assert_eq!(client.healthz().await.unwrap_err().kind, page);
    assert_eq!(client.has_first_user().await.unwrap_err().kind, page);
    assert_eq!(client.licenses().await.unwrap_err().kind, page);
    let deleted = client.delete_provisioner_key("default", "x").await.unwrap_err();
    assert_eq!(deleted.kind, page, "a login page is not a deletion");
}

#[tokio::test]
async fn a_proxys_404_is_not_a_missing_object() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    sim.fault("*", "/**", SimFault::html(404), None);
    let error = client.delete_provisioner_key("default", "x").await.unwrap_err();
    assert!(!error.is_not_found() && error.reason().as_str() == "UnexpectedAnswer", "{error}");
    assert!(client.has_first_user().await.is_err());
    sim.clear_faults();
    let gateway = SimFault::Answer {
        status: 404,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: r#"{"message":"no Route matched with those values"}"#.to_owned(),
    };
    sim.fault("*", "/**", gateway, None);
    let error = client.delete_provisioner_key("default", "x").await.unwrap_err();
    assert!(!error.is_not_found(), "{error}");
}

#[tokio::test]
async fn an_answer_is_read_up_to_four_mebibytes() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    let answer = |size: usize| SimFault::Answer {
        status: 200,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: format!("[{}]", " ".repeat(size - 2)),
    };
    sim.fault("GET", "/api/v2/licenses", answer(4 * 1024 * 1024), Some(1));
    assert!(client.licenses().await.unwrap().is_empty());
    sim.fault("GET", "/api/v2/licenses", answer(4 * 1024 * 1024 + 1), Some(1));
    let error = client.licenses().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnexpectedAnswer { status: 200, what: Unexpected::TooLarge });
}

#[tokio::test]
async fn a_call_ends_at_its_deadline() {
    let sim = sim(Mode::Licensed).await;
    let client = Connector::new(hasty()).client(&Endpoint::new(sim.url()), None).unwrap();
    sim.fault("*", "/**", SimFault::Latency(Duration::from_secs(30)), None);
    let error = client.build_info().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient(Outage::Timeout(hasty().deadline)));
    assert!(error.may_have_happened());
}

#[tokio::test]
async fn a_broken_connection_may_have_had_its_effect() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    sim.fault("POST", "/**", SimFault::ResetAfter, Some(1));
    let error = client.create_provisioner_key("default", "key", &BTreeMap::new()).await.unwrap_err();
    assert!(error.may_have_happened() && error.reason().as_str() == "Unreachable", "{error}");
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(sim.count("POST", "/"), 1, "nothing is tried again behind the caller's back");
}

#[tokio::test]
async fn an_owner_bypasses_rate_limits_and_others_do_without() {
    let sim = sim(Mode::Licensed).await;
    sim.set_rate_limit(Some(3));
    let owner = owner(&sim);
    for _ in 0..5 {
        owner.me().await.unwrap();
    }
    assert!(sim.requests().iter().all(|entry| entry.bypass));

    let mark = sim.mark();
    let member = owner.with_any_token(&sim.token_with_roles("member", &[])).unwrap();
    member.me().await.unwrap();
    member.me().await.unwrap();
    let seen: Vec<_> = sim.since(mark).iter().map(|entry| (entry.bypass, entry.status)).collect();
    assert_eq!(
        seen,
        [(true, Some(428)), (false, Some(200)), (false, Some(200))],
        "refused once, then left out"
    );
}

#[tokio::test]
async fn parts_of_a_path_cannot_lead_elsewhere() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    for name in ["", ".", "..", " "] {
        let error = client.delete_provisioner_key("default", name).await.unwrap_err();
        assert_eq!(error.reason().as_str(), "Invalid", "{name:?}");
    }
    assert!(sim.requests().is_empty());
    let error = client.delete_provisioner_key("default", "../../licenses/1?x#y").await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert_eq!(sim.requests()[0].path.split('/').count(), 7);
    assert_eq!(sim.requests()[0].query, "");
}

/// Answers every name with one address, and notes what it was asked.
struct Everything(SocketAddr, parking_lot::Mutex<Vec<(String, u16)>>);

impl Resolve for Everything {
    fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        self.1.lock().push((host, port));
        Box::pin(std::future::ready(Ok(vec![self.0])))
    }
}

#[tokio::test]
async fn a_resolver_from_outside_maps_service_names_and_ports() {
    let sim = sim(Mode::Licensed).await;
    let resolver = Arc::new(Everything(sim.address(), parking_lot::Mutex::default()));
    let connector = Connector::new(Settings { resolver: Some(resolver.clone()), ..Settings::on_loopback() });
    for url in ["http://coder.ns.svc", "http://coder.ns.svc:8080", "http://coder.ns.svc:80"] {
        connector.client(&Endpoint::new(url), None).unwrap().build_info().await.unwrap();
    }
    let asked = resolver.1.lock().clone();
    let name = "coder.ns.svc".to_owned();
    assert_eq!(asked, [(name.clone(), 80), (name, 8080)], "the third call found a connection");
    let direct = connector.client(&Endpoint::new(sim.url()), None).unwrap();
    direct.build_info().await.unwrap();
    assert_eq!(resolver.1.lock().len(), 2, "an address needs no resolver");
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_never_dialed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (address, port) = (listener.local_addr().unwrap(), listener.local_addr().unwrap().port());
    let resolver = Arc::new(Everything(address, parking_lot::Mutex::default()));
    let resolved = Connector::new(Settings { resolver: Some(resolver), ..Settings::default() });
    let plain = Connector::new(Settings::default());
    let mut messages = BTreeSet::new();
    for (connector, host) in [
        (&resolved, "coder.ns.svc".to_owned()),
        (&plain, format!("localhost:{port}")),
        (&plain, format!("127.0.0.1:{port}")),
        (&plain, format!("127.1:{port}")),
        (&plain, format!("2130706433:{port}")),
        (&plain, format!("[::ffff:127.0.0.1]:{port}")),
        (&plain, format!("0.0.0.0:{port}")),
        // Whether something listens is not told.
        (&plain, "127.0.0.1:1".to_owned()),
        (&plain, "169.254.169.254".to_owned()),
    ] {
        let client = connector.client(&Endpoint::new(format!("http://{host}")), None).unwrap();
        let error = client.build_info().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::AddressNotAllowed, "{host}");
        messages.insert(error.kind.to_string());
    }
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages.first().unwrap().contains("--allowed-address-ranges"));
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody connected");
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_later_is_checked_again() {
    /// Leads to a server, and after its first answer to another address of the same machine.
    struct Rebinding(Everything, SocketAddr);
    impl Resolve for Rebinding {
        fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
            let is_first = self.0.1.lock().is_empty();
            let found = self.0.resolve(host, port);
            if is_first { found } else { Box::pin(std::future::ready(Ok(vec![self.1]))) }
        }
    }
    let sim = sim(Mode::Licensed).await;
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], sim.address().port()));
    let rebinding = Rebinding(Everything(sim.address(), parking_lot::Mutex::default()), elsewhere);
    let only = AddressPolicy::new(vec![format!("{}/32", sim.address().ip()).parse().unwrap()], Vec::new());
    let (addresses, resolver) = (Arc::new(only), Some(Arc::new(rebinding) as Arc<dyn Resolve>));
    let connector = Connector::new(Settings { addresses, resolver, ..Settings::default() });
    let client = connector.client(&Endpoint::new("http://coder.ns.svc"), None).unwrap();
    client.build_info().await.unwrap();
    // The next call needs a new connection.
    sim.fault("GET", "/**", SimFault::ResetAfter, Some(1));
    client.build_info().await.unwrap_err();
    tokio::time::sleep(UNREACHABLE_DELAY_MIN).await;
    assert_eq!(client.build_info().await.unwrap_err().kind, ErrorKind::AddressNotAllowed);
}

#[tokio::test]
async fn only_the_given_authority_is_trusted() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().unwrap()).unwrap();
    let other = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["coder.ns.svc".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let sim = CoderSim::builder(Mode::Licensed).tls(certificate.pem(), key.serialize_pem());
    let sim = sim.start().await.unwrap();

    let resolver = Arc::new(Everything(sim.address(), parking_lot::Mutex::default()));
    let settings = || Settings { resolver: Some(resolver.clone()), ..Settings::on_loopback() };
    let target = |ca: Option<String>| Endpoint {
        url: "https://coder.ns.svc:8443".to_owned(),
        ca: ca.map(String::into_bytes),
        tenant: String::new(),
    };
    Connector::new(settings()).client(&target(Some(ca.pem())), None).unwrap().build_info().await.unwrap();
    for untrusting in [Some(other.pem()), None] {
        let error = Connector::new(settings())
            .client(&target(untrusting), None)
            .unwrap()
            .build_info()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        assert_eq!(error.reason().as_str(), "Unreachable");
    }
    let bad =
        Connector::new(settings()).client(&target(Some("-----BEGIN CERTIFICATE-----\n".to_owned())), None);
    assert!(matches!(bad, Err(BadEndpoint::Authorities(_))));
}
