//! What the operator sees of the model and does to it, and where a flawed operator sees or does something else.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::Reason;
use coder_k8s_core::{
    object::Deletion,
    outcome::Blocker,
    target::{CoderdTarget, Obstacle, SecretDataRef, Version},
    workload::{PodCredential, Workload},
    workspaceproxy::registration::{
        Decision, DesiredRegistration, Effect, ListedProxy, Listing, NextStep, ObservedRegistration, Query,
        RegistrationContext, RegistrationEffect, RegistrationIntent, RegistrationMarks, RegistrationRecord,
        RegistrationRef, Secret, SuppliedToken, TokenFacts, TokenProof, decide,
    },
};

use super::{
    super::{How, Phase, THEN, is_expected, place, server_at, server_of, silence, time, version},
    environment::carry_out,
    world::{
        Flight, ProxyHere, Request, Spec, Stored, Token, World, id_of, id_text, secret_of, secret_place,
        supplied_place,
    },
};

/// A rule that is deliberately broken, to see that the search finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Deletes old registrations before the pods have changed over.
    DeletesBeforeRollout,
    /// Takes a registration for its own because of its name.
    TrustsNames,
    /// Takes every token in the Secret for one that works.
    TrustsTokens,
    /// Registers what the status does not announce.
    SkipsIntent,
    /// Takes silence of coderd for a no.
    TakesSilenceForNo,
    /// Does not remember replaced registrations.
    ForgetsStale,
    /// Lets the object go without its registration.
    SkipsFinalizer,
    /// Leaves registrations behind without a word.
    TellsNobody,
    /// Does not wait for requests that may still be carried out.
    IgnoresLateEffects,
}

/// What of coderd answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    All,
    Nothing,
    /// Proofs are answered, lists are not.
    ProofsOnly,
    /// The coderd that the spec leads to answers, the other one does not.
    TargetOnly,
    /// The coderd that the spec leads to answers, and nothing is left to ask the other one with.
    OtherGone,
    /// The Secret with the credentials is not there, so that only proofs can be asked for.
    NoCredentials,
}

pub const REACHES: [Reach; 6] = [
    Reach::All,
    Reach::Nothing,
    Reach::ProofsOnly,
    Reach::TargetOnly,
    Reach::OtherGone,
    Reach::NoCredentials,
];

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
pub fn decision(world: &World, how: Circumstances) -> Result<Decision, &'static str> {
    let late = how.late || how.flaw == Some(Flaw::IgnoresLateEffects);
    let now = THEN + if late { 1000 } else { 1 };
    let mut observed = observed(world, how);
    for _ in 0..24 {
        let decision = decide(&observed, time(now));
        match decision.next {
            NextStep::Ask(Query::Listing(target)) => {
                let listing = listing(world, how, &target);
                observed.listings.insert(target, listing);
            }
            NextStep::Ask(Query::Proof(place)) => {
                let proof = proof(world, how, &place);
                observed.proofs.insert(place, proof);
            }
            _ => return Ok(decision),
        }
    }
    Err("asks for ever")
}

fn observed(world: &World, how: Circumstances) -> ObservedRegistration {
    let spec = world.spec;
    let target = place(spec.server, spec.address);
    let desired = (!spec.supplied).then(|| DesiredRegistration {
        control_plane: target.control_plane.clone(),
        name: world.wanted_name().to_owned(),
        display_name: None,
        icon: None,
        secret: secret_place(spec.secret),
    });
    let supplied = TokenFacts { checksum: "supplied".to_owned(), id: Some("theirs".to_owned()) };
    let hasty = how.flaw == Some(Flaw::DeletesBeforeRollout);
    let workload = world.deployment.as_ref().map(|pod_credential| {
        let settled =
            !world.pods.is_empty() && world.pods.iter().all(|pod| pod.pod_credential == *pod_credential);
        Workload { pod_credential: pod_credential.clone(), is_rolled_out: settled || hasty }
    });
    ObservedRegistration {
        secrets: secrets(world, desired.as_ref()),
        desired,
        record: world.record.clone(),
        has_finalizer: world.has_finalizer || how.flaw == Some(Flaw::SkipsFinalizer),
        verify_due: how.verify,
        may_make: match how.reach {
            Reach::NoCredentials => Err(no_credentials()),
            _ => Ok(()),
        },
        own: RegistrationContext {
            given: if spec.supplied {
                Ok(SuppliedToken { place: supplied_place(), token: supplied })
            } else {
                Err(silence())
            },
            url: Some(target.url.clone()),
        },
        target: Ok(target),
        workload,
        name_conflict: None,
        late_effect_window: jiff::SignedDuration::from_mins(2),
        deletion: match world.phase {
            Phase::Deletion { overdue } => Some(Deletion { overdue }),
            Phase::Alive | Phase::Gone => None,
        },
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        tried: BTreeSet::new(),
    }
}

