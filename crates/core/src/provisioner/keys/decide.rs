//! The order of the rules: what is proven is recorded, what fits is settled, what does not is replaced by another key that is
//! announced, made and stored.
//!
//! While nothing else is to be done, keys and Secrets go that nothing uses any more: every pod is of the newest template, none
//! of an older one is left, and no daemon was seen with the key after that moment. How a key is looked for, deleted and
//! abandoned is the same for every kind of credential: see [`crate::credential::retirement`]. A deletion of the pool finds lost
//! keys again first, and then empties the list.

use std::collections::BTreeSet;

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    Blocker, Decision, Deletion, Effect, FoundKey, KeyDetails, KeyMarks, KeyProof, KeyQuery, KeyRecord,
    KeyRef, KeyScope, Keys, ListedKey, Listing, NextStep, ObservedKeys, Organization, Query, RetiredKey,
    Secret,
    evidence::{Flow, KeyFacts, Live, Stop},
    tags,
};
use crate::{
    credential::{self, CredentialKind as _, CredentialVerdict, Listed as _, NameConflict},
    outcome::EventNote,
    target::{CoderdTarget, SecretDataRef},
};

fn ready() -> CredentialVerdict {
    CredentialVerdict::ready(Reason::ProvisionerKeyReady, "the key is known to coderd and in its Secret")
}

/// Decides what is next.
pub fn decide(observed: &ObservedKeys, now: Timestamp) -> Decision {
    let facts = KeyFacts::new(observed, now);
    if let Some(deadline) = observed.deletion {
        return delete_all(&facts, deadline);
    }
    if facts.is_at_rest() {
        return Decision::rest(facts.last_pod_credential(), ready());
    }
    match proven(&facts) {
        Err(stop) => finish(&facts, None, false, Err(stop)),
        Ok(None) => {
            let reason = if facts.is_refused() { Reason::KeyRefused } else { Reason::SecretLost };
            let is_dead = facts.is_refused_in(&observed.desired.secret);
            finish(&facts, None, is_dead, replace(&facts, None, reason))
        }
        Ok(Some(live)) => {
            let outcome = facts.mismatch(&live.key).and_then(|mismatch| match mismatch {
                None => settle(&facts, &live),
                Some(reason) => replace(&facts, Some(&live), reason),
            });
            finish(&facts, Some(&live), false, outcome)
        }
    }
}

/// The key of ours that a Secret holds. The status learns of it, and of where it is, before anything else is done,
/// whatever the spec asks for by now: what pods may already run with must not be forgotten.
fn proven(facts: &KeyFacts<'_>) -> Flow<Option<Live>> {
    facts.secrets_are_known()?;
    let Some(live) = facts.live()? else { return Ok(None) };
    if facts.record.current_id() != Some(&live.key.id) {
        let mut record = facts.record.clone();
        record.promote(facts.as_recorded(&live.key)?, live.secret.clone(), facts.now);
        return Err(Stop::record(record));
    }
    if facts.record.secret.as_ref() != Some(&live.secret) {
        return Err(Stop::record(KeyRecord { secret: Some(live.secret), ..facts.record.clone() }));
    }
    Ok(Some(live))
}

/// Makes a decision of what a rule came to. While nothing else is to be done, keys that nothing uses go. `is_dead`: the wanted
/// Secret holds what coderd refuses.
fn finish(facts: &KeyFacts<'_>, live: Option<&Live>, is_dead: bool, outcome: Flow<()>) -> Decision {
    let pod_credential = live.map_or_else(|| facts.last_pod_credential(), |live| facts.run(live));
    let secret = &facts.observed.desired.secret;
    let verdict = match outcome {
        Ok(()) => ready(),
        Err(Stop::Wait(verdict)) => {
            let is_intact = facts.holds_what_pods_have(secret);
            let verdict = verdict.weighed_against_record(facts.is_wanted_on_record(), is_intact);
            facts.weighed_against_loss(secret, is_dead, verdict)
        }
        Err(Stop::NextStep(next)) => {
            let verdict = facts.weighed_against_loss(secret, is_dead, progress(facts, live, &next));
            let events = passed_over(facts, &next);
            return Decision { events, ..Decision::rest(pod_credential, verdict).then(*next) };
        }
    };
    retire(facts, live, Decision::rest(pod_credential, verdict))
}

