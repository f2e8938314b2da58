//! T4: is on the network, or leads the operator to where it should not go.

use std::time::Duration;

use coder_k8s_testbed::codersim::{CoderSim, Mode};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::{
    Row, Verdict, ensure,
    hostile::{Act, Hostile, answer, text_of},
    row,
    stage::{SOON, Stage, Tenant, condition_of, has_begun, object, token_access, with},
    tenant::with_api_url,
};

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let nobody = "nobody comes there";
    let name_to =
        |id, does, address: &'static str| row(id, does, nobody, move |stage| service_at(stage, address));
    let sql_to =
        |id, does, address: &'static str| row(id, does, nobody, move |stage| database_at(stage, address));
    let tls = |id, does, host: &'static str, expired: bool, trusted: bool| {
        row(id, does, "no credential is sent", move |stage| https(stage, host, expired, trusted))
    };
    vec![
        tls("T4 tls-host", "a certificate for another host", "another.test", false, true),
        tls("T4 tls-expired", "a certificate that has expired", "", true, true),
        tls("T4 tls-unknown", "a certificate of nobody", "", false, false),
        row("T4 tls-plain", "answers in plain text instead of TLS", "no credential is sent", |stage| {
            not_tls(stage, Act::Say(answer("200 OK", "", b"{}")))
        }),
        row("T4 tls-old", "answers that it speaks TLS 1.1 alone", "no credential is sent", |stage| {
            not_tls(stage, Act::Say(old_server_hello()))
        }),
        row("T4 tls-closed", "closes in the middle of the handshake", "no credential is sent", |stage| {
            not_tls(stage, Act::Say(vec![0x16, 3, 3]))
        }),
        row("T4 tls-hang", "never ends the handshake", "no credential is sent", |stage| {
            not_tls(stage, Act::Hang)
        }),
        row("T4 sql-stripped", "says that Postgres has no TLS", "no password is sent", |stage| {
            stripped(stage, "require")
        }),
        row(
            "T4 sql-stripped-verify",
            "the same where the certificate is to be verified",
            "no password is sent",
            |stage| stripped(stage, "verify-full"),
        ),
        row(
            "T4 sql-injected",
            "puts bytes before the handshake of Postgres",
            "no password is sent",
            injected,
        ),
        name_to("T4 name-loopback6", "a Service that resolves to ::1", "[::1]:0"),
        name_to("T4 name-unspecified", "a Service that resolves to 0.0.0.0", "0.0.0.0:0"),
        name_to("T4 name-unspecified6", "a Service that resolves to ::", "[::]:0"),
        name_to("T4 name-mapped", "a Service that resolves to ::ffff:0.0.0.0", "[::ffff:0.0.0.0]:0"),
        sql_to("T4 sql-loopback6", "a database at ::1", "[::1]:0"),
        sql_to("T4 sql-unspecified", "a database at 0.0.0.0", "0.0.0.0:0"),
        row(
            "T4 link-local",
            "a Service that resolves to a link-local address",
            "it is refused, not tried",
            |stage| refused(stage, "169.254.77.77:9"),
        ),
        row(
            "T4 link-local-mapped",
            "a Service that resolves to a link-local address of IPv4 within IPv6",
            "it is refused, not tried",
            |stage| refused(stage, "[::ffff:169.254.77.77]:9"),
        ),
        row(
            "T4 metadata6",
            "a Service that resolves to fd00:ec2::254",
            "it is refused, not tried",
            |stage| refused(stage, "[fd00:ec2::254]:80"),
        ),
        row("T4 link-local6", "a Service that resolves to fe80::1", "it is refused, not tried", |stage| {
            refused(stage, "[fe80::1]:80")
        }),
        row(
            "T4 api-server",
            "a Service that resolves to the API server",
            "no request of ours reaches it",
            api_server,
        ),
        row("T4 rebinding", "a name that resolves to ::1 once its server is known", nobody, rebinding),
        row(
            "T4 oracle",
            "one database on an open port of ::1, one on a closed one",
            "both are told the same",
            oracle,
        ),
        row(
            "T4 api-url",
            "an apiURL of the attacker's with a token that the attacker cannot read",
            "URLNotAllowed, and nobody comes there",
            api_url,
        ),
        row(
            "T4 api-url-http",
            "a shared coderd by plain HTTP",
            "a condition says that the token is readable",
            plain_http,
        ),
        row(
            "T4 bootstrap-url",
            "a proxy's bootstrap at the attacker's address",
            "URLNotAllowed, and nobody comes there",
            bootstrap_url,
        ),
    ]
}

