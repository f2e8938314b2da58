//! The model of provisioner keys.
//!
//! Keys of others are as young as ours. One race is left out, since no client of coderd can close it: coderd deletes by
//! name, and somebody may replace a key between the last listing and the deletion.

pub mod act;
pub mod environment;
pub mod observe;
pub mod properties;
pub mod world;

use self::{
    act::{act, observe},
    environment::{arrive, can_start, can_stop, happenings, start, stop},
    observe::{Circumstances, REACHES, Reach},
    world::{World, checksums},
};
use super::{HOWS, How, Limits, Phase, Start, search::Machine};

pub use self::observe::Flaw;

/// A search of keys within limits, with a rule that is deliberately broken or none.
pub struct Keys {
    pub limits: Limits,
    pub flaw: Option<Flaw>,
}

impl Machine for Keys {
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
        if self.limits.start == Start::TakenOver {
            for stored in world.secrets.iter_mut().flatten() {
                stored.marks = None;
            }
            if let Some(key) = &mut world.record.current {
                key.target.deployment_id = None;
            }
            let held = world.pods.first().map(|pod| pod.held).ok_or("the pool does not come up")?;
            let [_, existing] = checksums(held).ok_or("the pool does not come up")?;
            for pod_credential in
                world.deployment.iter_mut().chain(world.pods.iter_mut().map(|pod| &mut pod.pod_credential))
            {
                pod_credential.checksum.clone_from(&existing);
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
        if let Some(next) = observe(world, self.calm()) {
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
        None
    }

    fn always(&self, world: &World) -> Result<(), String> {
        properties::always(world, &self.limits)
    }

    fn at_the_end(&self, world: &World) -> Result<(), String> {
        properties::at_the_end(world, self.calm())
    }
}

impl Keys {
    fn calm(&self) -> Circumstances {
        Circumstances { reach: Reach::All, late: true, verify: true, flaw: self.flaw }
    }
}
