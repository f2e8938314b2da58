//! The model of proxy registrations, and what must hold in it.

pub mod environment;
pub mod operator;
pub mod world;

use coder_k8s_core::workspaceproxy::registration::{
    CredentialProgress, NextStep, RegistrationRecord, RetiredRegistration,
};

use self::{
    environment::{arrive, can_start, can_stop, happenings, refused, restart, start, stop},
    operator::{Circumstances, REACHES, Reach, act, decision, observe},
    world::{ProxyHere, Token, World, id_text},
};
use super::{HOWS, How, Limits, Phase, Start, search::Machine, server_of};

pub use self::operator::Flaw;

/// A search of registrations within limits, with a rule that is deliberately broken or none.
pub struct Registrations {
    pub limits: Limits,
    pub flaw: Option<Flaw>,
}

impl Machine for Registrations {
    type World = World;

    fn begin(&self) -> Result<World, String> {
        let sound = Self { limits: self.limits, flaw: None };
        let mut world = World::new(&self.limits);
        if self.limits.start == Start::New {
            return Ok(world);
        }
        while let Some(next) = sound.undisturbed(&world) {
            world = next;
        }
        if world.pods.is_empty() {
            return Err(format!("the proxy does not come up: {world:?}"));
        }
        if self.limits.start == Start::TakenOver {
            for stored in world.secrets.iter_mut().flatten() {
                stored.marks = None;
            }
            world.has_finalizer = false;
            let secret = world.record.secret.take();
            world.record = RegistrationRecord { secret, ..RegistrationRecord::default() };
            for pod_credential in
                world.deployment.iter_mut().chain(world.pods.iter_mut().map(|pod| &mut pod.pod_credential))
            {
                pod_credential.checksum.clear();
            }
        }
        Ok(world)
    }

    fn successors(&self, world: &World) -> Vec<(String, World)> {
        let mut all = Vec::new();
        let at_rest = self.limits.sequential && self.undisturbed(world).is_none();
        all.extend(happenings(world, &self.limits, at_rest));
        if world.phase == Phase::Gone {
            return all;
        }
        if world.flight.is_some() {
            for how in HOWS {
                let next = act(world, how, self.flaw);
                all.extend(next.map(|next| (format!("effect: {how:?} {:?}", world.flight), next)));
            }
            return all;
        }
        let half_made = world.record.stale.iter().any(|stale| stale.credential.id.is_none());
        let time_matters = half_made || (world.phase != Phase::Alive && world.record.pending.is_some());
        for reach in REACHES {
            for late in [false, true] {
                // A request that is under way ends long before the deadlines of the protocol.
                if late && (world.late.is_some() || !time_matters) {
                    continue;
                }
                let how = Circumstances { reach, late, verify: true, flaw: self.flaw };
                let next = observe(world, how);
                all.extend(next.map(|next| (format!("reconcile: {reach:?}, late {late}"), next)));
            }
        }
        all
    }

    fn undisturbed(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        if world.phase == Phase::Gone {
            return None;
        }
        if world.late.is_some() {
            arrive(&mut next);
            return Some(next);
        }
        if world.flight.is_some() {
            return act(world, How::Well, self.flaw);
        }
        if let Some(next) = observe(world, self.calm(true)) {
            return Some(next);
        }
        if can_start(world) {
            start(&mut next);
            return Some(next);
        }
        if can_stop(world) {
            stop(&mut next);
            return Some(next);
        }
        if let Some(at) = refused(world) {
            restart(&mut next, at);
            return Some(next);
        }
        None
    }

    fn always(&self, world: &World) -> Result<(), String> {
        if let Some(violation) = world.violation {
            return Err(violation.to_owned());
        }
        if world.phase == Phase::Gone {
            return gone(world);
        }
        let budget = self.limits.budget;
        let alone = budget.damages == 0 && budget.others == 0 && budget.losses == 0;
        let on = |server: bool| world.ours().filter(|proxy| proxy.server == server).count();
        if self.limits.sequential && alone && (on(false) > 1 || on(true) > 1) {
            return Err("two registrations of ours in one coderd while every edit waited for the last".into());
        }
        Ok(())
    }