/// Until the operator has said why it has no access, which is not one of the words for what has not begun.
async fn told(tenant: &Tenant) -> Result<Value, String> {
    let plane = tenant
        .until(SOON, "CoderControlPlane", "coder", |plane| {
            condition_of(plane, "OperatorAccessReady").is_some_and(|said| has_begun(text_of(&said["reason"])))
        })
        .await?;
    let said = condition_of(&plane, "OperatorAccessReady").unwrap();
    ensure(said["status"] != "True", || said.to_string())?;
    Ok(said)
}

fn https_access() -> Value {
    let mut spec = with(token_access(), json!({}));
    spec["operatorAccess"]["caSecretRef"] = json!({"name": "ca"});
    spec
}

async fn https_plane(tenant: &Tenant, ca: &str) -> Result<(), String> {
    tenant.secret("token", "token", "0123456789-0123456789abcdefghijkl").await;
    tenant.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "stringData": {"ca.crt": ca}})).await;
    tenant.plane("coder", https_access()).await.map(drop)
}

/// A server whose certificate is not good enough for the name that is asked.
async fn https(stage: &'static Stage, host: &str, expired: bool, trusted: bool) -> Verdict {
    let tenant = Tenant::new(stage, "tls").await;
    let own = format!("coder.{}.svc.cluster.local", tenant.namespace);
    let mut params =
        CertificateParams::new(vec![if host.is_empty() { own } else { host.to_owned() }]).unwrap();
    if expired {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let sim = CoderSim::builder(Mode::Licensed).tls(&certificate, key.serialize_pem()).start().await.unwrap();
    tenant.service("coder", sim.address());
    let other = rcgen::generate_simple_self_signed(vec!["other.test".to_owned()]).unwrap().cert.pem();
    https_plane(&tenant, if trusted { &certificate } else { &other }).await?;
    let said = told(&tenant).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure(sim.requests().is_empty(), || format!("{} requests", sim.requests().len()))?;
    Ok(text_of(&said["reason"]).to_owned())
}

async fn not_tls(stage: &'static Stage, act: Act) -> Verdict {
    let tenant = Tenant::new(stage, "tls").await;
    let server = Hostile::start(act).await;
    tenant.service("coder", server.address);
    let ca = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
    https_plane(&tenant, &ca).await?;
    let said = told(&tenant).await?;
    ensure(server.connections() > 0, || "nobody came".to_owned())?;
    let plain: Vec<_> = server
        .heads()
        .into_iter()
        .filter(|head| head.contains("HTTP") || head.contains("0123456789"))
        .collect();
    ensure(plain.is_empty(), || format!("{plain:?}"))?;
    Ok(text_of(&said["reason"]).to_owned())
}

/// The answer of a server that chose TLS 1.1 and a cipher of that time.
fn old_server_hello() -> Vec<u8> {
    const TLS_1_1: [u8; 2] = [3, 2];
    let hello = [&TLS_1_1[..], &[7; 32], &[0], &[0xc0, 0x13], &[0]].concat();
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let handshake = [&[2, 0, 0, length(&hello)][..], &hello].concat();
    [&[0x16][..], &TLS_1_1, &[0, length(&handshake)], &handshake].concat()
}

/// Postgres says `N`: the client must not go on in plain text.
async fn stripped(stage: &'static Stage, mode: &str) -> Verdict {
    let tenant = Tenant::new(stage, "stripped").await;
    let server = Hostile::steps(vec![Act::Say(b"N".to_vec()), Act::Hang]).await;
    tenant
        .plane_with_database(&format!("postgres://coder:never-sent@{}/coder?sslmode={mode}", server.address))
        .await?;
    no_password(&tenant, &server).await
}

async fn injected(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "injected").await;
    let server = Hostile::steps(vec![Act::Say(b"SR\0\0\0\x08\0\0\0\x03".to_vec()), Act::Hang]).await;
    tenant
        .plane_with_database(&format!("postgres://coder:never-sent@{}/coder?sslmode=require", server.address))
        .await?;
    no_password(&tenant, &server).await
}

