//! The operator: reconciles, exchanges and their effects, and everything that can go wrong in them.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use coder_k8s_core::{
    condition::Conditions,
    controlplane::coderd::Step,
    controlplane::coderd::{
        CoderdReport,
        operator_token::{
            self, CreatedToken, ObservedToken, TokenCheck, TokenEffect, TokenQuery, TokenReport, TokenSecret,
        },
        revocation::{self, ObservedRevocation, RevocationEffect, RevocationReport, TokenDeletion},
    },
    outcome::{Blocker, Retry},
};

use super::{
    AccessKind, AccessVerdict, Flaw, Material, Method, Phase, Process, Reason, Record, ReplacedToken,
    Revocation, RevocationKind, Status, Successor, World, access, at, may_create, needs_cleaning, reference,
};

/// An exchange that is about to perform an effect.
#[derive(Clone, Debug, Hash)]
pub enum Exchange {
    Sync(Box<SyncExchange>),
    Revoke(Box<RevokeExchange>),
}

impl Exchange {
    fn name(&self) -> String {
        match self {
            Self::Sync(sync) => format!("{:?}", sync.effect),
            Self::Revoke(revoke) => format!("{:?}", revoke.effect),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SyncExchange {
    /// The generation that the exchange decides for.
    pub generation: u8,
    pub observed: ObservedToken,
    /// The Secret as it was read.
    pub secret: Option<Material>,
    pub created: Option<u8>,
    /// The token that coderd accepted last.
    pub client: Option<Client>,
    pub effect: TokenEffect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    Supplied,
    Token(u8),
}

/// Everything that decides how the exchange goes on. What was observed of the status is left out where the answers follow
/// from the rest of the world.
impl Hash for SyncExchange {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ObservedToken { method, is_recorded, record, replaced, creation_delay, .. } = &self.observed;
        (self.generation, self.secret, self.created, self.client).hash(state);
        (Method::of(*method), is_recorded, creation_delay, record.as_ref().map(Record::of_status))
            .hash(state);
        self.observed.user_id.hash(state);
        for token in replaced {
            (Method::of(token.method), token.user_id.is_some()).hash(state);
        }
        let ObservedToken { check, stored, created, proof, others_removed, replaced_revoked, .. } =
            &self.observed;
        (answer_kind(check.as_ref()), answer_kind(proof.as_ref())).hash(state);
        (stored, others_removed, replaced_revoked, created.as_ref().map(Result::is_ok)).hash(state);
        (self.observed.source.is_some(), self.observed.rights.is_some()).hash(state);
        let effect = match &self.effect {
            TokenEffect::Store => 0,
            TokenEffect::Create { renews, is_refused } => 1 + u8::from(*renews) + 2 * u8::from(*is_refused),
            TokenEffect::RemoveOthers => 5,
            TokenEffect::RevokeReplaced(_) => 6,
        };
        effect.hash(state);
    }
}

fn answer_kind(check: Option<&TokenCheck>) -> u8 {
    match check {
        None => 0,
        Some(TokenCheck::Accepted { user_id }) if user_id == Method::Postgres.user() => 1,
        Some(TokenCheck::Accepted { .. }) => 2,
        Some(TokenCheck::Refused(blocker)) if blocker.reason == Reason::BadToken => 3,
        Some(TokenCheck::Refused(_)) => 4,
        Some(TokenCheck::Unknown(_)) => 5,
    }
}

impl Hash for RevokeExchange {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { observed, effect } = self;
        (effect, &observed.done, observed.deletion.is_some_and(|deletion| deletion.cleanup.is_over()))
            .hash(state);
        observed.recorded.as_ref().map(Record::of_status).hash(state);
        observed.deletion.is_some().hash(state);
    }
}

#[derive(Clone, Debug)]
pub struct RevokeExchange {
    pub observed: ObservedRevocation,
    pub effect: RevocationEffect,
}

/// How an effect goes: how many of its parts happen, and how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct How {
    parts: u8,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    /// The answer is lost, or an error that may pass.
    Fails,
    /// An error that stays until something changes.
    FailsForGood,
    Crashes,
}

