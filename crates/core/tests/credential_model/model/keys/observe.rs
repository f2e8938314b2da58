//! What the operator sees of the model, and where a flawed operator sees or does something else.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_core::provisioner::keys::{
    Decision, Deletion, DesiredKey, FoundKey, KeyContext, KeyProof, KeyQuery, KeyScope, ListedKey, Listing,
    NextStep, ObservedKeys, Query, Secret, Workload, decide,
};

use super::{
    super::{Phase, THEN, place, server_at, server_of, silence, time, version},
    world::{
        KeyHere, Material, Pod, Stored, World, checksums, id_text, organization_text, secret_of,
        secret_place, tags,
    },
};

/// A rule that is deliberately broken, to see that the search finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Takes old keys for unused before the pods have changed over.
    DeletesBeforeRollout,
    /// Takes a key for its own because of its name.
    TrustsNames,
    /// Takes a key for the recorded one because of its name.
    IgnoresIds,
    /// Makes keys that the status does not announce.
    SkipsIntent,
    /// Takes silence of coderd for a no.
    TakesSilenceForNo,
    /// Does not remember replaced keys.
    ForgetsStale,
    /// Lets the object go without its keys.
    SkipsFinalizer,
    /// Leaves keys behind without a word.
    TellsNobody,
    /// Does not wait for requests that may still be carried out.
    IgnoresLateEffects,
}

/// What of coderd answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    All,
    /// Nothing answers.
    Nothing,
    /// Proofs are answered, lists are not.
    ProofsOnly,
    /// The coderd that the spec leads to answers, the other one does not.
    TargetOnly,
}

pub const REACHES: [Reach; 4] = [Reach::All, Reach::Nothing, Reach::ProofsOnly, Reach::TargetOnly];

/// How one reconcile goes.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    pub reach: Reach,
    /// Whether the deadlines of the protocol have passed.
    pub late: bool,
    pub verify: bool,
    pub flaw: Option<Flaw>,
}

/// Observes and decides, until there is something to do.
pub fn facts(world: &World, how: Circumstances) -> Result<Decision, &'static str> {
    let late = how.late || how.flaw == Some(Flaw::IgnoresLateEffects);
    let now = THEN + if late { 1000 } else { 1 };
    let mut observed = observed(world, how);
    for _ in 0..24 {
        let decision = decide(&observed, time(now));
        match decision.next {
            NextStep::Ask(query) => show(world, how, now, &mut observed, query),
            _ => return Ok(decision),
        }
    }
    Err("asks for ever")
}

fn observed(world: &World, how: Circumstances) -> ObservedKeys {
    let spec = world.spec;
    let desired = DesiredKey {
        control_plane: place(spec.server, false).control_plane,
        organization: if spec.organization { "o1" } else { "default" }.to_owned(),
        name: world.base(),
        tags: tags(world.wanted_tags()),
        secret: secret_place(spec.secret),
    };
    let mut secrets = BTreeMap::new();
    for which in [false, true] {
        let at = secret_place(which);
        let asked = at == desired.secret || world.record.secret.as_ref() == Some(&at);
        match world.secret(which) {
            Some(stored) => {
                secrets.insert(at, show_secret(stored));
            }
            None if asked => {
                secrets.insert(at, Secret::Absent);
            }
            None => {}
        }
    }
    let hasty = how.flaw == Some(Flaw::DeletesBeforeRollout);
    let workload = world.deployment.as_ref().map(|pod_credential| {
        let settled =
            !world.pods.is_empty() && world.pods.iter().all(|pod| pod.pod_credential == *pod_credential);
        Workload { pod_credential: pod_credential.clone(), is_rolled_out: settled || hasty }
    });
    ObservedKeys {
        desired,
        record: world.record.clone(),
        has_finalizer: world.has_finalizer || how.flaw == Some(Flaw::SkipsFinalizer),
        verify_due: how.verify,
        may_make: Ok(()),
        target: Ok(place(spec.server, spec.address)),
        secrets,
        workload,
        name_conflict: None,
        deletion: match world.phase {
            Phase::Deletion { overdue } => Some(Deletion { overdue }),
            Phase::Alive | Phase::Gone => None,
        },
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        tried: BTreeSet::new(),
        late_effect_window: jiff::SignedDuration::from_mins(2),
        own: KeyContext { organization: None, old_pods: None },
    }
}

