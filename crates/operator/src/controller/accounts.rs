//! ServiceAccounts of pods: made, given up, and cleared away.

use coder_k8s_core::{account::Accounts, outcome::Done};
use coder_k8s_engine::{failure, gate::Owner};
use kube::ResourceExt;

use super::{
    Context,
    children::{apply, remove},
};

/// Makes the one that is wanted and gives up those that are no longer ours to keep.
pub(crate) async fn make(accounts: &Accounts, owner: &Owner, ctx: &Context, done: &mut Done) {
    if let Some(account) = &accounts.wanted {
        let held = ctx.caches.service_accounts.get(&owner.namespace, &account.name_any());
        apply(ctx, owner, account.clone(), held, done).await;
    }
    for account in &accounts.detached {
        if let Err(error) = ctx.gate.detach(owner, &**account).await {
            let what = format!("give ServiceAccount {} up", account.name_any());
            done.failures.push(failure::judge(&what, &error));
        }
    }
}

/// Removes those that nothing uses any more.
pub(crate) async fn clear(accounts: &Accounts, owner: &Owner, ctx: &Context, done: &mut Done) {
    for account in &accounts.obsolete {
        remove(ctx, owner, &**account, done).await;
    }
}
