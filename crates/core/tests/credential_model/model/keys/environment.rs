//! What everybody else does: the user, other people, Kubernetes.

use super::{
    super::{Limits, Phase, server_at},
    act::make_now,
    world::{FOREIGN, Flight, Id, KeyHere, Material, Pod, Stored, World, id_text, secret_of},
};
use coder_k8s_core::provisioner::keys::{Effect, PodCredential};

/// Everything that may happen without the operator, with a name.
pub fn happenings(world: &World, limits: &Limits, at_rest: bool) -> Vec<(String, World)> {
    let mut all = Vec::new();
    if world.phase == Phase::Gone {
        return all;
    }
    if world.phase == Phase::Alive {
        if !limits.sequential || at_rest {
            edits(world, &mut all);
        }
        delete_object(world, &mut all);
    }
    if world.phase == (Phase::Deletion { overdue: false }) {
        add(&mut all, world, "deadline passes", |w| w.phase = Phase::Deletion { overdue: true });
    }
    late(world, &mut all);
    pods(world, &mut all);
    damages(world, &mut all);
    losses(world, &mut all);
    others(world, &mut all);
    all
}

fn add(all: &mut Vec<(String, World)>, world: &World, name: &str, change: impl FnOnce(&mut World)) {
    let mut next = world.clone();
    change(&mut next);
    next.forget();
    if next != *world {
        all.push((name.to_owned(), next));
    }
}

fn edits(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.edits.checked_sub(1) else { return };
    let mut edit = |name: &str, change: fn(&mut World)| {
        add(all, world, name, |next| {
            next.budget.edits = left;
            change(next);
        });
    };
    edit("edit: control plane", |w| w.spec.server = !w.spec.server);
    edit("edit: tags", |w| w.spec.tags = !w.spec.tags);
    edit("edit: key name", |w| w.spec.name = !w.spec.name);
    edit("edit: Secret", |w| w.spec.secret = !w.spec.secret);
    edit("edit: organization", |w| w.spec.organization = !w.spec.organization);
    edit("edit: address of the control plane", |w| w.spec.address = !w.spec.address);
}

fn delete_object(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.deletions.checked_sub(1) else { return };
    add(all, world, "delete the object", |next| {
        next.budget.deletions = left;
        next.phase = if next.has_finalizer { Phase::Deletion { overdue: false } } else { Phase::Gone };
    });
}

/// A request that coderd got is carried out, or turns out to have got lost.
fn late(world: &World, all: &mut Vec<(String, World)>) {
    if world.late.is_some() {
        add(all, world, "a late request is carried out", arrive);
        add(all, world, "a late request is lost", |next| next.late = None);
    }
}

pub fn arrive(world: &mut World) {
    if let Some(key) = world.late.take() {
        make_now(world, &key);
    }
}

fn pods(world: &World, all: &mut Vec<(String, World)>) {
    if can_start(world) {
        add(all, world, "a new pod starts", start);
    }
    if can_stop(world) {
        add(all, world, "an old pod ends", stop);
    }
    let Some(left) = world.budget.restarts.checked_sub(1) else { return };
    for at in 0..world.pods.len() {
        let pod_credential = world.pods[at].pod_credential.clone();
        let Some(held) = read(world, secret_of(&pod_credential.secret)) else { continue };
        add(all, world, "a pod restarts", |next| {
            next.budget.restarts = left;
            next.pods[at].held = held;
            connect(next, held, &pod_credential);
        });
    }
}

fn read(world: &World, secret: bool) -> Option<Material> {
    world.secret(secret).map(|stored| stored.material).filter(|material| *material != Material::Empty)
}

/// A pod that starts says so to coderd, if its key is known there.
fn connect(world: &mut World, held: Material, pod_credential: &PodCredential) {
    let Material::Of(id) = held else { return };
    let server = server_at(&pod_credential.url);
    if world.killed & (1 << id) != 0 && world.phase == Phase::Alive {
        world.violation = Some("a pod started with a key that the operator deleted");
    }
    if let Some(key) = world.keys.iter_mut().find(|key| key.id == id && key.server == server) {
        key.used = true;
    }
}

pub fn can_start(world: &World) -> bool {
    let Some(pod_credential) = &world.deployment else { return false };
    world.pods.iter().all(|pod| pod.pod_credential != *pod_credential)
        && read(world, secret_of(&pod_credential.secret)).is_some()
}