/// The wanted Secret, the recorded one, and every other that bears our marks.
fn secrets(world: &World, desired: Option<&DesiredRegistration>) -> BTreeMap<SecretDataRef, Secret> {
    let mut all = BTreeMap::new();
    let recorded = world.record.secret.as_ref().filter(|_| desired.is_some());
    let asked =
        |at: &SecretDataRef| desired.map(|desired| &desired.secret) == Some(at) || recorded == Some(at);
    for which in [false, true] {
        let at = secret_place(which);
        match world.secret(which) {
            Some(stored) if stored.marks.is_some() || asked(&at) => {
                let secret = Secret::Ours {
                    version: version(stored),
                    holds: facts(stored.token),
                    marks: stored.marks.clone(),
                };
                all.insert(at, secret);
            }
            None if asked(&at) => {
                all.insert(at, Secret::Absent);
            }
            _ => {}
        }
    }
    if recorded == Some(&supplied_place()) {
        all.insert(supplied_place(), Secret::Blocked(Obstacle::Foreign("hand it over".to_owned())));
    }
    all
}

fn facts(token: Token) -> Option<TokenFacts> {
    let (checksum, id) = match token {
        Token::Empty => return None,
        Token::Garbage => ("garbage".to_owned(), None),
        Token::Of(id, newest) => (format!("sum-{id}-{newest}"), Some(id_text(id))),
        Token::Supplied => ("supplied".to_owned(), Some("theirs".to_owned())),
    };
    Some(TokenFacts { checksum, id })
}

fn no_credentials() -> Blocker {
    Blocker::new(Reason::CredentialsSecretUnavailable, "the Secret does not exist")
}

fn proof(world: &World, how: Circumstances, place: &SecretDataRef) -> TokenProof {
    if how.reach == Reach::Nothing {
        let no = how.flaw == Some(Flaw::TakesSilenceForNo);
        return if no { TokenProof::Refused } else { TokenProof::Unknown(silence()) };
    }
    let works = world.read(place).is_some_and(|token| world.works(token, world.spec.server));
    if works || how.flaw == Some(Flaw::TrustsTokens) { TokenProof::Is(()) } else { TokenProof::Refused }
}

fn listing(world: &World, how: Circumstances, target: &CoderdTarget) -> Listing {
    if target.control_plane.is_empty() {
        return Listing::Gone;
    }
    let server = server_of(target);
    let is_other = server != world.spec.server;
    match how.reach {
        Reach::Nothing | Reach::ProofsOnly if how.flaw == Some(Flaw::TakesSilenceForNo) => {
            return Listing::Known(Vec::new());
        }
        Reach::Nothing | Reach::ProofsOnly => return Listing::Unknown(silence()),
        Reach::TargetOnly if is_other => return Listing::Unknown(silence()),
        Reach::OtherGone if is_other => return Listing::Gone,
        Reach::NoCredentials => return Listing::Unknown(no_credentials()),
        Reach::All | Reach::TargetOnly | Reach::OtherGone => {}
    }
    let here = world.proxies.iter().filter(|proxy| proxy.server == server);
    Listing::Known(here.map(|proxy| listed(proxy, how.flaw)).collect())
}

fn listed(proxy: &ProxyHere, flaw: Option<Flaw>) -> ListedProxy {
    let trusted = flaw == Some(Flaw::TrustsNames);
    // What others made and never ran with was there before anything was announced.
    let is_old = !proxy.mine && !proxy.used && !trusted;
    ListedProxy {
        id: id_text(proxy.id),
        name: proxy.name.clone(),
        display_name: "name".to_owned(),
        icon: "/icon.png".to_owned(),
        created: Some(time(if is_old { THEN - 1000 } else { THEN })),
        version: if proxy.used && !trusted { "v2" } else { "" }.to_owned(),
        health: String::new(),
    }
}