impl World {
    /// What persons, time and other machines do.
    pub fn happenings(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        if self.phase == Phase::Gone {
            return all;
        }
        let mut add = |name: String, change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push((name, next));
        };
        if self.budget.edits > 0 && !self.is_deleting() {
            for method in Method::ALL.into_iter().filter(|method| *method != self.spec.method) {
                add(format!("edit: {method:?}"), &|next| next.edit(|spec| spec.method = method));
            }
            let disabled = !self.spec.disabled;
            add(format!("edit: disabled {disabled}"), &|next| next.edit(|spec| spec.disabled = disabled));
        }
        if self.budget.damages > 0 {
            for secret in [None, Some(Material::Garbage)].into_iter().filter(|to| *to != self.secret) {
                add(format!("the Secret becomes {secret:?}"), &|next| {
                    next.budget.damages -= 1;
                    (next.secret, next.process.has_changed) = (secret, true);
                });
            }
            if let Some(row) = self.row(self.secret) {
                add("an administrator deletes the token".to_owned(), &|next| {
                    next.budget.damages -= 1;
                    next.delete(row.id, None);
                    next.damaged_by_others.push(row.id);
                });
                add("coderd no longer accepts the token".to_owned(), &|next| {
                    next.budget.damages -= 1;
                    next.rows.iter_mut().filter(|of| of.id == row.id).for_each(|of| of.is_accepted = false);
                    next.damaged_by_others.push(row.id);
                });
            }
            if self.has_rights {
                add("an organization is added".to_owned(), &|next| {
                    next.budget.damages -= 1;
                    next.has_rights = false;
                });
            }
        }
        if self.process.awaits_delay && self.flaw != Some(Flaw::ReplacesOnce) {
            add("the delay passes".to_owned(), &|next| *next = next.after_delay());
        }
        if self.budget.renewals > 0 {
            add("time passes".to_owned(), &|next| {
                next.budget.renewals -= 1;
                next.now += 1;
            });
        }
        match self.phase {
            Phase::Alive if self.budget.deletions > 0 => add("deletion".to_owned(), &|next| {
                next.budget.deletions -= 1;
                next.phase = if next.finalizer { Phase::Deleting { is_overdue: false } } else { Phase::Gone };
            }),
            Phase::Deleting { is_overdue: false } => add("the deadline passes".to_owned(), &|next| {
                next.phase = Phase::Deleting { is_overdue: true };
            }),
            _ => {}
        }
        all
    }

    /// The next token may be created.
    fn after_delay(&self) -> Self {
        let mut next = self.clone();
        next.process.awaits_delay = false;
        next
    }

    fn edit(&mut self, change: impl Fn(&mut super::Spec)) {
        self.budget.edits -= 1;
        self.generation += 1;
        change(&mut self.spec);
    }

    /// What the operator does next, and how it may go.
    pub fn operator_steps(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        if let Some(exchange) = &self.exchange {
            for how in self.hows(exchange) {
                for is_up in [true, false] {
                    if is_up || how.end == End::Well {
                        let name = format!("{}: {how:?}, up {is_up}", exchange.name());
                        all.push((name, perform(self, how, is_up)));
                    }
                }
            }
        } else {
            all.extend(reconcile(self).map(|next| ("reconcile".to_owned(), next)));
            for is_up in [true, false] {
                all.push((format!("exchange, up {is_up}"), start(self, &self.status, is_up)));
            }
            if self.budget.stale_views > 0 && self.previous != self.status {
                let mut lagging = self.clone();
                lagging.budget.stale_views -= 1;
                all.push(("exchange on a stale view".to_owned(), start(&lagging, &self.previous, true)));
            }
            if self.budget.crashes > 0 {
                all.push(("crash".to_owned(), self.crashed()));
            }
        }
        all
    }

    fn hows(&self, exchange: &Exchange) -> Vec<How> {
        let parts = match exchange {
            Exchange::Sync(sync) if matches!(sync.effect, TokenEffect::Create { .. }) => 2,
            _ => 1,
        };
        let mut all = vec![How { parts, end: End::Well }];
        all.extend((0..=parts).map(|parts| How { parts, end: End::Fails }));
        if self.budget.crashes > 0 {
            all.extend((0..=parts).map(|parts| How { parts, end: End::Crashes }));
        }
        if let Exchange::Sync(sync) = exchange
            && matches!(sync.effect, TokenEffect::RevokeReplaced(_))
        {
            all.push(How { parts: 0, end: End::FailsForGood });
        }
        all
    }

    fn crashed(&self) -> Self {
        let mut next = self.clone();
        next.budget.crashes -= 1;
        next.exchange = None;
        next.process = Process::resume(next.generation);
        next
    }

    fn report(&self) -> CoderdReport {
        let blocker = |reason: Reason| Blocker::new(reason, "");
        let Process { access, token_record, revocation, reference: token, .. } = &self.process;
        CoderdReport {
            access: access.map(|(kind, reason)| match kind {
                AccessKind::Ready => AccessVerdict::Ready,
                AccessKind::Overdue => AccessVerdict::Overdue(blocker(reason)),
                AccessKind::Degraded => AccessVerdict::Degraded(blocker(reason)),
                AccessKind::Refused => AccessVerdict::Refused(blocker(reason)),
            }),
            token_record: token_record.map(Record::status),
            revocation: revocation.map(|kind| match kind {
                RevocationKind::Done => Revocation::Done,
                RevocationKind::Failing => Revocation::Failing(blocker(Reason::Unreachable)),
                RevocationKind::Abandoned => Revocation::Abandoned,
            }),
            token: token.map(reference),
            ..CoderdReport::default()
        }
    }
}

