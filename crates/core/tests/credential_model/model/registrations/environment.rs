//! What everybody else does: the user, other people, Kubernetes.

use super::{
    super::{Limits, Phase, Start, server_at, server_of},
    world::{Flight, Pod, ProxyHere, Request, Stored, Token, World, id_of, id_text},
};
use coder_k8s_core::{
    workload::PodCredential,
    workspaceproxy::registration::{Effect, RegistrationRecord},
};

/// Everything that may happen without the operator, with a name.
pub fn happenings(world: &World, limits: &Limits, at_rest: bool) -> Vec<(String, World)> {
    let mut all = Vec::new();
    // The status of the Go operator does not say which coderd a token is for, and it has no finalizer.
    let is_known = limits.start != Start::TakenOver || world.record.current.is_some();
    if world.phase == Phase::Gone {
        return all;
    }
    if world.phase == Phase::Alive {
        if !limits.sequential || at_rest {
            edits(world, is_known, &mut all);
        }
        if is_known && (world.has_finalizer || limits.start != Start::TakenOver) {
            delete_object(world, &mut all);
        }
    }
    if world.phase == (Phase::Deletion { overdue: false }) {
        add(&mut all, world, "deadline passes", |w| w.phase = Phase::Deletion { overdue: true });
    }
    if world.late.is_some() {
        add(&mut all, world, "a late request is carried out", arrive);
        add(&mut all, world, "a late request is lost", |next| next.late = None);
    }
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

fn edits(world: &World, is_known: bool, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.edits.checked_sub(1) else { return };
    let mut edit = |name: &str, change: fn(&mut World)| {
        add(all, world, name, |next| {
            next.budget.edits = left;
            change(next);
        });
    };
    edit("edit: proxy name", |w| w.spec.name = !w.spec.name);
    edit("edit: Secret", |w| w.spec.secret = !w.spec.secret);
    edit("edit: address of the control plane", |w| w.spec.address = !w.spec.address);
    if is_known {
        edit("edit: control plane", |w| w.spec.server = !w.spec.server);
        edit("edit: somebody supplies the token, or no longer", |w| w.spec.supplied = !w.spec.supplied);
    }
}

fn delete_object(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.deletions.checked_sub(1) else { return };
    add(all, world, "delete the object", |next| {
        next.budget.deletions = left;
        next.phase = if next.has_finalizer { Phase::Deletion { overdue: false } } else { Phase::Gone };
    });
}

pub fn arrive(world: &mut World) {
    if let Some(request) = world.late.take() {
        // A late request ends before the listing that a retry begins with. If it ended between that listing and the retry,
        // coderd would answer 409, and nobody could tell whose the registration is: the operator asks a person.
        let retries = |flight: &Flight| matches!(flight, Flight::Do(_, Effect::Make { .. }));
        world.flight.take_if(|flight| retries(flight));
        carry_out(world, &request);
    }
}

/// Registers or regenerates a token in coderd. None: coderd refuses.
pub fn carry_out(world: &mut World, request: &Request) -> Option<(u8, u8)> {
    let Some(id) = &request.id else {
        let id = world.register(server_of(&request.target), &request.name, true, false)?;
        return Some((id, 0));
    };
    let id = id_of(id)?;
    let proxy = world.proxies.iter_mut().find(|proxy| proxy.id == id)?;
    if !proxy.mine {
        world.violation = Some("gave somebody else's registration another token");
    }
    proxy.newest += 1;
    Some((id, proxy.newest))
}

fn pods(world: &World, all: &mut Vec<(String, World)>) {
    if can_start(world) {
        add(all, world, "a new pod starts", start);
    }
    if can_stop(world) {
        add(all, world, "an old pod ends", stop);
    }
    if let Some(at) = refused(world) {
        add(all, world, "a pod whose token coderd refuses restarts", |next| restart(next, at));
    }
    let Some(left) = world.budget.restarts.checked_sub(1) else { return };
    for at in 0..world.pods.len() {
        if world.read(&world.pods[at].pod_credential.secret).is_some() {
            add(all, world, "a pod restarts", |next| {
                next.budget.restarts = left;
                restart(next, at);
            });
        }
    }
}

/// A pod that coderd refuses, and that would read another token when it starts again.
pub fn refused(world: &World) -> Option<usize> {
    world.pods.iter().position(|pod| {
        let read = world.read(&pod.pod_credential.secret);
        pod.held != Token::Supplied
            && !world.works(pod.held, server_at(&pod.pod_credential.url))
            && read.is_some_and(|token| token != pod.held)
    })
}

pub fn restart(world: &mut World, at: usize) {
    let pod_credential = world.pods[at].pod_credential.clone();
    if let Some(held) = world.read(&pod_credential.secret) {
        world.pods[at].held = held;
        connect(world, held, &pod_credential);
    }
}

/// A pod that starts registers itself with coderd, if its token is known there.
fn connect(world: &mut World, held: Token, pod_credential: &PodCredential) {
    let Token::Of(id, _) = held else { return };
    if world.killed & (1 << id) != 0 && world.phase == Phase::Alive {
        world.violation = Some("a pod started with the token of a registration that the operator deleted");
    }
    if world.works(held, server_at(&pod_credential.url))
        && let Some(proxy) = world.proxies.iter_mut().find(|proxy| proxy.id == id)
    {
        proxy.used = true;
    }
}

pub fn can_start(world: &World) -> bool {
    let Some(pod_credential) = &world.deployment else { return false };
    world.pods.iter().all(|pod| pod.pod_credential != *pod_credential)
        && world.read(&pod_credential.secret).is_some()
}

pub fn start(world: &mut World) {
    let Some(pod_credential) = world.deployment.clone() else { return };
    let Some(held) = world.read(&pod_credential.secret) else { return };
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

/// Somebody damages a Secret.
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
        let with = |token| Some(Stored { token, ..stored.clone() });
        damage("the Secret is deleted", None);
        damage("the Secret is emptied", with(Token::Empty));
        damage("the Secret is overwritten", with(Token::Garbage));
        damage("the Secret's annotations are removed", Some(Stored { marks: None, ..stored.clone() }));
    }
}

