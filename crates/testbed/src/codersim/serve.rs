//! The websocket of provisioner daemons: who is let in, and the one call that an idle daemon makes.
//!
//! A daemon asks for a job and waits. It never gets one here: a test says that it has one, and coderd lists it as busy.
//! When the daemon is told to end, it takes its request back and waits for an empty answer, which comes once its job
//! is over.

use std::{collections::BTreeMap, io};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use yamux::Stream;

use super::{
    drpc::{Kind, Wire},
    message::{Asked, Reply, Then},
    sessions::{Newcomer, Session},
    state::{Key, RESERVED_KEYS, State},
    wire,
};

const ACQUIRE: &[u8] = b"/provisionerd.ProvisionerDaemon/AcquireJobWithCancel";

impl State {
    /// Admits a daemon. Checks are in the order of coderd: license, credential, organization.
    pub(super) fn serve(&mut self, asked: &Asked, org: &str) -> Result<Reply, Reply> {
        if !self.entitlements().is_enabled("external_provisioner_daemons") {
            let message = "External provisioner daemons is an Enterprise feature. Contact sales!";
            return Err(Reply::error(403, message));
        }
        let roles = ["owner", "template-admin", "organization-admin", "organization-template-admin"];
        let user = self.authenticate(asked).ok().map(|user| user.has(&roles));
        let key = self.daemon_key(asked).cloned();
        if user.is_some() && key.is_some() {
            let message = "API key and external provisioner authentication provided, but only one is allowed";
            return Err(Reply::error(400, message));
        }
        if user.is_none() && key.is_none() {
            let message = "API key or external provisioner authentication required, but none provided";
            return Err(Reply::error(401, message));
        }
        let organization = self.organization(org).ok_or_else(Reply::not_found)?.id;
        let given = tags(asked)?;
        provisioners(asked)?;
        let (organization, key_id, tags) = match key {
            Some(_) if !given.is_empty() => {
                return Err(not_allowed(&given, "tags are not allowed when using a provisioner key"));
            }
            Some(key) => (key.organization, key.id, key.tags),
            None if user == Some(true) => (organization, RESERVED_KEYS[1].1.to_owned(), given),
            None => return Err(not_allowed(&given, "user unauthorized")),
        };
        let api_version = asked.param("version").filter(|text| !text.is_empty()).unwrap_or("1.0").to_owned();
        understood(self.provisioner_api, &api_version).map_err(|detail| {
            Reply::error(400, "Incompatible or unparsable version").validation("version", &detail)
        })?;
        let reply = wire::accept(asked)?;
        let version = asked.header("x-coder-build-version").unwrap_or_default().to_owned();
        let name = asked.param("name").unwrap_or("unnamed").to_owned();
        let newcomer = Newcomer { organization, key_id, tags, name, version, api_version };
        Ok(reply.then(Then::ServeDaemon(self.admit(newcomer))))
    }

    /// The provisioner key of the request, if it is known.
    fn daemon_key(&self, asked: &Asked) -> Option<&Key> {
        let material = asked.header("coder-provisioner-daemon-key")?;
        self.keys.iter().find(|key| key.material == material)
    }

    /// The newest protocol version of daemons that is accepted.
    pub(super) fn provisioner_api_text(&self) -> String {
        let (major, minor) = self.provisioner_api;
        format!("{major}.{minor}")
    }
}

fn tags(asked: &Asked) -> Result<BTreeMap<String, String>, Reply> {
    let pairs = asked.params("tag").into_iter().map(|tag| {
        let pair = tag.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        pair.ok_or_else(|| {
            let message = format!("Invalid format for tag {tag:?}. Key and value must be separated with =.");
            Reply::error(400, &message)
        })
    });
    pairs.collect()
}

fn provisioners(asked: &Asked) -> Result<(), Reply> {
    let all = asked.params("provisioner");
    if all.is_empty() {
        return Err(Reply::error(400, "The provisioner query parameter must be specified."));
    }
    match all.iter().find(|kind| !["terraform", "echo"].contains(kind)) {
        None => Ok(()),
        Some(odd) => Err(Reply::error(400, &format!("Unknown provisioner type {odd:?}"))),
    }
}