    fn at_the_end(&self, world: &World) -> Result<(), String> {
        if world.phase == Phase::Gone {
            return gone(world);
        }
        if world.phase != Phase::Alive {
            return Err("the object does not go".to_owned());
        }
        for verify in [false, true] {
            let decision = decision(world, self.calm(verify))?;
            if decision.next != NextStep::Done || decision.pod_credential != world.deployment {
                return Err(format!("does not rest: {:?}", decision.next));
            }
            if verify && decision.verdict.stage == CredentialProgress::Stalled {
                return stalled(world);
            }
        }
        if world.spec.supplied { supplied(world) } else { registered(world) }
    }
}

impl Registrations {
    fn calm(&self, verify: bool) -> Circumstances {
        Circumstances { reach: Reach::All, late: true, verify, flaw: self.flaw }
    }
}

/// When the object is gone, so are its registrations, or people know of them.
fn gone(world: &World) -> Result<(), String> {
    if world.late.as_ref().is_some_and(|late| late.id.is_none()) {
        return Err("the object is gone and a registration may still be made for it".to_owned());
    }
    match world.ours().next() {
        Some(proxy) => Err(format!("the object is gone and nobody was told of registration {}", proxy.name)),
        None => Ok(()),
    }
}

fn check(checks: &[(bool, &str)]) -> Result<(), String> {
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}

/// One registration, which has the wanted name, and whose newest token is in the wanted Secret and in every pod.
fn registered(world: &World) -> Result<(), String> {
    let Some(current) = &world.record.current else { return Err("no registration".to_owned()) };
    let ours: Vec<_> = world.ours().collect();
    let [proxy] = ours.as_slice() else { return Err(format!("{} registrations of ours", ours.len())) };
    let token = Token::Of(proxy.id, proxy.newest);
    let secret = world.secret(world.spec.secret);
    check(&[
        (current.id == Some(id_text(proxy.id)), "the status names another registration"),
        (proxy.server == world.spec.server, "the registration is at another coderd"),
        (proxy.name == world.wanted_name(), "the registration has another name"),
        (world.has_finalizer, "the finalizer is not there"),
        (world.record.pending.is_none() && world.record.stale.is_empty(), "something is still on the status"),
        (secret.is_some_and(|stored| stored.token == token), "the Secret holds no token that works"),
        (
            world.secret(!world.spec.secret).is_none_or(|stored| stored.marks.is_none()),
            "a Secret with our annotations is left over",
        ),
        (
            !world.pods.is_empty() && world.pods.iter().all(|pod| pod.held == token),
            "pods hold no token that works",
        ),
    ])
}

/// The token of a person is in every pod, and nothing of ours is left.
fn supplied(world: &World) -> Result<(), String> {
    check(&[
        (world.ours().next().is_none(), "a registration is left over"),
        (world.record.is_empty() && !world.has_finalizer, "something is still on the status"),
        (
            world.secrets.iter().flatten().all(|stored| stored.marks.is_none()),
            "a Secret with our annotations is left over",
        ),
        (
            !world.pods.is_empty() && world.pods.iter().all(|pod| pod.held == Token::Supplied),
            "pods hold another token",
        ),
    ])
}

/// Somebody else has the wanted name: what there was stays, is on the status, and nothing more is made.
fn stalled(world: &World) -> Result<(), String> {
    let holder = world.holder(world.spec.server, world.wanted_name());
    let recorded = |proxy: &ProxyHere| {
        let announced = |RetiredRegistration { credential, .. }: &RetiredRegistration| {
            credential.id.is_none()
                && credential.name == proxy.name
                && server_of(&credential.target) == proxy.server
        };
        world.record.knows(&id_text(proxy.id)) || world.record.stale.iter().any(announced)
    };
    let is_free = |holder: &ProxyHere| holder.mine && !world.is_named(holder.id);
    check(&[
        (holder.is_some_and(|holder| !is_free(holder)), "stalls although nobody else has the name"),
        (
            world.record.pending.as_ref().is_none_or(|pending| pending.credential.id.is_some()),
            "stalls with a registration announced",
        ),
        (world.ours().all(recorded), "stalls with a registration off the status"),
    ])
}
