//! ServiceAccounts of pods: made, given up, and cleared away.

use coder_k8s_core::{account::Accounts, outcome::ActResult};
use coder_k8s_engine::{apply::Owner, failure};
use kube::ResourceExt;

use super::{
    Context,
    children::{apply, remove},
};

/// Makes the one that is wanted and gives up those that are no longer ours to keep.
pub(crate) async fn make(accounts: &Accounts, owner: &Owner, ctx: &Context, done: &mut ActResult) {
    if let Some(account) = &accounts.desired {
        let held = ctx.caches.service_accounts.get(&owner.namespace, &account.name_any());
        apply(ctx, owner, account.clone(), held, done).await;
    }
    for account in &accounts.detached {
        if let Err(error) = ctx.applier.detach(owner, &**account).await {
            let what = format!("give ServiceAccount {} up", account.name_any());
            done.failures.push(failure::from_kube(&what, &error));
        }
    }
}

/// Removes those that nothing uses any more.
pub(crate) async fn clear(accounts: &Accounts, owner: &Owner, ctx: &Context, done: &mut ActResult) {
    for account in &accounts.obsolete {
        remove(ctx, owner, &**account, done).await;
    }
}