/// The Secret holds the key that the spec asks for: the status says so, the Secret is the wanted one, and its annotations
/// tell what is in it.
fn settle(facts: &KeyFacts<'_>, live: &Live) -> Flow<()> {
    facts.ensure_finalizer()?;
    facts.ensure_recorded(fitting_record(facts, live)?)?;
    let (desired, marks) = (&facts.observed.desired.secret, Keys::marks(&facts.as_recorded(&live.key)?));
    if live.secret != *desired {
        let (from, to, version) = (live.secret.clone(), desired.clone(), facts.writable(desired)?);
        return Err(Stop::act(Effect::CopySecret { from, to, version, marks }));
    }
    facts.ensure_annotated(desired, marks)
}

/// The record once the proven key fits the spec. The name of the organization and the hash of the tags are taken from
/// the spec: they may be spelled otherwise than they were recorded. A key that was announced and is not needed any
/// more is to go.
fn fitting_record(facts: &KeyFacts<'_>, live: &Live) -> Flow<KeyRecord> {
    let mut record = facts.record.clone();
    let mut key = facts.as_recorded(&live.key)?;
    key.details = KeyDetails {
        organization: Organization {
            id: Some(live.key.organization.clone()),
            name: facts.observed.desired.organization.clone(),
        },
        tags_hash: Some(tags::hash(&facts.observed.desired.tags)),
    };
    record.current = Some(key);
    record.secret = Some(live.secret.clone());
    record.drop_pending();
    Ok(record)
}

/// The key in use is not what the spec asks for, or there is none: another one is announced, made, and stored.
fn replace(facts: &KeyFacts<'_>, live: Option<&Live>, reason: Reason) -> Flow<()> {
    facts.may_make()?;
    let desired = &facts.observed.desired;
    facts.target()?;
    let version = facts.writable(&desired.secret)?;
    // Before coderd is asked anything: the object with its finalizer is decided about anew.
    facts.ensure_finalizer()?;
    let scope = facts.target_scope()?;
    let listing = facts.listing(&scope)?;
    is_complete(live, &scope, listing)?;
    remember_marked(facts, &scope, listing)?;
    let is_wanted = |key: &KeyRef| scope.holds(key) && desired.describes(key);
    if let Some(pending) = facts.record.pending.as_ref().filter(|pending| is_wanted(&pending.credential)) {
        let listed =
            listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&pending.credential.name));
        match listed {
            None => {
                return Err(Stop::act(Effect::Make {
                    pending: Box::new(pending.clone()),
                    settings: desired.tags.clone(),
                    secret: desired.secret.clone(),
                    version,
                }));
            }
            // Made in an earlier attempt, whose material is lost.
            Some(listed) if listed.was_announced(&pending.credential, pending.since) => {
                let (name, id) = (listed.key.name.clone(), listed.key.id.clone());
                return Err(Stop::act(Effect::Delete { scope, name, id }));
            }
            // Somebody else took the name, or pods already use it: another name.
            Some(_) => {}
        }
    }
    announce(facts, &scope, listing, reason)
}

/// What to say while a step is under way.
fn progress(facts: &KeyFacts<'_>, live: Option<&Live>, next: &NextStep) -> CredentialVerdict {
    let making = facts.record.pending.is_some()
        || matches!(next, NextStep::WriteStatus(record) if record.pending.is_some());
    if !making && live.is_some() && matches!(next, NextStep::Act(_) | NextStep::WriteStatus(_)) {
        let message = "coderd accepts the key; updating the status and the Secret";
        return CredentialVerdict::working(Reason::Recording, message);
    }
    let Some(key) = &facts.record.current else {
        return CredentialVerdict::working(Reason::Creating, "creating the first key of the pool in coderd");
    };
    let announced = match next {
        NextStep::WriteStatus(record) => record.pending.as_ref(),
        _ => facts.record.pending.as_ref(),
    };
    let why = announced.map_or_else(String::new, |pending| format!(" ({})", pending.reason));
    let message =
        format!("replacing key {} in coderd{why}; daemons keep it until the new one works", key.name);
    CredentialVerdict::working(Reason::Rotating, message)
}