async fn no_password(tenant: &Tenant, server: &Hostile) -> Verdict {
    let said = told(tenant).await?;
    ensure(server.connections() > 0, || "nobody came".to_owned())?;
    let sent: Vec<_> = server
        .heads()
        .into_iter()
        .filter(|head| head.contains("never-sent") || head.contains("user"))
        .collect();
    ensure(sent.is_empty(), || format!("{sent:?}"))?;
    Ok(text_of(&said["reason"]).to_owned())
}

/// A Service whose name leads to an address where somebody listens, and where the operator does not go.
async fn service_at(stage: &'static Stage, address: &str) -> Verdict {
    let tenant = Tenant::new(stage, "address").await;
    let server = Hostile::on(address, vec![Act::Say(answer("200 OK", "", b"{}"))]).await;
    tenant.service("coder", server.address);
    tenant.plane_with_token(&"0123456789-0123456789abcdefghijkl".to_owned().into(), json!({})).await?;
    unvisited(&tenant, &server).await
}

async fn database_at(stage: &'static Stage, address: &str) -> Verdict {
    let tenant = Tenant::new(stage, "address").await;
    let server = Hostile::on(address, vec![Act::Close]).await;
    tenant
        .plane_with_database(&format!("postgres://u:p-{1}@{0}/coder", server.address, tenant.namespace))
        .await?;
    unvisited(&tenant, &server).await
}

async fn unvisited(tenant: &Tenant, server: &Hostile) -> Verdict {
    let said = told(tenant).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure(server.connections() == 0, || {
        format!("{} connections, {}", server.connections(), said["reason"])
    })?;
    Ok(text_of(&said["reason"]).to_owned())
}

/// Where nobody can listen in a test: the condition comes at once and says nothing of a connection that failed.
async fn refused(stage: &'static Stage, address: &str) -> Verdict {
    let tenant = Tenant::new(stage, "address").await;
    tenant.service("coder", address.parse().unwrap());
    tenant.plane_with_token(&"0123456789-0123456789abcdefghijkl".to_owned().into(), json!({})).await?;
    let said = told(&tenant).await?;
    ensure(!["Unreachable", "Timeout", "UnexpectedAnswer"].contains(&text_of(&said["reason"])), || {
        said.to_string()
    })?;
    Ok(text_of(&said["reason"]).to_owned())
}

async fn api_server(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "api-server").await;
    let url = stage.shared.cluster.url();
    tenant.service("coder", url.trim_start_matches("https://").parse().unwrap());
    let ca = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
    https_plane(&tenant, &ca).await?;
    let said = told(&tenant).await?;
    // A handshake that fails leaves no trace in the audit log, but its words would be in the condition.
    ensure(!["Unreachable", "Timeout", "UnexpectedAnswer"].contains(&text_of(&said["reason"])), || {
        said.to_string()
    })?;
    let asked = stage.shared.cluster.audit_where(|event| event.uri.starts_with("/api/v2/")).unwrap();
    ensure(asked.is_empty(), || format!("{} requests", asked.len()))?;
    Ok(text_of(&said["reason"]).to_owned())
}