fn show_secret(stored: &Stored) -> Secret {
    Secret::Ours { version: version(stored), holds: checksums(stored.material), marks: stored.marks.clone() }
}

fn show(world: &World, how: Circumstances, now: i64, observed: &mut ObservedKeys, query: Query) {
    let silent = how.reach == Reach::Nothing;
    match query {
        Query::Own(KeyQuery::Organization) => {
            let id = organization_text(world.spec.organization);
            observed.own.organization = Some(if silent { Err(silence()) } else { Ok(Some(id)) });
        }
        Query::Proof(at) => {
            let proof = proof(world, how, secret_of(&at));
            observed.proofs.insert(at, proof);
        }
        Query::Listing(at) => {
            let listing = listing(world, how, now, &at);
            observed.listings.insert(at, listing);
        }
        Query::Own(KeyQuery::Pods) => {
            let left = world.pods.iter().any(|pod| Some(&pod.pod_credential) != world.deployment.as_ref());
            observed.own.old_pods = Some(Ok(left && how.flaw != Some(Flaw::DeletesBeforeRollout)));
        }
    }
}

fn proof(world: &World, how: Circumstances, secret: bool) -> KeyProof {
    if how.reach == Reach::Nothing {
        let no = how.flaw == Some(Flaw::TakesSilenceForNo);
        return if no { KeyProof::Refused } else { KeyProof::Unknown(silence()) };
    }
    match world.secret(secret).map(|stored| stored.material) {
        Some(Material::Of(id)) => match world.key(id) {
            Some(key) if key.server == world.spec.server => KeyProof::Is(found(key)),
            _ => KeyProof::Refused,
        },
        _ => KeyProof::Refused,
    }
}

fn found(key: &KeyHere) -> FoundKey {
    FoundKey {
        id: id_text(key.id),
        name: key.name.clone(),
        organization: organization_text(key.organization),
        tags: tags(key.tags),
    }
}

fn listing(world: &World, how: Circumstances, now: i64, at: &KeyScope) -> Listing {
    let server = server_of(&at.target);
    let silent = match how.reach {
        Reach::All => false,
        Reach::Nothing | Reach::ProofsOnly => true,
        Reach::TargetOnly => server != world.spec.server,
    };
    if silent {
        let no = how.flaw == Some(Flaw::TakesSilenceForNo);
        return if no { Listing::Known(Vec::new()) } else { Listing::Unknown(silence()) };
    }
    let organization = at.organization.id.as_deref() == Some("o1");
    let here = world.keys.iter().filter(|key| key.server == server && key.organization == organization);
    Listing::Known(here.map(|key| listed(world, how, now, key)).collect())
}

fn listed(world: &World, how: Circumstances, now: i64, key: &KeyHere) -> ListedKey {
    let connects =
        |pod: &Pod| pod.held == Material::Of(key.id) && server_at(&pod.pod_credential.url) == key.server;
    let held = world.pods.iter().any(connects);
    let last_seen = if held { Some(now) } else { key.used.then_some(THEN - 100) };
    let mut listed = ListedKey {
        key: found(key),
        created: Some(time(THEN)),
        was_used: key.used,
        last_seen: last_seen.map(time),
    };
    if how.flaw == Some(Flaw::DeletesBeforeRollout) {
        listed.last_seen = None;
    }
    if how.flaw == Some(Flaw::TrustsNames) {
        listed.was_used = false;
        listed.last_seen = None;
        let stale = world.record.stale.iter().filter(|stale| stale.credential.id.is_none());
        let announced = world.record.pending.iter().map(|pending| &pending.credential);
        let mut announced = announced.chain(stale.map(|stale| &stale.credential));
        if let Some(announced) = announced.find(|announced| announced.name == key.name) {
            let hash = announced.details.tags_hash.clone().unwrap_or_default();
            let same = [0, 1].map(tags).into_iter();
            let same =
                same.into_iter().find(|tags| coder_k8s_core::provisioner::keys::tags::hash(tags) == hash);
            listed.key.tags = same.unwrap_or_default();
        }
    }
    if how.flaw == Some(Flaw::IgnoresIds) {
        let stale = world.record.stale.iter().map(|stale| &stale.credential);
        let recorded = stale.chain(&world.record.current).find(|recorded| recorded.name == key.name);
        if let Some(id) = recorded.and_then(|recorded| recorded.id.clone()) {
            listed.key.id = id;
        }
    }
    listed
}