/// Everything answers, nobody interferes, and only what an operator does by itself happens.
pub fn undisturbed(world: &World) -> Option<World> {
    if world.phase == Phase::Gone {
        return None;
    }
    if let Some(exchange) = &world.exchange {
        let well = world.hows(exchange).into_iter().find(|how| how.end == End::Well)?;
        return Some(perform(world, well, true));
    }
    if let Some(next) = reconcile(world) {
        return Some(next);
    }
    let next = start(world, &world.status, true);
    let acts = next.exchange.is_some() || next.process != world.process || next.violation.is_some();
    // A token for the wrong database is refused whenever it is created: once is enough to judge that.
    let is_judged =
        world.wrong_database && matches!(world.status.condition, Some((_, Reason::TokenRefused, _)));
    if !acts && world.process.awaits_delay && !is_judged && world.flaw != Some(Flaw::ReplacesOnce) {
        return Some(world.after_delay());
    }
    acts.then_some(next)
}

/// Puts the report of the last exchange on the status; the finalizer first. None: nothing to write.
fn reconcile(world: &World) -> Option<World> {
    let mut next = world.clone();
    let (object, report) = (world.object(&world.status), world.report());
    let needs_finalizer = needs_cleaning(&object, &report);
    if world.is_deleting() {
        let may_go = !needs_finalizer || world.flaw == Some(Flaw::SkipsRevocation);
        next.phase = Phase::Gone;
        next.exchange = None;
        return may_go.then_some(next);
    }
    let records_first = world.flaw == Some(Flaw::RecordsBeforeFinalizer);
    if needs_finalizer != world.finalizer && !records_first {
        next.finalizer = needs_finalizer;
        return Some(next);
    }
    let before = object.status.clone().unwrap_or_default();
    let mut conditions =
        Conditions::new(&before.workload.conditions, object.metadata.generation, at(world.now));
    let mut status = before.clone();
    access::set_conditions(
        &object,
        &report,
        &coder_k8s_core::controlplane::coderd::PresentInputs::default(),
        &mut conditions,
        &mut status,
    );
    status.workload.conditions = conditions.into_vec();
    let status = Status::read(&status);
    if status == world.status {
        next.finalizer = needs_finalizer;
        return (needs_finalizer != world.finalizer).then_some(next);
    }
    (next.previous, next.status) = (world.status, status);
    Some(next)
}

