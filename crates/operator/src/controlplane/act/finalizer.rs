//! The finalizer: there only while something outside the namespace must be cleaned up.

use std::ops::ControlFlow;

use coder_k8s_api::{CoderControlPlane, names::FIELD_MANAGER};
use coder_k8s_core::controlplane::{self, Outcome, Seen};
use coder_k8s_engine::failure;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::controller::Context;

/// Puts the finalizer on the object or takes it off, and changes nothing else. Goes on if it was so already: after a
/// write, or a failure to write, what was seen of the object no longer counts.
pub(super) async fn set(seen: &Seen, wanted: bool, ctx: &Context, outcome: &mut Outcome) -> ControlFlow<()> {
    let object = &*seen.object;
    let Some(finalizers) = controlplane::finalizers(object, wanted) else { return ControlFlow::Continue(()) };
    // The version keeps a finalizer that somebody else has added in the meantime.
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let api: Api<CoderControlPlane> =
        Api::namespaced(ctx.client.clone(), &object.namespace().unwrap_or_default());
    match api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await {
        Ok(_) => outcome.touched = true,
        Err(kube::Error::Api(status)) if status.is_not_found() => outcome.touched = true,
        Err(error) => outcome.done.failures.push(failure::judge("write the finalizer", &error)),
    }
    ControlFlow::Break(())
}