/// The status is lost, while the Secrets still tell of every registration of ours.
fn losses(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.losses.checked_sub(1) else { return };
    let is_marked = |proxy: &ProxyHere| {
        let tells = |which: bool| {
            world.secret(which).is_some_and(|stored| {
                let token = matches!(stored.token, Token::Of(id, _) if id == proxy.id);
                let marked = stored.marks.as_ref().map(|marks| marks.id == id_text(proxy.id));
                marked.unwrap_or(token && which == world.spec.secret)
            })
        };
        proxy.server == world.spec.server && (tells(false) || tells(true))
    };
    if world.spec.supplied || !world.ours().all(is_marked) || world.flight.is_some() || world.late.is_some() {
        return;
    }
    add(all, world, "the status is lost", |next| {
        next.budget.losses = left;
        next.record = RegistrationRecord::default();
    });
}

/// Other people register, delete and replace proxies.
///
/// coderd has no mark of who made a registration. One that somebody makes under a name after we announced it, and never
/// runs a proxy with, cannot be told from ours: this race is left out.
fn others(world: &World, all: &mut Vec<(String, World)>) {
    let Some(left) = world.budget.others.checked_sub(1) else { return };
    let announced = world.record.pending.iter().map(|pending| &pending.credential.name);
    let stale = world.record.stale.iter().map(|stale| &stale.credential.name);
    let announced: Vec<_> = announced.chain(stale).collect();
    for name in ["eu", "us"] {
        for used in [false, true] {
            if !used && announced.iter().any(|announced| *announced == name) {
                continue;
            }
            add(all, world, &format!("somebody registers {name}, used {used}"), |next| {
                next.budget.others = left;
                if next.register(next.spec.server, name, false, used).is_none() {
                    next.budget.others = left + 1;
                }
            });
        }
    }
    for proxy in world.proxies.iter().filter(|proxy| proxy.mine) {
        add(all, world, "somebody deletes our registration", |next| {
            next.budget.others = left;
            next.proxies.retain(|other| other.id != proxy.id);
        });
        add(all, world, "somebody replaces our registration", |next| {
            next.budget.others = left;
            next.proxies.retain(|other| other.id != proxy.id);
            next.register(proxy.server, &proxy.name, false, true);
        });
        add(all, world, "somebody regenerates our token", |next| {
            next.budget.others = left;
            for ours in next.proxies.iter_mut().filter(|other| other.id == proxy.id) {
                ours.newest += 1;
            }
        });
    }
}