/// Starts an exchange and runs it to its first effect or its end.
fn start(world: &World, status: &Status, is_up: bool) -> World {
    let mut next = world.clone();
    // The view of one process never goes back.
    next.previous = *status;
    let object = world.object(status);
    let process = &mut next.process;
    let is_edited = process.generation != world.generation;
    (process.generation, process.has_changed) = (world.generation, false);
    if world.is_deleting() || world.spec.disabled {
        if world.is_deleting() {
            if !needs_cleaning(&object, &world.report()) {
                return next;
            }
        } else {
            (process.access, process.token_record, process.reference) = (None, None, None);
            if access::is_revoked(&object) || process.revocation == Some(RevocationKind::Done) {
                return next;
            }
        }
        let mut recorded = access::minted_token(&object);
        if let (Some(Flaw::ForgetsReplacedOnRevocation), Some(recorded)) = (world.flaw, &mut recorded) {
            recorded.replaces = None;
        }
        let observed = ObservedRevocation {
            token_name: "coder-k8s-operator".to_owned(),
            recorded,
            method: world.spec.method.access(),
            deletion: match world.phase {
                Phase::Deleting { is_overdue } => Some(TokenDeletion {
                    cleanup: coder_k8s_core::cleanup::Cleanup {
                        limit: Duration::from_mins(2),
                        left: Duration::from_secs(if is_overdue { 0 } else { 60 }),
                    },
                    overdue: false,
                    has_dependents: false,
                }),
                _ => None,
            },
            done: Vec::new(),
            blocker: None,
            last_blocker: None,
        };
        return continue_revocation(next, observed);
    }
    process.token_record.take_if(|token_record| token_record.method != world.spec.method);
    let mut replaced = access::replaced_tokens(&object);
    if replaced.is_empty() {
        process.revocation = None;
    }
    if is_edited {
        process.awaits_delay = false;
    }
    let record = status.record.filter(|record| record.method == world.spec.method);
    match world.flaw {
        Some(Flaw::ReplacesItself) => replaced = replaced_on(status).map_or(replaced, |old| vec![old]),
        Some(Flaw::ForgetsSecondReplaced) => replaced.truncate(1),
        _ => {}
    }
    let announced = match world.flaw {
        Some(Flaw::CreatesUnannounced) => true,
        Some(Flaw::RecordsBeforeFinalizer) => record.is_some(),
        _ => may_create(&object),
    };
    let report = match world.flaw {
        Some(Flaw::ForgetsUnwrittenRecord) => CoderdReport::default(),
        _ => next.report(),
    };
    let observed = ObservedToken {
        is_recorded: announced,
        record: access::proven_record(&object, &report),
        user_id: access::recorded_user(&object, &report),
        replaced,
        creation_delay: (next.process.awaits_delay && world.flaw != Some(Flaw::ReplacesForEver))
            .then_some(Duration::from_secs(1)),
        method: world.spec.method.access(),
        ..ObservedToken::default()
    };
    let sync = SyncExchange {
        generation: world.generation,
        observed,
        secret: None,
        created: None,
        client: None,
        effect: TokenEffect::Store,
    };
    continue_sync(next, sync, is_up)
}

fn replaced_on(status: &Status) -> Option<ReplacedToken> {
    status.record.and_then(|record| record.status().replaces)
}

/// Decides and answers until the next effect or the end.
fn continue_sync(mut world: World, mut sync: SyncExchange, is_up: bool) -> World {
    loop {
        let step = operator_token::decide(&sync.observed, at(world.now));
        let created = sync.observed.created.as_ref().and_then(|created| created.as_ref().ok());
        let removes_now = world.flaw == Some(Flaw::RemovesUnproven)
            && sync.observed.others_removed.is_none()
            && created.is_some_and(|created| !created.is_only_one);
        let creates_now = world.flaw == Some(Flaw::KeepsOldRecord) && sync.observed.record.is_some();
        let revokes_now = world.flaw == Some(Flaw::RevokesReplacedFirst);
        let next_replaced = sync.observed.replaced.get(sync.observed.replaced_revoked.len()).cloned();
        match (step, next_replaced) {
            (Step::Ask(TokenQuery::Proof), _) if removes_now => {
                sync.effect = TokenEffect::RemoveOthers;
                world.exchange = Some(Exchange::Sync(Box::new(sync)));
                return world;
            }
            (Step::Act(TokenEffect::Create { .. }), Some(replaced)) if revokes_now => {
                sync.effect = TokenEffect::RevokeReplaced(replaced);
                world.exchange = Some(Exchange::Sync(Box::new(sync)));
                return world;
            }
            (Step::Ask(query), _) => answer(&mut world, &mut sync, query, is_up),
            (Step::Act(effect), _) => {
                sync.effect = effect;
                world.exchange = Some(Exchange::Sync(Box::new(sync)));
                return world;
            }
            (Step::Done(TokenReport { awaits_record: true, .. }), _) if creates_now => {
                let is_refused = matches!(sync.observed.check, Some(TokenCheck::Refused(_)));
                sync.effect = TokenEffect::Create { renews: false, is_refused };
                world.exchange = Some(Exchange::Sync(Box::new(sync)));
                return world;
            }
            (Step::Done(report), _) => {
                finish_sync(&mut world, &sync.observed, report);
                return world;
            }
        }
    }
}