fn not_allowed(tags: &BTreeMap<String, String>, detail: &str) -> Reply {
    let scope = tags.get("scope").map(String::as_str).unwrap_or_default();
    let message = format!("You aren't allowed to create provisioner daemons with scope {scope:?}");
    Reply::error(403, &message).detail(detail)
}

/// A daemon may be older than the server within a major version, and never newer.
pub(super) fn understood((major, minor): (u32, u32), asked: &str) -> Result<(), String> {
    let parts: Vec<_> = asked.split('.').collect();
    let [first, second] = parts.as_slice() else { return Err(format!("invalid version string: {asked}")) };
    let first: u32 = first.parse().map_err(|_| format!("invalid major version: {asked}"))?;
    let second: u32 = second.parse().map_err(|_| format!("invalid minor version: {asked}"))?;
    let behind =
        |what: &str| format!("server is at version {major}.{minor}, behind requested {what} version {asked}");
    if first > major {
        return Err(behind("major"));
    }
    if first < major {
        return Err(format!("version {asked} is no longer supported"));
    }
    if second > minor { Err(behind("minor")) } else { Ok(()) }
}

/// Serves a daemon until it disconnects or is cut.
pub(super) async fn run(session: Session, socket: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>) {
    wire::serve(socket, session.cut(), |stream| answer(stream, &session)).await;
}

