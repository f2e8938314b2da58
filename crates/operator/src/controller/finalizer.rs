//! The finalizer of an object: there only while something outside the namespace must be cleaned up.

use std::ops::ControlFlow;

use coder_k8s_api::names::FIELD_MANAGER;
use coder_k8s_core::{
    object,
    outcome::{ActResult, Retry},
};
use coder_k8s_engine::failure;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Context, kinds::CoderResource};

/// Puts the finalizer on the object or takes it off, and changes nothing else. Goes on if it was so already: after a
/// write what was seen of the object no longer counts; a failure to write is noted.
pub(crate) async fn set<K>(
    object: &K,
    finalizer: &str,
    desired: bool,
    ctx: &Context,
    done: &mut ActResult,
) -> ControlFlow<Written>
where
    K: CoderResource,
{
    let Some(finalizers) = object::finalizers(object, finalizer, desired) else {
        return ControlFlow::Continue(());
    };
    // The version keeps a finalizer that somebody else has added in the meantime.
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &object.namespace().unwrap_or_default());
    match api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await {
        Ok(_) => {
            ctx.mark_stale(object);
            ControlFlow::Break(Written::Yes)
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => ControlFlow::Break(Written::Yes),
        Err(error) => {
            done.failures.push(failure::from_kube("write the finalizer", &error));
            ControlFlow::Break(Written::Failed)
        }
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was written, or the object is gone.
    Yes,
    /// It was not, which is noted.
    Failed,
}

/// Puts the finalizer on the object before something is made outside. Goes on if it was there; else the pass ends, and a
/// failure says when to try again.
pub(crate) async fn hold<K: CoderResource>(
    object: &K,
    finalizer: &str,
    ctx: &Context,
) -> ControlFlow<Option<Retry>> {
    let mut done = ActResult::default();
    let set = set(object, finalizer, true, ctx, &mut done).await;
    set.map_break(|_| done.failures.first().map(|failure| failure.retry))
}