/// Keys that could be taken for ours and are not, when a key is announced beside them: one that has a name of ours, and
/// one whose material is in the Secret and about to be overwritten.
fn passed_over(facts: &KeyFacts<'_>, next: &NextStep) -> Vec<EventNote> {
    let announced = match next {
        NextStep::WriteStatus(record) => {
            record.pending.as_ref().filter(|key| Some(*key) != facts.record.pending.as_ref())
        }
        _ => None,
    };
    let Some(scope) = announced.map(|key| Keys::scope(&key.credential)) else { return Vec::new() };
    let Some(Listing::Known(listing)) = facts.observed.listings.get(&scope) else { return Vec::new() };
    let named = listing.iter().filter(|listed| facts.observed.desired.name.covers(&listed.key.name));
    let named = named.filter(|listed| !is_one_of_ours(facts, listed)).map(|listed| &listed.key);
    let named = named.map(|key| stranger(key, &scope.target));
    let mut events: Vec<_> = named.chain(strangers(facts)).chain(unmarked_key(facts)).collect();
    events.dedup();
    events
}

/// coderd lists what a credential may see. A list without a key that was proven a moment ago is not the whole of it.
fn is_complete(live: Option<&Live>, scope: &KeyScope, listing: &[ListedKey]) -> Flow<()> {
    let here = live.filter(|live| scope.organization.id.as_ref() == Some(&live.key.organization));
    match here {
        Some(live) if !listing.iter().any(|listed| listed.key.id == live.key.id) => {
            let message = "coderd does not list all keys to these credentials: use some that may read all keys of the organization".to_owned();
            Err(Stop::unsure(&Blocker::new(Reason::ListIncomplete, message)))
        }
        _ => Ok(()),
    }
}

/// A key that only the annotations of the Secret know is put on the record before they are overwritten.
fn remember_marked(facts: &KeyFacts<'_>, scope: &KeyScope, listing: &[ListedKey]) -> Flow<()> {
    for marks in facts.marks() {
        let here =
            marks.deployment_id == scope.target.deployment_id && marks.organization == scope.organization.id;
        let is_gone = here && !listing.iter().any(|listed| Some(&listed.key.id) == marks.id.as_ref());
        if let Some(record) = facts.unrecorded(marks).filter(|_| !is_gone) {
            return Err(Stop::record(record));
        }
    }
    Ok(())
}

/// The record with what it lost of the current key, if annotations speak of that one.
fn completed(record: &KeyRecord, marks: &KeyMarks) -> Option<KeyRecord> {
    let mut record = record.clone();
    let key = record.current.as_mut().filter(|key| key.id.is_none())?;
    let agrees = |lost: &Option<String>, marked: &Option<String>| lost.is_none() || lost == marked;
    let is_it = key.name.eq_ignore_ascii_case(&marks.name)
        && agrees(&key.details.organization.id, &marks.organization)
        && agrees(&key.target.deployment_id, &marks.deployment_id);
    if !is_it {
        return None;
    }
    key.id.clone_from(&marks.id);
    key.details.organization.id.clone_from(&marks.organization);
    key.details.tags_hash.clone_from(&marks.tags_hash);
    key.target.deployment_id.clone_from(&marks.deployment_id);
    Some(record)
}

/// Announces a key under a free name. What was announced before and is not wanted any more is to go.
fn announce(facts: &KeyFacts<'_>, scope: &KeyScope, listing: &[ListedKey], reason: Reason) -> Flow<()> {
    let name = match free_name(facts, scope, listing) {
        Ok(name) => name,
        Err(verdict) if facts.record.pending.is_none() => return Err(Stop::Wait(verdict)),
        Err(_) => {
            let mut record = facts.record.clone();
            record.drop_pending();
            return Err(Stop::record(record));
        }
    };
    let reason = match &facts.record.current {
        None => Reason::FirstKey,
        Some(current) if !current.target.is_same(&scope.target) => Reason::ControlPlaneChanged,
        Some(_) => reason,
    };
    let (organization, target) = (scope.organization.clone(), scope.target.clone());
    let details = KeyDetails { organization, tags_hash: Some(tags::hash(&facts.observed.desired.tags)) };
    Err(facts.announce(KeyRef { id: None, name, target, details }, reason))
}

