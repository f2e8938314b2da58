//! All reads of a pass. From caches: nothing here is irreversible.

use coder_k8s_core::controlplane::Seen;
use coder_k8s_engine::key::Key;
use kube::ResourceExt;

use crate::controller::Context;

/// What there is of the object. None: it is gone.
pub(super) fn observe(key: &Key, ctx: &Context) -> Option<Seen> {
    let object = ctx.caches.control_planes.get(&key.namespace, &key.name)?;
    let uid = object.uid();
    let service_accounts = ctx.caches.service_accounts.filter(|account| {
        account.namespace().as_deref() == Some(&key.namespace)
            && account
                .owner_references()
                .iter()
                .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid.as_ref())
    });
    Some(Seen { object, service_accounts })
}
