//! All reads of a pass. From caches: nothing here is irreversible.

use std::sync::Arc;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::controlplane::Seen;
use kube::ResourceExt;

use crate::controller::Context;

/// What there is of the object and its children.
pub(super) fn observe(object: Arc<CoderControlPlane>, ctx: &Context) -> Seen {
    let (uid, namespace) = (object.uid(), object.namespace());
    let service_accounts = ctx.caches.service_accounts.filter(|account| {
        let ours = |uid: &String| {
            account.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == *uid)
        };
        account.namespace() == namespace && uid.as_ref().is_some_and(ours)
    });
    Seen { object, service_accounts }
}