/// A name that nobody has: the base, unless somebody with a better claim asks for it, or the base with a hash. A base
/// that the user chose is not evaded when somebody else has it.
fn free_name(
    facts: &KeyFacts<'_>,
    scope: &KeyScope,
    listing: &[ListedKey],
) -> Result<String, CredentialVerdict> {
    let base = &facts.observed.desired.name;
    let conflict = |message| CredentialVerdict::stalled(Reason::KeyConflict, message);
    let older = facts.observed.name_conflict.as_ref();
    if let Some(older) = older.and_then(NameConflict::neighbour).filter(|_| base.chosen) {
        return Err(conflict(format!(
            "{older} asks for the key {} too, and was there first; choose another name with spec.key.name",
            base.name
        )));
    }
    let has_base = listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&base.name));
    if base.chosen && has_base.is_some_and(|listed| !is_one_of_ours(facts, listed)) {
        return Err(conflict(format!(
            "coderd has a key {} that this pool did not create: delete it, or choose another name with spec.key.name",
            base.name
        )));
    }
    let mut taken: BTreeSet<_> = listing.iter().map(|listed| listed.key.name.to_lowercase()).collect();
    // A new key must have another name than those on record, or the two would be taken for each other.
    taken.extend(facts.record.all().filter(|key| scope.holds(key)).map(|key| key.name.to_lowercase()));
    // A name that is ours to choose is chosen so that it meets nobody's, in another namespace either.
    if older.is_some() && !base.chosen {
        taken.insert(base.name.clone());
    }
    let free = base.candidates().find(|name| !taken.contains(name));
    free.ok_or_else(|| conflict(format!(
            "every name that starts with {} is taken in coderd: delete a key there, or choose another name with spec.key.name",
            base.name
        )))
}

fn is_one_of_ours(facts: &KeyFacts<'_>, listed: &ListedKey) -> bool {
    let half_made = facts.record.stale.iter().filter(|stale| stale.credential.id.is_none());
    let half_made = half_made.map(|stale| (&stale.credential, stale.since));
    let pending = facts.record.pending.iter().map(|pending| (&pending.credential, pending.since));
    facts.is_known(&listed.key.id)
        || pending.chain(half_made).any(|(announced, since)| listed.was_announced(announced, since))
}

impl KeyFacts<'_> {
    /// The record with a key on it that so far only annotations know.
    fn unrecorded(&self, marks: &KeyMarks) -> Option<KeyRecord> {
        marks.id.as_ref().filter(|id| !self.record.knows(id))?;
        completed(self.record, marks).or_else(|| {
            let current = self.record.current.as_ref().map(|key| &key.target);
            Some(self.remember(marks, self.observed.target.as_ref().ok().into_iter().chain(current)))
        })
    }

    /// Whether a UUID is known to be ours: it is on the status, or in the annotations of our Secrets.
    fn is_known(&self, id: &str) -> bool {
        self.record.knows(id) || self.marks().iter().any(|marks| marks.id.as_deref() == Some(id))
    }
}

/// What can go now. `rest` is the decision while nothing can.
fn retire(facts: &KeyFacts<'_>, live: Option<&Live>, rest: Decision) -> Decision {
    let leftover = facts.leftover(&facts.observed.desired.secret);
    if facts.record.stale.is_empty() && leftover.is_none() {
        return rest;
    }
    let Some(is_clear) = is_clear(facts, live) else {
        return rest.then(NextStep::Ask(Query::Own(KeyQuery::Pods)));
    };
    let lacks_unused_since =
        |stale: &RetiredKey| stale.credential.id.is_some() && stale.unused_since.is_none();
    if is_clear {
        if let Some(removal) = leftover {
            return rest.then(NextStep::Act(Box::new(removal)));
        }
        if facts.record.stale.iter().any(lacks_unused_since) {
            return rest.then(NextStep::WriteStatus(Box::new(unused(facts.record, facts.now))));
        }
    }
    credential::retire(facts, live.is_some(), rest)
}

/// The pool is being deleted: every key of ours goes first.
fn delete_all(facts: &KeyFacts<'_>, deletion: Deletion) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "deleting the keys of the pool in coderd");
    let mut decision = credential::clean_up(facts, deletion, verdict);
    if !facts.observed.has_finalizer {
        return decision;
    }
    match find_lost(facts) {
        // Nothing is asked any more.
        Err(Stop::NextStep(next)) if deletion.overdue && matches!(*next, NextStep::Ask(_)) => {
            decision.events.extend(unmarked_key(facts));
        }
        Err(Stop::NextStep(next)) => (decision.next, decision.events) = (*next, Vec::new()),
        Err(Stop::Wait(_)) if !deletion.overdue => {
            (decision.next, decision.events) = (NextStep::Done, Vec::new());
        }
        Err(Stop::Wait(_)) | Ok(()) if decision.next == NextStep::RemoveFinalizer => {
            decision.events.extend(strangers(facts));
            decision.events.extend(unmarked_key(facts));
        }
        Err(Stop::Wait(_)) | Ok(()) => {}
    }
    decision
}

