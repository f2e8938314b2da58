//! CoderWorkspaceProxy: for now no children, only a status that says so.

use std::sync::Arc;

use coder_k8s_core::{
    outcome::Done,
    workspaceproxy::{self, Seen},
};
use coder_k8s_engine::{key::Key, queue::Next};
use tokio::time::Instant;

use crate::controller::Context;

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Next {
    let started = Instant::now();
    let object = match ctx.look(&ctx.caches.workspace_proxies, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    let (seen, done) = (Seen { object }, Done::default());
    let status = workspaceproxy::status(&seen, &done, ctx.now());
    ctx.conclude(&key, &*seen.object, &status, done, started).await
}