/// A reconcile up to its effect. None: it changes nothing.
pub fn observe(world: &World, how: Circumstances) -> Option<World> {
    let mut next = world.clone();
    match decision(world, how) {
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
        NextStep::RemoveFinalizer if world.phase == Phase::Alive => world.has_finalizer = false,
        NextStep::RemoveFinalizer => world.phase = Phase::Gone,
        NextStep::Act(effect) => match *effect {
            Effect::AddFinalizer => world.has_finalizer = true,
            effect => world.flight = Some(Flight::Do(world.spec, effect)),
        },
    }
}

/// People learn of a registration by its UUID, or else by its name and address.
fn tell(world: &mut World, message: &str) {
    let by_name = |name: &str, server: bool| {
        let url = place(server, false).url;
        let url = url.trim_end_matches('0');
        message.contains(&format!("workspace proxy {name} could not be deleted from {url}"))
    };
    for proxy in &world.proxies {
        let by_id = message.contains(&format!("({})", id_text(proxy.id)));
        if by_id || by_name(&proxy.name, proxy.server) {
            world.named |= 1 << proxy.id;
        }
    }
    world.late.take_if(|late| late.id.is_none() && by_name(&late.name, server_of(&late.target)));
}

fn write(world: &mut World, mut record: RegistrationRecord, flaw: Option<Flaw>) {
    if flaw == Some(Flaw::ForgetsStale) {
        record.stale.clear();
    }
    if flaw == Some(Flaw::SkipsIntent)
        && let Some(pending) = record.pending.take()
    {
        let secret = secret_place(world.spec.secret);
        let expected = world.secret(world.spec.secret).map_or(Version::Absent, |s| Version::Is(version(s)));
        let settings = coder_k8s_core::workspaceproxy::registration::ProxyProfile {
            name: pending.credential.name.clone(),
            display_name: String::new(),
            icon: String::new(),
        };
        let pending = Box::new(pending);
        let effect = Effect::Make { pending, settings, secret, version: expected };
        world.flight = Some(Flight::Do(world.spec, effect));
        return;
    }
    if let Some(pending) = &mut record.pending {
        pending.since = time(THEN);
    }
    for stale in &mut record.stale {
        stale.since = time(THEN);
    }
    world.record = record;
}

/// Carries out what is in flight.
pub fn act(world: &World, how: How, flaw: Option<Flaw>) -> Option<World> {
    let mut next = world.clone();
    match (next.flight.take()?, how) {
        // The token is lost for ever.
        (Flight::Store { .. }, How::Dropped) => {
            next.budget.crashes = next.budget.crashes.checked_sub(1)?;
        }
        (_, How::Dropped) => {}
        (Flight::Do(spec, Effect::Make { pending, secret, version, .. }), how) => {
            make(&mut next, spec, &pending, &secret, &version, how, flaw)?;
        }
        (Flight::Store { id, newest, secret, expected, marks }, How::Well) => {
            let stored = &mut next.secrets[usize::from(secret)];
            if *stored == expected {
                *stored = Some(Stored { token: Token::Of(id, newest), marks: Some(marks) });
            }
        }
        (Flight::Do(_, Effect::Own(RegistrationEffect::Update { target, id, settings })), How::Well) => {
            let free = next.holder(server_of(&target), &settings.name).is_none();
            if let Some(proxy) = next.proxies.iter_mut().find(|proxy| id_text(proxy.id) == id && free) {
                proxy.name = settings.name;
                if !proxy.mine {
                    next.violation = Some("renamed somebody else's registration");
                }
            }
        }
        (Flight::Do(_, Effect::Delete { id, .. }), How::Well) => {
            deregister(&mut next, &id);
        }
        (Flight::Do(_, Effect::CopySecret { from, to, version, marks }), How::Well) => {
            let token = secret_of(&from).and_then(|from| next.secret(from)).map(|stored| stored.token);
            let to = secret_of(&to)?;
            if let Some(token) = token.filter(|_| is_expected(next.secret(to), &version)) {
                next.secrets[usize::from(to)] = Some(Stored { token, marks: Some(marks) });
            }
        }
        (Flight::Do(_, Effect::AnnotateSecret { secret, version, marks }), How::Well) => {
            let which = secret_of(&secret)?;
            if is_expected(next.secret(which), &version)
                && let Some(stored) = &mut next.secrets[usize::from(which)]
            {
                stored.marks = Some(marks);
            }
        }
        (Flight::Do(_, Effect::RemoveSecret { secret, version }), How::Well) => {
            let which = secret_of(&secret)?;
            if is_expected(next.secret(which), &version) {
                next.secrets[usize::from(which)] = None;
            }
        }
        _ => return None,
    }
    next.forget();
    (next != *world).then_some(next)
}