pub fn start(world: &mut World) {
    let Some(pod_credential) = world.deployment.clone() else { return };
    let Some(held) = read(world, secret_of(&pod_credential.secret)) else { return };
    world.pods.push(Pod { held, pod_credential: pod_credential.clone() });
    connect(world, held, &pod_credential);
}

/// An old pod ends once a new one is there.
pub fn can_stop(world: &World) -> bool {
    let new = |pod: &Pod| Some(&pod.pod_credential) == world.deployment.as_ref();
    world.pods.iter().any(new) && !world.pods.iter().all(new)
}

pub fn stop(world: &mut World) {
    let at = world.pods.iter().position(|pod| Some(&pod.pod_credential) != world.deployment.as_ref());
    if let Some(at) = at {
        world.pods.remove(at);
    }
}

/// Somebody damages the Secret.
fn damages(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.damages.checked_sub(1) else { return };
    for which in [false, true] {
        let Some(stored) = world.secret(which) else { continue };
        let mut damage = |name: &str, result: Option<Stored>| {
            add(all, world, name, |next| {
                next.budget.damages = left;
                next.secrets[usize::from(which)] = result;
            });
        };
        let with = |material| Some(Stored { material, ..stored.clone() });
        damage("the Secret is deleted", None);
        damage("the Secret is emptied", with(Material::Empty));
        damage("the Secret is overwritten", with(Material::Garbage));
        damage("the Secret's annotations are removed", Some(Stored { marks: None, ..stored.clone() }));
        if let Some(key) = world.keys.iter().find(|key| !key.mine) {
            damage("the Secret gets somebody else's key", with(Material::Of(key.id)));
        }
    }
}

/// The status is lost.
fn losses(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.losses.checked_sub(1) else { return };
    // What only the status knows cannot be found again.
    let is_marked = |key: &KeyHere| {
        world.secrets.iter().flatten().any(|stored| match &stored.marks {
            Some(marks) => marks.id == Some(id_text(key.id)),
            None => {
                stored.material == Material::Of(key.id)
                    && world.spec.server == key.server
                    && world.spec.organization == key.organization
                    && world.base().covers(&key.name)
            }
        })
    };
    let known = world.keys.iter().filter(|key| key.mine && world.named & (1 << key.id) == 0).all(is_marked);
    if !known || world.flight.is_some() || world.late.is_some() {
        return;
    }
    add(all, world, "the status is lost", |next| {
        next.budget.losses = left;
        next.record = coder_k8s_core::provisioner::keys::KeyRecord::default();
    });
    add(all, world, "a part of the status is lost", |next| {
        next.budget.losses = left;
        if let Some(key) = &mut next.record.current {
            key.id = None;
            key.target.deployment_id = None;
            key.details.tags_hash = None;
        }
    });
}

/// Other people make, delete and replace keys.
fn others(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.others.checked_sub(1) else { return };
    let (server, organization, tags) = (world.spec.server, world.spec.organization, world.wanted_tags());
    for name in world.base().candidates().take(2) {
        for (kind, tags, used) in [("other tags", FOREIGN, false), ("in use", tags, true)] {
            add(all, world, &format!("somebody makes key {name}, {kind}"), |next| {
                next.budget.others = left;
                let name = name.clone();
                let key = KeyHere { id: 0, server, organization, name, tags, mine: false, used };
                if next.make(key).is_none() {
                    next.budget.others = left + 1;
                }
            });
        }
    }
    for key in world.keys.iter().filter(|key| key.mine && !is_about_to_go(world, key)) {
        add(all, world, "somebody deletes our key", |next| {
            next.budget.others = left;
            remove(next, key.id);
        });
        add(all, world, "somebody replaces our key", |next| {
            next.budget.others = left;
            remove(next, key.id);
            next.make(KeyHere { mine: false, used: true, ..key.clone() });
        });
    }
}

fn is_about_to_go(world: &World, key: &KeyHere) -> bool {
    matches!(&world.flight, Some(Flight::Do(_, Effect::Delete { name, .. })) if *name == key.name)
}

fn remove(world: &mut World, id: Id) {
    world.keys.retain(|key| key.id != id);
}
