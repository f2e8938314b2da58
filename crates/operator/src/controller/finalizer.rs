//! Adds and removes the finalizer of an object.
//!
//! An object has it only while something outside its namespace, in coderd or in other namespaces, must be cleaned up.
//! Garbage collection removes everything else, so that most objects never get one.

use std::ops::ControlFlow;

use coder_k8s_api::names::FIELD_MANAGER;
use coder_k8s_core::{
    object,
    outcome::{ActResult, Retry},
};
use coder_k8s_engine::client;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Context, kinds::CoderResource};

/// Adds or removes the finalizer, and changes nothing else. Continues if there is nothing to change. Breaks after a write,
/// because what was observed is outdated then, and after a failure, which is noted in `done`.
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
    // A merge patch replaces the whole list: the version protects a finalizer that somebody else has added meanwhile.
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
            done.failures.push(client::blocker("write the finalizer", &error));
            ControlFlow::Break(Written::Failed)
        }
    }
}

/// The outcome of a write of the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The object was written, or no longer exists.
    Yes,
    /// The failure is in the [`ActResult`].
    Failed,
}

/// Adds the finalizer before something is created outside the namespace, so that no crash leaves anything behind. Continues
/// if the object has it; else the reconcile ends, and a failure says when to retry.
pub(crate) async fn add<K: CoderResource>(
    object: &K,
    finalizer: &str,
    ctx: &Context,
) -> ControlFlow<Option<Retry>> {
    let mut done = ActResult::default();
    let set = set(object, finalizer, true, ctx, &mut done).await;
    set.map_break(|_| done.failures.first().map(|failure| failure.retry))
}
