//! What the operator does to the model: a reconcile up to its effect, and the effect itself, which may go wrong.

use coder_k8s_core::{
    credential::CredentialKind as _,
    provisioner::keys::{
        Decision, Effect, KeyIntent, KeyMarks, KeyRecord, KeyRef, KeyScope, Keys, NextStep, PodCredential,
        SecretDataRef, Version,
    },
};

use super::{
    super::{How, Phase, THEN, is_expected, server_at, server_of, time, version},
    observe::{Circumstances, Flaw, facts},
    world::{
        Flight, Id, KeyHere, Material, Stored, World, id_of, id_text, organization_text, secret_of, tags,
    },
};

/// A reconcile up to its effect. None: it changes nothing.
pub fn observe(world: &World, how: Circumstances) -> Option<World> {
    let mut next = world.clone();
    match facts(world, how) {
        Err(violation) => next.violation = Some(violation),
        Ok(decision) => perform(&mut next, decision, how.flaw),
    }
    next.forget();
    (next != *world).then_some(next)
}

fn perform(world: &mut World, decision: Decision, flaw: Option<Flaw>) {
    if flaw != Some(Flaw::TellsNobody) {
        for note in &decision.events {
            tell(world, &note.message);
        }
    }
    if let Some(pod_credential) = decision.pod_credential {
        world.deployment = Some(pod_credential);
    }
    match decision.next {
        NextStep::Done | NextStep::Ask(_) => {}
        NextStep::WriteStatus(record) => write(world, *record, flaw),
        NextStep::RemoveFinalizer => world.phase = Phase::Gone,
        NextStep::Act(effect) => match *effect {
            Effect::AddFinalizer => world.has_finalizer = true,
            effect => world.flight = Some(Flight::Do(world.spec, effect)),
        },
    }
}

/// People learn of a key by its UUID, or else by its name and address.
fn tell(world: &mut World, message: &str) {
    let by_name = |name: &str, organization: bool, server: bool| {
        let server = if server { "http://b" } else { "http://a" };
        let called =
            [organization_text(organization), if organization { "o1" } else { "default" }.to_owned()];
        called
            .iter()
            .any(|called| message.contains(&format!("key {name} in organization {called} of {server}")))
    };
    for key in &world.keys {
        let by_id = message.contains(&format!("({})", id_text(key.id)));
        if by_id || by_name(&key.name, key.organization, key.server) {
            world.named |= 1 << key.id;
        }
    }
    world.late.take_if(|late| {
        let KeyRef { name, target, details, .. } = &late.credential;
        by_name(name, details.organization.id.as_deref() == Some("o1"), server_of(target))
    });
}

fn write(world: &mut World, mut record: KeyRecord, flaw: Option<Flaw>) {
    if flaw == Some(Flaw::ForgetsStale) {
        record.stale.clear();
    }
    if flaw == Some(Flaw::SkipsIntent)
        && let Some(pending) = record.pending.take()
    {
        let secret = secret_place_of(world);
        let version = world.secret(secret_of(&secret)).map_or(Version::Absent, |s| Version::Is(version(s)));
        let (pending, settings) = (Box::new(pending), tags(world.wanted_tags()));
        world.flight = Some(Flight::Do(world.spec, Effect::Make { pending, settings, secret, version }));
        return;
    }
    if let Some(pending) = &mut record.pending {
        pending.since = time(THEN);
    }
    for stale in &mut record.stale {
        stale.since = time(THEN);
        stale.unused_since = stale.unused_since.map(|_| time(THEN));
    }
    world.record = record;
}

fn secret_place_of(world: &World) -> SecretDataRef {
    super::world::secret_place(world.spec.secret)
}