/// A status that was lost, or a part of it, is found again first: by the annotations of the Secret, or by what it holds.
fn find_lost(facts: &KeyFacts<'_>) -> Flow<()> {
    if facts.record.current_id().is_some() || !facts.observed.has_finalizer {
        return Ok(());
    }
    if let Some(record) = facts.marks().into_iter().find_map(|marks| facts.unrecorded(marks)) {
        return Err(Stop::record(record));
    }
    facts.secrets_are_known()?;
    match facts.live()? {
        Some(live) if !facts.record.knows(&live.key.id) => {
            let mut record = facts.record.clone();
            record.promote(facts.as_recorded(&live.key)?, live.secret, facts.now);
            Err(Stop::record(record))
        }
        _ => Ok(()),
    }
}

/// Whether every pod runs with the live key, and with nothing else. None: the pods must be listed.
fn is_clear(facts: &KeyFacts<'_>, live: Option<&Live>) -> Option<bool> {
    let Some(live) = live else { return Some(false) };
    let pod_credential = facts.run(live);
    let rolled = facts.observed.workload.as_ref().is_some_and(|workload| {
        workload.is_rolled_out
            && Some(&workload.pod_credential) == pod_credential.as_ref()
            && live.secret == facts.observed.desired.secret
    });
    match &facts.observed.own.old_pods {
        _ if !rolled => Some(false),
        None => None,
        Some(left) => Some(*left == Ok(false)),
    }
}

/// Records that nothing uses the old keys from now on.
fn unused(record: &KeyRecord, now: Timestamp) -> KeyRecord {
    // A status holds whole seconds; rounded down, a daemon that left in the same second would seem to be there still.
    let now = Timestamp::from_second(now.as_second() + 1).unwrap_or(now);
    let mut record = record.clone();
    for stale in record.stale.iter_mut().filter(|stale| stale.credential.id.is_some()) {
        stale.unused_since.get_or_insert(now);
    }
    record
}

/// Tells of a key that nothing is known of but that a Secret of ours held it: neither status nor annotations say more.
fn unmarked_key(facts: &KeyFacts<'_>) -> Option<EventNote> {
    let is_unknown = |(place, secret): (&SecretDataRef, &Secret)| {
        let proof = facts.observed.proofs.get(place);
        matches!(secret, Secret::Ours { holds: Some(_), marks: None, .. })
            && !matches!(proof, Some(KeyProof::Is(_) | KeyProof::Refused))
    };
    if !facts.record.is_empty() || !facts.observed.secrets.iter().any(is_unknown) {
        return None;
    }
    let desired = &facts.observed.desired;
    let url = facts
        .observed
        .workload
        .as_ref()
        .map(|workload| workload.pod_credential.url.clone())
        .unwrap_or_default();
    let organization = Organization { id: None, name: desired.organization.clone() };
    Some(Keys::abandoned(&KeyRef {
        id: None,
        name: desired.name.name.clone(),
        target: CoderdTarget { url, ..CoderdTarget::default() },
        details: KeyDetails { organization, tags_hash: None },
    }))
}

/// Tells that a key is not taken for ours.
fn stranger(key: &FoundKey, target: &CoderdTarget) -> EventNote {
    let key = key.reference(target, String::new()).described();
    let message = format!(
        "{key} was not created by this pool, as far as it knows, and is left alone: delete it in coderd if nobody needs it"
    );
    EventNote { warning: false, reason: Reason::KeyLeftAlone, message }
}

/// Tells of keys whose material is in our Secret and that are not known to be ours.
fn strangers(facts: &KeyFacts<'_>) -> Vec<EventNote> {
    let Ok(target) = &facts.observed.target else { return Vec::new() };
    let stored = facts.observed.proofs.values().filter_map(|proof| match proof {
        KeyProof::Is(key) if !facts.is_known(&key.id) => Some(stranger(key, target)),
        _ => None,
    });
    stored.collect()
}