/// Answers one call.
async fn answer(stream: Stream, session: &Session) -> io::Result<()> {
    let mut wire = Wire::new(stream);
    let mut waits = false;
    while let Some(packet) = wire.next().await? {
        match packet.kind {
            Kind::Invoke if packet.data == ACQUIRE => waits = true,
            Kind::Invoke => {
                wire.refuse(packet.call, "the simulator does not know this call").await?;
                return wire.close().await;
            }
            // The daemon takes its request back.
            Kind::Message if waits => {
                session.idle().await;
                wire.send(Kind::Message, packet.call, &[]).await?;
                wire.send(Kind::Close, packet.call, &[]).await?;
                return wire.close().await;
            }
            Kind::Close | Kind::Cancel | Kind::Error => return wire.close().await,
            Kind::Message | Kind::CloseSend | Kind::Other => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use coder_k8s_coderd::{Connector, Daemon, DaemonFilter, Endpoint, ListedDaemonStatus, Settings};
    use secrecy::{ExposeSecret, SecretString};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        codersim::{
            CoderSim, Mode, SessionEnd,
            client::{Client, dial},
        },
        eventually,
    };

    const PATH: &str =
        "/api/v2/organizations/default/provisionerdaemons/serve?provisioner=terraform&version=1.18";
    const KEY: &str = "coder-provisioner-daemon-key";
    const SOON: Duration = Duration::from_secs(20);

    async fn sim() -> (CoderSim, SecretString) {
        let sim = CoderSim::start(Mode::Licensed).await.unwrap();
        let material = sim.add_key("pool", &BTreeMap::from([("size".to_owned(), "large".to_owned())]));
        (sim, material)
    }

    async fn join(sim: &CoderSim, material: &SecretString, name: &str) -> Client {
        let headers = [(KEY, material.expose_secret()), ("x-coder-build-version", "v2.35.0")];
        let socket = dial(sim, &format!("{PATH}&name={name}"), &headers).await.unwrap();
        Client::open(socket, std::str::from_utf8(ACQUIRE).unwrap()).await
    }

    async fn listed(sim: &CoderSim, organization: &str) -> Vec<Daemon> {
        let (target, token) = (Endpoint::new(sim.url()), sim.owner_token());
        let owner = Connector::new(Settings::on_loopback()).client(&target, Some(&token)).unwrap();
        owner.provisioner_daemons(organization, DaemonFilter { offline: true }).await.unwrap()
    }

    fn ends(sim: &CoderSim) -> Vec<Option<SessionEnd>> {
        sim.sessions().into_iter().map(|seen| seen.ended.map(|(_, how)| how)).collect()
    }

    async fn until_ends(sim: &CoderSim, expected: &[Option<SessionEnd>]) {
        let ended = eventually(SOON, || async {
            if ends(sim) == expected { Ok(()) } else { Err(format!("{:?}", sim.sessions())) }
        });
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_is_listed_with_its_key_and_what_it_says_of_itself() {
        let (sim, material) = sim().await;
        let mut client = join(&sim, &material, "one").await;
        let [daemon] = &listed(&sim, "default").await[..] else { panic!("one daemon") };
        let key = sim.keys().remove(0);
        assert_eq!((daemon.name.as_str(), daemon.version.as_str()), ("one", "v2.35.0"));
        assert_eq!(
            (daemon.key_id.as_str(), daemon.status),
            (key.id.as_str(), Some(ListedDaemonStatus::Idle))
        );
        assert_eq!(daemon.tags["size"], "large");
        let shown = sim.requests().into_iter().find(|entry| entry.path.ends_with("/serve")).unwrap();
        assert_eq!(shown.status, Some(101));
        // The stream is acknowledged, though nothing is answered on it.
        let acknowledged = eventually(SOON, || async {
            if client.wire.stream.is_pending_ack() { Err("not acknowledged") } else { Ok(()) }
        });
        acknowledged.await.unwrap();

        client.wire.send(Kind::Message, 1, &[]).await.unwrap();
        let answer = client.wire.next().await.unwrap().unwrap();
        assert_eq!((answer.kind, answer.call, answer.data.len()), (Kind::Message, 1, 0), "an empty job");
        assert_eq!(client.wire.next().await.unwrap().unwrap().kind, Kind::Close);
        drop(client);
        until_ends(&sim, &[Some(SessionEnd::Left)]).await;
        assert_eq!(listed(&sim, "default").await.len(), 1, "the row outlives the connection");
    }

    #[tokio::test]
    async fn a_daemon_with_a_job_is_let_go_when_the_job_is_over() {
        let (sim, material) = sim().await;
        let mut client = join(&sim, &material, "one").await;
        assert!(sim.set_busy("one", true));
        assert_eq!(listed(&sim, "default").await[0].status, Some(ListedDaemonStatus::Busy));
        client.wire.send(Kind::Message, 1, &[]).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(300), client.wire.next()).await;
        assert!(early.is_err(), "{early:?}");
        assert!(sim.set_busy("one", false));
        assert_eq!(client.wire.next().await.unwrap().unwrap().kind, Kind::Message);
        assert_eq!(listed(&sim, "default").await[0].status, Some(ListedDaemonStatus::Idle));
    }

    #[tokio::test]
    async fn a_key_that_is_deleted_ends_its_sessions_when_their_jobs_are_over() {
        let (sim, material) = sim().await;
        let other = sim.add_key("other", &BTreeMap::new());
        let (idle, busy) = (join(&sim, &material, "idle").await, join(&sim, &material, "busy").await);
        let stays = join(&sim, &other, "stays").await;
        assert!(sim.set_busy("busy", true));
        sim.delete_key("pool");
        tokio::time::timeout(SOON, idle.carried).await.expect("it is told").unwrap();
        assert_eq!(ends(&sim), [Some(SessionEnd::Cut), None, None]);
        assert!(sim.set_busy("busy", false));
        tokio::time::timeout(SOON, busy.carried).await.expect("it is told").unwrap();
        assert_eq!(ends(&sim), [Some(SessionEnd::Cut), Some(SessionEnd::Cut), None]);
        assert!(!stays.carried.is_finished());
        let refused = dial(&sim, PATH, &[(KEY, material.expose_secret())]).await.unwrap_err();
        assert_eq!(refused.0, 401);
    }

    #[tokio::test]
    async fn a_daemon_belongs_to_the_organization_of_its_key() {
        let (sim, _) = sim().await;
        let organization = sim.add_organization("acme");
        let (target, token) = (Endpoint::new(sim.url()), sim.owner_token());
        let owner = Connector::new(Settings::on_loopback()).client(&target, Some(&token)).unwrap();
        let material = owner.create_provisioner_key("acme", "theirs", &BTreeMap::new()).await.unwrap();
        let _client = join(&sim, &material, "one").await;
        assert_eq!(listed(&sim, &organization).await.len(), 1);
        assert!(listed(&sim, "default").await.is_empty());
    }

    #[tokio::test]
    async fn sessions_end_with_the_server() {
        let (sim, material) = sim().await;
        let client = join(&sim, &material, "one").await;
        sim.stop().await;
        tokio::time::timeout(SOON, client.carried).await.expect("the connection breaks").unwrap();
        until_ends(&sim, &[Some(SessionEnd::Left)]).await;
    }

    #[tokio::test]
    async fn who_is_refused_is_told_why() {
        let (sim, material) = sim().await;
        let (key, owner, member) =
            (material.expose_secret(), sim.owner_token(), sim.token_with_roles("member", &[]));
        let (owner, member) = (owner.expose_secret(), member.expose_secret());
        let none = "API key or external provisioner authentication required, but none provided";
        let both = "API key and external provisioner authentication provided, but only one is allowed";
        let newer = json!({"message": "Incompatible or unparsable version", "validations": [{"field": "version",
            "detail": "server is at version 1.17, behind requested minor version 1.18"}]});
        let session = "coder-session-token";
        let unknown = "x".repeat(43);
        let at = |more: &str| format!("{PATH}{more}");
        let elsewhere = PATH.replace("default", "nowhere");
        sim.set_provisioner_api(1, 17);
        for (path, headers, status, said) in [
            (at(""), vec![], 401, json!({ "message": none })),
            (at(""), vec![(KEY, unknown.as_str())], 401, json!({ "message": none })),
            (at(""), vec![(KEY, key), (session, owner)], 400, json!({ "message": both })),
            (at("&tag=a=b"), vec![(KEY, key)], 403, Value::Null),
            (at("&tag=a"), vec![(KEY, key)], 400, Value::Null),
            (
                at("&provisioner=odd"),
                vec![(KEY, key)],
                400,
                json!({"message": "Unknown provisioner type \"odd\""}),
            ),
            (at(""), vec![(session, member)], 403, Value::Null),
            (elsewhere, vec![(KEY, key)], 404, Value::Null),
            (at(""), vec![(KEY, key)], 400, newer),
        ] {
            let (found, body) = dial(&sim, &path, &headers).await.unwrap_err();
            assert_eq!(found, status, "{path}: {body}");
            assert!(said.is_null() || body == said, "{path}: {body}");
        }
        let plain = reqwest::Client::new().get(format!("{}{PATH}", sim.url())).header(KEY, key);
        assert_eq!(plain.send().await.unwrap().status(), 400, "the version is looked at first");
        sim.set_provisioner_api(1, 18);
        let plain = reqwest::Client::new().get(format!("{}{PATH}", sim.url())).header(KEY, key);
        assert_eq!(plain.send().await.unwrap().status(), 426);
        sim.delete_license(1);
        let (found, body) = dial(&sim, PATH, &[(KEY, key)]).await.unwrap_err();
        let feature = "External provisioner daemons is an Enterprise feature. Contact sales!";
        assert_eq!((found, body), (403, json!({ "message": feature })));
        assert!(sim.sessions().is_empty());
        assert!(!sim.requests().iter().any(|entry| entry.path.contains(key)), "a key is not in the log");
    }

    #[test]
    fn a_daemon_may_be_older_than_the_server_but_not_newer() {
        for (asked, refused) in [
            ("1.18", None),
            ("1.0", None),
            ("1.19", Some("server is at version 1.18, behind requested minor version 1.19")),
            ("2.0", Some("server is at version 1.18, behind requested major version 2.0")),
            ("0.9", Some("version 0.9 is no longer supported")),
            ("1", Some("invalid version string: 1")),
            ("x.1", Some("invalid major version: x.1")),
            ("1.x", Some("invalid minor version: 1.x")),
        ] {
            assert_eq!(understood((1, 18), asked).err().as_deref(), refused, "{asked}");
        }
    }
}
