//! What a server tells without a credential: who it is, and that it serves.

use serde::Deserialize;

use crate::{
    call::{Auth, Request},
    client::Client,
    decode,
    error::{Error, ErrorKind, Unexpected},
};

/// Identity of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BuildInfo {
    /// Version with a leading `v`, such as `v2.30.0`.
    pub version: String,
    /// UUID of the deployment, stored in its database. Empty for a workspace proxy, which is no deployment.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub deployment_id: String,
    /// Whether a workspace proxy answered instead of coderd.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub workspace_proxy: bool,
    /// Access URL of the deployment.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub dashboard_url: String,
}

impl Client {
    /// Asks the server who it is. Sends no credential, so it is safe before the server is identified.
    pub async fn build_info(&self) -> Result<BuildInfo, Error> {
        self.fetch(Request::get("get buildinfo").at("buildinfo").by(Auth::Nobody)).await
    }

    /// Succeeds if the HTTP server of coderd runs. Says nothing about its database.
    pub async fn healthz(&self) -> Result<(), Error> {
        let mut request = Request::get("get healthz").by(Auth::Nobody);
        request.path = vec!["healthz".into()];
        let call = request.call;
        let answer = self.send(request).await?;
        if answer.body.trim_ascii() == b"OK" {
            return Ok(());
        }
        let (status, what) = (answer.status, Unexpected::ContentType);
        Err(self.error(call, ErrorKind::UnexpectedAnswer { status, what }))
    }
}
