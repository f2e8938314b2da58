//! What a server tells anybody.

use serde::Deserialize;

use crate::{
    call::{Auth, Request},
    client::Client,
    decode,
    error::{Error, ErrorKind, Unexpected},
};

/// Who a server is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BuildInfo {
    /// With a leading `v`.
    pub version: String,
    /// The identity of the deployment. Empty for a workspace proxy, which is no deployment.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub deployment_id: String,
    /// Whether it is a workspace proxy.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub workspace_proxy: bool,
    /// The access URL of the deployment.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub dashboard_url: String,
}

impl Client {
    /// Who the server is. Needs no credential, and sends none.
    pub async fn build_info(&self) -> Result<BuildInfo, Error> {
        self.fetch(Request::get("get buildinfo").at("buildinfo").by(Auth::Nobody)).await
    }

    /// Whether the server serves. It says nothing about its database.
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
