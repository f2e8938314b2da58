//! T1: may write our kinds, Secrets, ConfigMaps and workloads in one namespace.

mod floods;
mod grants;
mod names;
mod text;

use std::collections::BTreeMap;

use coder_k8s_testbed::Shared;
use kube::Client;

use crate::Row;
pub(crate) use text::with_api_url;

/// The rows of this attacker, those that take longest first.
pub(crate) fn rows() -> Vec<Row> {
    [floods::rows(), grants::rows(), names::rows(), text::rows()].into_iter().flatten().collect()
}

/// Stores what the present schema refuses, and what a stopped operator left behind.
pub(crate) async fn store(shared: &Shared, client: &Client) -> BTreeMap<&'static str, String> {
    let mut stored = names::store(shared, client).await;
    stored.extend(grants::store(shared, client).await);
    stored
}
