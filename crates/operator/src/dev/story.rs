//! The story that `dev` tells with the samples: the Secrets that they name, and three commands to try when everything
//! is Ready.

use anyhow::Result;
use coder_k8s_testbed::CoderSim;
use kube::Client;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{
    Guide, NAMESPACE,
    folder::Folder,
    given::{apply_namespace, apply_value},
};

/// The file with the license of the first command.
const RENEWED: &str = "renewed-license.yaml";
const LICENSE: &str = "coder-license";
/// The sample whose tags the second command edits.
const POOL: &str = "pool-us";
/// One year more than the first license has.
const RENEWED_DAYS: u64 = 90 + 365;

/// The first administrator, for the Secret that the sample of the control plane names.
pub(super) struct Login {
    pub(super) email: &'static str,
    pub(super) password: SecretString,
}

impl Login {
    /// A login with a random password.
    pub(super) fn random() -> Self {
        let password = uuid::Uuid::new_v4().simple().to_string();
        Self { email: "admin@example.com", password: password.into() }
    }
}

/// Creates the namespace of the samples, and the Secrets that all control planes need.
pub(super) async fn prepare(client: &Client, database: &str, login: &Login) -> Result<()> {
    apply_namespace(client, NAMESPACE).await?;
    apply_value(client, secret("coder-db-app", &json!({"uri": database}))).await?;
    let password = login.password.expose_secret();
    let admin = json!({"username": "admin", "email": login.email, "password": password});
    apply_value(client, secret("coder-admin", &admin)).await
}

/// Creates the Secret with a license of the simulator, and writes the manifest of its successor.
pub(super) async fn license(client: &Client, folder: &Folder) -> Result<()> {
    let first = CoderSim::license().build();
    apply_value(client, secret(LICENSE, &json!({"license": first.expose_secret()}))).await?;
    let term = std::time::Duration::from_hours(24 * RENEWED_DAYS);
    let renewed = CoderSim::license().expires_in(term).build();
    let manifest = serde_saphyr::to_string(&secret(LICENSE, &json!({"license": renewed.expose_secret()})))?;
    folder.write(RENEWED, &manifest)
}

fn secret(name: &str, data: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
}

/// What to try with the samples.
pub(super) fn guide(title: String, folder: &Folder) -> Guide {
    let commands = [
        ("renew the license, and watch its date", format!("kubectl replace -f {}", folder.typed(RENEWED))),
        (
            "other tags need another key: watch it replace the old one without a cut",
            format!(
                "kubectl patch cprov {POOL} --type merge -p '{{\"spec\":{{\"tags\":{{\"size\":\"large\"}}}}}}'"
            ),
        ),
        ("delete everything, also in coderd, within a minute or so", "kubectl delete coder --all".to_owned()),
    ];
    Guide {
        title,
        environment: format!(". {}", folder.typed("env")),
        commands: commands.map(|(what, command)| (what.to_owned(), command)).into(),
        pinned: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::given;

    #[test]
    fn the_pool_of_the_commands_is_a_sample() {
        let samples = given::samples().unwrap();
        assert!(samples.iter().any(|one| one.object.metadata.name.as_deref() == Some(POOL)));
    }
}