async fn rebinding(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "rebinding", Mode::Licensed).await;
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    let server = Hostile::on("[::1]:0", vec![Act::Say(answer("200 OK", "", b"{}"))]).await;
    tenant.service("coder", server.address);
    // Connections that are kept end with the server, and the next one asks for the address again.
    sim.stop().await;
    tenant.edit("CoderControlPlane", "coder", json!({"spec": {"image": "example.test/coder:v2"}})).await?;
    tokio::time::sleep(Duration::from_secs(9)).await;
    ensure(server.connections() == 0, || format!("{} connections", server.connections()))?;
    Ok("no connection".to_owned())
}

/// What the status says must not depend on whether anybody listens.
async fn oracle(stage: &'static Stage) -> Verdict {
    let server = Hostile::on("[::1]:0", vec![Act::Close]).await;
    let closed = Hostile::on("[::1]:0", vec![Act::Close]).await.address;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut said = Vec::new();
    for address in [server.address, closed] {
        let tenant = Tenant::new(stage, "oracle").await;
        tenant.plane_with_database(&format!("postgres://u@{address}/coder?sslmode=disable")).await?;
        let condition = told(&tenant).await?;
        said.push(format!(
            "{}: {}",
            condition["reason"],
            text_of(&condition["message"]).replace(&address.port().to_string(), "PORT")
        ));
    }
    ensure(said[0] == said[1], || said.join(" / "))?;
    Ok(said.remove(0))
}

async fn api_url(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "api-url").await;
    let server = Hostile::start(Act::Say(answer("200 OK", "", b"{}"))).await;
    tenant.secret("token", "token", "0123456789-0123456789abcdefghijkl").await;
    tenant.plane("coder", with_api_url(&format!("http://{}", server.address))).await?;
    let said = told(&tenant).await?;
    ensure(said["reason"] == "URLNotAllowed", || said.to_string())?;
    ensure(server.connections() == 0, || format!("{} connections", server.connections()))?;
    Ok("no connection".to_owned())
}

/// An address that is allowed and not the own Service, without TLS: it works, and it is said that anybody can read it.
async fn plain_http(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "plain").await;
    let sim = CoderSim::start(Mode::Licensed).await.unwrap();
    stage.operator.host("plain.adversary.test", sim.address());
    tenant.secret("token", "token", secrecy::ExposeSecret::expose_secret(&sim.owner_token())).await;
    tenant.plane("coder", with_api_url("http://plain.adversary.test")).await?;
    let warned = |plane: &Value| {
        plane["status"]["conditions"].as_array().into_iter().flatten().any(|said| {
            let text = text_of(&said["message"]).to_lowercase();
            text.contains("plain http")
                || text.contains("unencrypted")
                || text.contains("not encrypted")
                || text.contains("without tls")
        })
    };
    tenant.until(SOON, "CoderControlPlane", "coder", warned).await?;
    Ok("it says so".to_owned())
}

async fn bootstrap_url(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "bootstrap").await;
    let server = Hostile::start(Act::Say(answer("200 OK", "", b"{}"))).await;
    tenant.secret("token", "token", "0123456789-0123456789abcdefghijkl").await;
    let bootstrap = json!({"coderURL": format!("http://{}", server.address), "credentialsSecretRef": {"name": "token"}, "registration": {}});
    let spec = json!({"replicas": 0, "bootstrap": bootstrap, "accessURL": "https://eu.example.test", "image": "example.test/coder:v1"});
    tenant.make(object("CoderWorkspaceProxy", "eu", spec)).await?;
    tenant.until_reason("CoderWorkspaceProxy", "eu", "CredentialsReady", &["URLNotAllowed"]).await?;
    ensure(server.connections() == 0, || format!("{} connections", server.connections()))?;
    Ok("no connection".to_owned())
}