fn answer(world: &mut World, sync: &mut SyncExchange, query: TokenQuery, is_up: bool) {
    let is_supplied = world.spec.method == Method::Supplied;
    match query {
        TokenQuery::Secret if is_supplied => {
            world.process.reference = Some(false);
            sync.observed.secret = Some(Ok(TokenSecret::Ours { has_token: true, in_place: true }));
        }
        TokenQuery::Secret => {
            sync.secret = world.secret;
            let has_token = world.secret.is_some();
            sync.observed.secret = Some(Ok(TokenSecret::Ours { has_token, in_place: has_token }));
        }
        TokenQuery::Check => {
            let token = sync.secret;
            sync.observed.check = Some(check(world, sync, token, is_up));
        }
        TokenQuery::Proof => {
            let token = sync.created.map(Material::Token);
            sync.observed.proof = Some(check(world, sync, token, is_up));
        }
        TokenQuery::Rights => sync.observed.rights = Some(Ok(world.has_rights)),
        TokenQuery::Source => sync.observed.source = Some(Ok(())),
    }
}

fn check(world: &mut World, sync: &mut SyncExchange, token: Option<Material>, is_up: bool) -> TokenCheck {
    let accepted = |method: Method| TokenCheck::Accepted { user_id: method.user().to_owned() };
    if token == Some(Material::Garbage) {
        return TokenCheck::Refused(Blocker::until_change(Reason::BadToken, ""));
    }
    if !is_up {
        let away = Blocker::new(Reason::Unreachable, "");
        return match world.flaw {
            Some(Flaw::TakesSilenceForRefusal) => TokenCheck::Refused(away),
            _ => TokenCheck::Unknown(away),
        };
    }
    if Method::of(sync.observed.method) == Method::Supplied {
        sync.client = Some(Client::Supplied);
        return accepted(Method::Supplied);
    }
    match world.row(token).filter(|row| row.is_accepted) {
        Some(row) => {
            sync.client = Some(Client::Token(row.id));
            world.process.reference = Some(true);
            accepted(row.method)
        }
        None => TokenCheck::Refused(Blocker::new(Reason::Unauthenticated, "")),
    }
}

fn finish_sync(world: &mut World, observed: &ObservedToken, report: TokenReport) {
    let outcomes = observed.replaced.iter().zip(&observed.replaced_revoked);
    for (token, outcome) in outcomes {
        let is_given_up = outcome.as_ref().is_err_and(|blocker| blocker.retry == Retry::OnChange);
        if is_given_up && !report.events.is_empty() {
            let method = Method::of(token.method);
            let left = world.rows.iter().filter(|row| row.method == method).map(|row| row.id);
            let left: Vec<_> = left.collect();
            world.abandoned.extend(left);
            world.abandoned.sort_unstable();
            world.abandoned.dedup();
        }
    }
    let process = &mut world.process;
    if report.access == Some(AccessVerdict::Ready) {
        process.awaits_delay = false;
    }
    if let Some(token_record) = &report.token_record {
        process.token_record = Some(Record::of_status(token_record));
        if world.flaw != Some(Flaw::KeepsOldRevocation) {
            // Whatever was revoked before, this token is not.
            process.revocation = None;
        }
    }
    if report.revocation.is_some() {
        process.revocation = Some(RevocationKind::Done);
    }
    if let Some(access) = report.access {
        process.access = Some(match access {
            AccessVerdict::Ready => (AccessKind::Ready, Reason::TokenAccepted),
            AccessVerdict::Overdue(blocker) => (AccessKind::Overdue, blocker.reason),
            AccessVerdict::Degraded(blocker) => (AccessKind::Degraded, blocker.reason),
            AccessVerdict::Refused(blocker) => (AccessKind::Refused, blocker.reason),
        });
    }
}

fn continue_revocation(mut world: World, observed: ObservedRevocation) -> World {
    match revocation::decide(&observed) {
        Step::Ask(never) => match never {},
        Step::Act(effect) => {
            world.exchange = Some(Exchange::Revoke(Box::new(RevokeExchange { observed, effect })));
        }
        Step::Done(RevocationReport { revocation, event, .. }) => {
            if event.is_some() && world.flaw != Some(Flaw::AbandonsSilently) {
                world.abandoned = world.rows.iter().map(|row| row.id).collect();
            }
            if let Some(revocation) = revocation {
                world.process.revocation = Some(match revocation {
                    Revocation::Done => RevocationKind::Done,
                    Revocation::Failing(_) => RevocationKind::Failing,
                    Revocation::Abandoned => RevocationKind::Abandoned,
                });
            }
        }
    }
    world
}