/// Carries out what is in flight.
pub fn act(world: &World, how: How, flaw: Option<Flaw>) -> Option<World> {
    let mut next = world.clone();
    let flight = next.flight.take()?;
    match (flight, how) {
        // The material of a new key is lost for ever.
        (Flight::Store { .. }, How::Dropped) => {
            next.budget.crashes = next.budget.crashes.checked_sub(1)?;
        }
        (_, How::Dropped) => {}
        (Flight::Do(spec, Effect::Make { pending: key, secret, version, settings: _ }), how) => {
            let made = make(&mut next, &key, how).ok()?;
            // The object is written and the Secret found as they were decided on, or nothing is stored.
            let is_same = next.spec == spec && next.phase == Phase::Alive && is_announced(&next, &key, flaw);
            if let Some(id) =
                made.filter(|_| is_same && is_expected(next.secret(secret_of(&secret)), &version))
            {
                if let Some(pending) = &mut next.record.pending {
                    pending.credential.id = Some(id_text(id));
                }
                let credential = KeyRef { id: Some(id_text(id)), ..key.credential };
                let (secret, marks) = (secret_of(&secret), Keys::marks(&credential));
                let expected = next.secret(secret).cloned();
                next.flight = Some(Flight::Store { id, secret, expected, marks });
            }
        }
        (Flight::Store { id, secret, expected, marks }, How::Well) => {
            store(&mut next, id, secret, expected.as_ref(), marks);
        }
        (Flight::Do(_, Effect::Delete { scope, name, id }), How::Well) => {
            delete(&mut next, &scope, &name, &id);
        }
        (Flight::Do(_, Effect::CopySecret { from, to, version, marks }), How::Well) => {
            let material = next.secret(secret_of(&from)).map(|stored| stored.material);
            if let Some(material) = material.filter(|_| is_expected(next.secret(secret_of(&to)), &version)) {
                next.secrets[usize::from(secret_of(&to))] = Some(Stored { material, marks: Some(marks) });
            }
        }
        (Flight::Do(_, Effect::AnnotateSecret { secret, version, marks }), How::Well) => {
            if is_expected(next.secret(secret_of(&secret)), &version)
                && let Some(stored) = &mut next.secrets[usize::from(secret_of(&secret))]
            {
                stored.marks = Some(marks);
            }
        }
        (Flight::Do(_, Effect::RemoveSecret { secret, version }), How::Well) => {
            if is_expected(next.secret(secret_of(&secret)), &version) {
                next.secrets[usize::from(secret_of(&secret))] = None;
            }
        }
        _ => return None,
    }
    next.forget();
    (next != *world).then_some(next)
}

fn is_announced(world: &World, key: &KeyIntent, flaw: Option<Flaw>) -> bool {
    world.record.pending.as_ref() == Some(key) || flaw == Some(Flaw::SkipsIntent)
}

/// What cannot happen now.
struct Impossible;

/// The key, if the operator learns that it was made.
fn make(world: &mut World, key: &KeyIntent, how: How) -> Result<Option<Id>, Impossible> {
    // A request that is under way ends before a later one for the same is answered.
    if world.late.is_some() {
        return Err(Impossible);
    }
    if matches!(how, How::Lost | How::Late) {
        world.budget.crashes = world.budget.crashes.checked_sub(1).ok_or(Impossible)?;
    }
    if how == How::Late {
        world.late = Some(key.clone());
        return Ok(None);
    }
    Ok(make_now(world, key).filter(|_| how == How::Well))
}

/// Makes an announced key in coderd.
pub fn make_now(world: &mut World, key: &KeyIntent) -> Option<Id> {
    let us = coder_k8s_core::provisioner::keys::tags::hash(&tags(1));
    let key = &key.credential;
    let organization = key.details.organization.id.as_deref() == Some("o1");
    let (server, tags) = (server_of(&key.target), u8::from(key.details.tags_hash == Some(us)));
    let key = KeyHere { id: 0, server, organization, name: key.name.clone(), tags, mine: true, used: false };
    world.make(key)
}

fn store(world: &mut World, id: Id, secret: bool, expected: Option<&Stored>, marks: KeyMarks) {
    let now = &mut world.secrets[usize::from(secret)];
    if now.as_ref() == expected && world.phase == Phase::Alive {
        *now = Some(Stored { material: Material::Of(id), marks: Some(marks) });
    }
}

/// Deletes by name, as coderd does.
fn delete(world: &mut World, scope: &KeyScope, name: &str, id: &str) {
    let organization = scope.organization.id.as_deref() == Some("o1");
    let Some(key) = world.holder(server_of(&scope.target), organization, name).cloned() else { return };
    if !key.mine {
        world.violation = Some("deleted somebody else's key");
    }
    let material = Material::Of(key.id);
    // A pod that connects elsewhere cannot use it.
    let uses = |pod_credential: &PodCredential| server_at(&pod_credential.url) == key.server;
    let is_read = world.deployment.as_ref().is_some_and(|pod_credential| {
        uses(pod_credential)
            && world
                .secret(secret_of(&pod_credential.secret))
                .is_some_and(|stored| stored.material == material)
    });
    let is_mounted = world.pods.iter().any(|pod| pod.held == material && uses(&pod.pod_credential));
    if world.phase == Phase::Alive && (is_read || is_mounted) {
        world.violation = Some("deleted a key that pods hold or would read");
    }
    if id_of(id) != Some(key.id) && key.mine {
        world.violation = Some("deleted another key than the one that was meant");
    }
    world.killed |= 1 << key.id;
    world.keys.retain(|other| other.id != key.id);
}
