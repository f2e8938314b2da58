//! What must hold.

use coder_k8s_core::provisioner::keys::{CredentialProgress, NextStep};

use super::{
    super::{Limits, Phase},
    observe::{Circumstances, Reach, facts},
    world::{Material, World, id_text, organization_text},
};

/// In every state.
pub fn always(world: &World, limits: &Limits) -> Result<(), String> {
    if let Some(violation) = world.violation {
        return Err(violation.to_owned());
    }
    if world.phase == Phase::Gone {
        return gone(world);
    }
    let ours = world.keys.iter().filter(|key| key.mine).count();
    let undisturbed = limits.budget.damages == 0 && limits.budget.others == 0 && limits.budget.losses == 0;
    if limits.sequential && undisturbed && ours > 2 {
        return Err(format!("{ours} keys of ours while every edit waited for the last"));
    }
    Ok(())
}

/// When the object is gone, so are its keys, or people know of them.
fn gone(world: &World) -> Result<(), String> {
    if world.late.is_some() {
        return Err("the object is gone and a key may still be made for it".to_owned());
    }
    match world.keys.iter().find(|key| key.mine && !is_named(world, key.id)) {
        Some(key) => Err(format!("the object is gone and nobody was told of key {}", key.name)),
        None => Ok(()),
    }
}

fn is_named(world: &World, id: u8) -> bool {
    world.named & (1 << id) != 0
}

/// When nothing is left to do and nobody disturbs.
pub fn at_the_end(world: &World, how: Circumstances) -> Result<(), String> {
    if world.phase == Phase::Gone {
        return gone(world);
    }
    if world.phase != Phase::Alive {
        return Err("the object does not go".to_owned());
    }
    for verify in [false, true] {
        let decision = facts(world, Circumstances { reach: Reach::All, late: true, verify, flaw: how.flaw })?;
        if decision.next != NextStep::Done || decision.pod_credential != world.deployment {
            return Err(format!("does not rest: {:?}", decision.next));
        }
        if verify && decision.verdict.stage == CredentialProgress::Stalled {
            return stalled(world);
        }
    }
    let Some(current) = &world.record.current else { return Err("no key".to_owned()) };
    let left: Vec<_> = world.keys.iter().filter(|key| key.mine && !is_named(world, key.id)).collect();
    let [key] = left.as_slice() else { return Err(format!("{} keys of ours at the end", left.len())) };
    let checks = [
        (current.id == Some(id_text(key.id)), "the status names another key"),
        (key.server == world.spec.server, "the key is at another coderd"),
        (key.tags == world.wanted_tags(), "the key has other tags"),
        (world.base().covers(&key.name), "the key has another name"),
        (
            organization_text(key.organization) == organization_text(world.spec.organization),
            "the key is in another organization",
        ),
        (world.record.pending.is_none() && world.record.stale.is_empty(), "keys are still on the status"),
        (
            world.secret(world.spec.secret).is_some_and(|stored| stored.material == Material::Of(key.id)),
            "the Secret holds something else",
        ),
        (world.secret(!world.spec.secret).is_none(), "a Secret is left over"),
        (
            !world.pods.is_empty() && world.pods.iter().all(|pod| pod.held == Material::Of(key.id)),
            "pods hold something else",
        ),
    ];
    match checks.into_iter().find(|(holds, _)| !holds) {
        Some((_, why)) => Err(why.to_owned()),
        None => Ok(()),
    }
}

/// Somebody else has the name that the user chose: what there was stays, is on the status, and nothing more is made.
fn stalled(world: &World) -> Result<(), String> {
    let ours = world.keys.iter().filter(|key| key.mine && !is_named(world, key.id)).count();
    let known = world
        .keys
        .iter()
        .filter(|key| key.mine)
        .all(|key| is_named(world, key.id) || world.record.knows(&id_text(key.id)));
    if !known || world.record.pending.is_some() || !world.base().chosen {
        return Err(format!("stalls with {ours} keys of ours"));
    }
    Ok(())
}