/// Performs the effect that an exchange is about to perform, and goes on with the exchange.
fn perform(world: &World, how: How, is_up: bool) -> World {
    let mut next = world.clone();
    match next.exchange.take() {
        None => next,
        Some(Exchange::Revoke(revoke)) => {
            let RevokeExchange { mut observed, effect } = *revoke;
            if how.parts > 0 {
                match &effect {
                    RevocationEffect::RemoveSecret => next.secret = None,
                    RevocationEffect::RevokeInDatabase => next.revoke(Method::Postgres),
                    RevocationEffect::RevokeInCoderd { user_id } => next.revoke_in_coderd(user_id.as_deref()),
                }
            }
            match how.end {
                End::Crashes => return next.crashed(),
                End::Well => observed.done.push(effect),
                End::Fails | End::FailsForGood => observed.blocker = Some(failure(how.end)),
            }
            continue_revocation(next, observed)
        }
        Some(Exchange::Sync(mut sync)) => {
            if sync.generation != world.generation || world.is_deleting() {
                // The object was edited: the live read before the effect ends the exchange.
                let report = TokenReport { retry: Some(Retry::Backoff), ..TokenReport::default() };
                finish_sync(&mut next, &sync.observed, report);
                return next;
            }
            perform_sync(&mut next, &mut sync, how);
            if how.end == End::Crashes {
                return next.crashed();
            }
            continue_sync(next, *sync, is_up)
        }
    }
}

fn failure(end: End) -> Blocker {
    match end {
        End::FailsForGood => Blocker::until_change(Reason::Unreachable, ""),
        End::Well | End::Fails | End::Crashes => Blocker::new(Reason::Unreachable, ""),
    }
}

fn perform_sync(world: &mut World, sync: &mut SyncExchange, how: How) {
    let outcome = if how.end == End::Well { Ok(()) } else { Err(failure(how.end)) };
    match sync.effect.clone() {
        TokenEffect::Store => sync.observed.stored = Some(outcome),
        TokenEffect::Create { renews, is_refused } => {
            if is_refused && world.row(sync.secret).is_some_and(|row| row.is_accepted) {
                world.violation = Some("a token that works was replaced as if coderd refused it");
            }
            let created = (how.parts > 0).then(|| world.mint(sync, renews, is_refused)).flatten();
            world.process.awaits_delay |= created.is_some();
            let stored = created.filter(|created| how.parts > 1 && world.store(sync, created.id));
            sync.observed.created = Some(match (stored, outcome) {
                (Some(created), Ok(())) => {
                    sync.created = Some(created.id);
                    world.process.reference = Some(true);
                    Ok(CreatedToken {
                        expires: at(created.born + 2),
                        renew_after: at(created.born + 1),
                        is_only_one: created.is_only_one,
                    })
                }
                (_, Err(blocker)) => Err(blocker),
                (None, Ok(())) => Err(Blocker::new(Reason::Unreachable, "").with_retry(Retry::Soon)),
            });
        }
        TokenEffect::RemoveOthers => {
            if how.parts > 0 {
                let method = Method::of(sync.observed.method);
                if !matches!(sync.observed.proof, Some(TokenCheck::Accepted { .. })) {
                    world.violation = Some("a token was revoked before its successor was proven");
                }
                world.remove_but(method, sync.created, sync.successor());
            }
            sync.observed.others_removed = Some(outcome);
        }
        TokenEffect::RevokeReplaced(replaced) => {
            if how.parts > 0 {
                let as_me = world.flaw == Some(Flaw::RevokesAsMe) && replaced.user_id.is_none();
                let me = match sync.client {
                    Some(Client::Token(id)) => world.row(Some(Material::Token(id))).map(|row| row.method),
                    Some(Client::Supplied) | None => None,
                };
                let method = match Method::of(replaced.method) {
                    Method::FirstUser if as_me => me.unwrap_or(Method::Supplied),
                    method => method,
                };
                world.remove_but(method, None, sync.successor());
                if Method::of(sync.observed.method) == Method::Supplied {
                    world.secret = None;
                }
            }
            sync.observed.replaced_revoked.push(outcome);
        }
    }
}

impl SyncExchange {
    /// The token that takes over, which coderd accepted in this exchange.
    fn successor(&self) -> Successor {
        match self.client {
            Some(Client::Supplied) => Successor::Supplied,
            Some(Client::Token(id)) => Successor::Token(id),
            None => Successor::Leftover,
        }
    }
}