/// Registers, or regenerates the token, and writes the status. None: this cannot happen now.
fn make(
    world: &mut World,
    spec: Spec,
    pending: &RegistrationIntent,
    secret: &SecretDataRef,
    expected: &Version,
    how: How,
    flaw: Option<Flaw>,
) -> Option<()> {
    let which = secret_of(secret)?;
    // The Secret is read live right before the request.
    if !is_expected(world.secret(which), expected) {
        return Some(());
    }
    // A request that is under way ends before a later one is answered.
    if world.late.is_some() {
        return None;
    }
    let RegistrationRef { id: asked, name, target, details: _ } = &pending.credential;
    let server = server_of(target);
    if asked.is_some() && world.secret(which).is_some_and(|stored| world.works(stored.token, server)) {
        world.violation = Some("replaced a token that works");
    }
    let request = Request { target: target.clone(), name: name.clone(), id: asked.clone() };
    if matches!(how, How::Lost | How::Late) {
        world.budget.crashes = world.budget.crashes.checked_sub(1)?;
    }
    if how == How::Late {
        world.late = Some(request);
        return Some(());
    }
    let made = carry_out(world, &request);
    if how == How::Lost {
        return Some(());
    }
    let is_current = world.spec == spec && world.phase == Phase::Alive;
    let Some((id, newest)) = made else {
        // Somebody else has the name: what is there is not what was announced.
        if asked.is_none() && is_current {
            world.record.pending = None;
        }
        return Some(());
    };
    let proxy = world.proxy(id)?;
    let current = RegistrationRef::new(Some(id_text(id)), proxy.name.clone(), target.clone());
    let marks = RegistrationMarks {
        id: id_text(id),
        name: proxy.name.clone(),
        deployment_id: target.deployment_id.clone(),
    };
    let credential = RegistrationRef { id: Some(id_text(id)), ..pending.credential.clone() };
    let intent = RegistrationIntent { credential, ..pending.clone() };
    let pending = Some(intent).filter(|_| flaw != Some(Flaw::SkipsIntent));
    let record = RegistrationRecord { current: Some(current), pending, ..world.record.clone() };
    if record != world.record && !is_current {
        return Some(());
    }
    world.record = record;
    let expected = world.secret(which).cloned();
    world.flight = Some(Flight::Store { id, newest, secret: which, expected, marks });
    Some(())
}

fn deregister(world: &mut World, id: &str) {
    let Some(proxy) = id_of(id).and_then(|id| world.proxy(id)).cloned() else { return };
    if !proxy.mine {
        world.violation = Some("deleted somebody else's registration");
    }
    let is_its = |token: Token| matches!(token, Token::Of(id, _) if id == proxy.id);
    // A pod that connects elsewhere cannot use it.
    let uses = |pod_credential: &PodCredential| server_at(&pod_credential.url) == proxy.server;
    let is_read = world.deployment.as_ref().is_some_and(|pod_credential| {
        uses(pod_credential) && world.read(&pod_credential.secret).is_some_and(is_its)
    });
    let is_mounted = world.pods.iter().any(|pod| is_its(pod.held) && uses(&pod.pod_credential));
    if world.phase == Phase::Alive && (is_read || is_mounted) {
        world.violation = Some("deleted a registration whose token pods hold or would read");
    }
    world.killed |= 1 << proxy.id;
    world.proxies.retain(|other| other.id != proxy.id);
}
