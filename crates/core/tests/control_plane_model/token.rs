//! The operator token: the world around `operator_token::decide` and `revocation::decide`.
//!
//! Decisions, the record on status and the finalizer are those of `core`. Modelled are coderd's two users of the operator
//! (one from the database, one person) with their tokens, the Secret, a person who edits, deletes and damages, time, and a
//! process that can die, lose an answer or find coderd away at every effect.
//!
//! Abstractions: the effects of one exchange are not interleaved with those of another, because exchanges of one control
//! plane run one after the other and a lease outlasts every request; a Secret is written onto the version that was read;
//! the first user is one person, and can log in.

mod coderd;
mod operator;

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderControlPlaneSpec, CoderControlPlaneStatus, OperatorTokenStatus,
    Reason, ReplacedToken, ReportedSecretRef, condition::condition_type, names::finalizer,
};
use coder_k8s_core::controlplane::coderd::access::{
    self, AccessVerdict, Revocation, may_create, needs_cleaning,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use self::operator::Exchange;
use crate::{pool::Pooled, search::Model};

/// A deliberate mistake, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Creates a token that the status does not announce.
    CreatesUnannounced,
    /// Leaves the record of a token that works no more in place while its successor is created.
    KeepsOldRecord,
    /// Goes by the status alone while a newer record is still to be written.
    ForgetsUnwrittenRecord,
    /// Announces a token, and creates it, before the finalizer is in place.
    RecordsBeforeFinalizer,
    /// Removes the other tokens before coderd accepted the new one.
    RemovesUnproven,
    /// Takes the silence of coderd for a refusal.
    TakesSilenceForRefusal,
    /// Revokes tokens of the first user as the user of the token that works now.
    RevokesAsMe,
    /// Revokes the token of the other method before its successor works.
    RevokesReplacedFirst,
    /// Names a token of the spec's own method as replaced, after a change from one method to another and back.
    ReplacesItself,
    /// Forgets the token that a replaced token replaced itself.
    ForgetsSecondReplaced,
    /// Revokes only the token on record when the access is disabled or the object is deleted.
    ForgetsReplacedOnRevocation,
    /// Keeps the end of an earlier revocation when another token is announced.
    KeepsOldRevocation,
    /// Gives up at the deadline without an event.
    AbandonsSilently,
    /// Replaces a token that coderd refuses again and again, without a delay.
    ReplacesForEver,
    /// Never replaces a token that coderd refused right after its creation.
    ReplacesOnce,
    /// Lets the object go as soon as it is deleted.
    SkipsRevocation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    pub method: Method,
    pub disabled: bool,
}

/// [`AccessMethod`], which has no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    Postgres,
    FirstUser,
    Supplied,
}

impl Method {
    pub const ALL: [Self; 3] = [Self::Postgres, Self::FirstUser, Self::Supplied];

    pub fn of(method: AccessMethod) -> Self {
        match method {
            AccessMethod::Postgres => Self::Postgres,
            AccessMethod::FirstUser => Self::FirstUser,
            AccessMethod::TokenSecret => Self::Supplied,
        }
    }

    pub fn access(self) -> AccessMethod {
        match self {
            Self::Postgres => AccessMethod::Postgres,
            Self::FirstUser => AccessMethod::FirstUser,
            Self::Supplied => AccessMethod::TokenSecret,
        }
    }

    /// UUID of the user that tokens of this method belong to.
    pub fn user(self) -> &'static str {
        match self {
            Self::Postgres => "operator",
            Self::FirstUser => "person",
            Self::Supplied => "somebody",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Alive,
    Deleting { is_overdue: bool },
    Gone,
}

/// A token in coderd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub id: u8,
    pub method: Method,
    /// Which of the two names it has.
    pub is_next: bool,
    /// When it was created. It is due for renewal one unit of time later.
    pub born: u8,
    /// Whether coderd accepts it: not if the database belongs to another coderd.
    pub is_accepted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Material {
    Garbage,
    Token(u8),
}

/// `status.operatorToken`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub method: Method,
    pub knows_user: bool,
    /// Set if the token was proven.
    pub born: Option<u8>,
    pub replaces: Option<(Method, bool)>,
}

/// What the status says of the token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status {
    pub record: Option<Record>,
    /// Whether the reference names the generated Secret.
    pub reference: Option<bool>,
    pub ready: bool,
    /// Status, reason and generation of `OperatorAccessReady`.
    pub condition: Option<(bool, Reason, u8)>,
}

/// What the process knows between exchanges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    pub generation: u8,
    pub access: Option<(AccessKind, Reason)>,
    pub token_record: Option<Record>,
    pub revocation: Option<RevocationKind>,
    pub reference: Option<bool>,
    /// Whether a token was created that coderd has not accepted yet, so that the next one waits.
    pub awaits_delay: bool,
    /// Whether somebody changed a Secret since the last exchange.
    pub has_changed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    Ready,
    Overdue,
    Degraded,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevocationKind {
    Done,
    Failing,
    Abandoned,
}

/// How much may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub edits: u8,
    pub crashes: u8,
    /// A Secret deleted or overwritten, a token deleted by an administrator, rights withdrawn.
    pub damages: u8,
    pub renewals: u8,
    pub deletions: u8,
    /// Exchanges that start with the status before the last write.
    pub stale_views: u8,
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    pub flaw: Option<Flaw>,
    /// Whether the database belongs to another coderd than the one that answers.
    pub wrong_database: bool,
    pub spec: Spec,
    pub generation: u8,
    pub phase: Phase,
    pub finalizer: bool,
    pub status: Status,
    /// The status before the last write.
    pub previous: Status,
    pub secret: Option<Material>,
    pub rows: Vec<Row>,
    pub now: u8,
    pub has_rights: bool,
    pub process: Process,
    pub exchange: Option<Exchange>,
    /// Tokens that an event names as perhaps still valid.
    pub abandoned: Vec<u8>,
    /// Tokens that somebody else deleted or made useless.
    pub damaged_by_others: Vec<u8>,
    pub budget: Budget,
    pub violation: Option<&'static str>,
}

pub fn at(unit: u8) -> Timestamp {
    Timestamp::from_second(1_000_000 + 1_000 * i64::from(unit)).unwrap_or_default()
}

impl World {
    /// A new control plane.
    pub fn new(method: Method, budget: Budget, flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            wrong_database: false,
            spec: Spec { method, disabled: false },
            generation: 0,
            phase: Phase::Alive,
            finalizer: false,
            status: Status::default(),
            previous: Status::default(),
            secret: None,
            rows: Vec::new(),
            now: 0,
            has_rights: true,
            process: Process::default(),
            exchange: None,
            abandoned: Vec::new(),
            damaged_by_others: Vec::new(),
            budget,
            violation: None,
        }
    }

    /// A control plane whose token works.
    pub fn settled(method: Method, budget: Budget, flaw: Option<Flaw>) -> Self {
        let mut world = Self::new(method, budget, None);
        while let Some(next) = world.undisturbed() {
            world = next;
        }
        Self { previous: world.status, flaw, ..world }
    }

    /// A control plane of the Go operator, which records the Secret alone and sets no finalizer.
    pub fn taken_over(budget: Budget) -> Self {
        let world = Self::settled(Method::Postgres, budget, None);
        let status = Status { record: None, condition: None, ..world.status };
        Self { finalizer: false, status, previous: status, process: Process::default(), ..world }
    }

    pub fn is_deleting(&self) -> bool {
        matches!(self.phase, Phase::Deleting { .. })
    }

    pub fn row(&self, material: Option<Material>) -> Option<Row> {
        let Some(Material::Token(id)) = material else { return None };
        self.rows.iter().copied().find(|row| row.id == id)
    }

    /// The object as the operator sees it with this status.
    pub fn object(&self, status: &Status) -> Pooled {
        let mut object = Pooled::take(|| {
            let mut object = CoderControlPlane::new("coder", CoderControlPlaneSpec::default());
            object.spec.pod.extra_env = vec![database_url()];
            object
        });
        object.metadata.generation = Some(self.generation.into());
        object.metadata.finalizers = self.finalizer.then(|| vec![finalizer::CONTROL_PLANE.to_owned()]);
        object.metadata.deletion_timestamp = self.is_deleting().then(|| Time(at(self.now)));
        object.spec.operator_access.method = self.spec.method.access();
        object.spec.operator_access.disabled = self.spec.disabled;
        object.status = Some(status.written());
        object
    }

    /// Notes that the operator deletes a token, and whether it may.
    pub fn delete(&mut self, id: u8, successor: Option<Successor>) {
        let Some(place) = self.rows.iter().position(|row| row.id == id) else { return };
        let row = self.rows.remove(place);
        self.abandoned.retain(|abandoned| *abandoned != id);
        if let Some(successor) = successor {
            let works = match successor {
                Successor::Supplied => true,
                Successor::Token(id) => {
                    let is_there = self.rows.iter().any(|row| row.id == id && row.is_accepted);
                    is_there || self.damaged_by_others.contains(&id)
                }
                Successor::Leftover => self.secret != Some(Material::Token(row.id)) || !row.is_accepted,
            };
            if !works {
                self.violation = Some("a token was revoked before its successor was stored and proven");
            }
        }
    }

    fn is_unnamed(&self, row: Row) -> bool {
        !self.abandoned.contains(&row.id)
    }

    fn unnamed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| self.is_unnamed(**row))
    }
}

/// What makes it right to delete a token of a control plane that needs one.
#[derive(Clone, Copy, Debug)]
pub enum Successor {
    /// coderd accepted the token that a person supplies.
    Supplied,
    /// coderd accepted this token.
    Token(u8),
    /// Nothing: the token must not be the one in use.
    Leftover,
}

fn database_url() -> k8s_openapi::api::core::v1::EnvVar {
    k8s_openapi::api::core::v1::EnvVar {
        name: access::DATABASE_URL.to_owned(),
        value: Some("postgres://db".to_owned()),
        value_from: None,
    }
}

impl Process {
    /// What a new process knows.
    pub fn resume(generation: u8) -> Self {
        Self { generation, ..Self::default() }
    }
}

const GENERATED: &str = "coder-operator-token";
const SUPPLIED: &str = "supplied";

pub fn reference(is_generated: bool) -> ReportedSecretRef {
    let name = if is_generated { GENERATED } else { SUPPLIED };
    ReportedSecretRef { name: name.to_owned(), key: Some("token".to_owned()) }
}

impl Record {
    pub fn of_status(token_record: &OperatorTokenStatus) -> Self {
        let OperatorTokenStatus { method, user_id, expires: _, renew_after, replaces } = token_record;
        Self {
            method: Method::of(*method),
            knows_user: user_id.is_some(),
            born: renew_after.as_ref().map(|at| unit(at.0)),
            replaces: replaces.as_ref().map(|old| (Method::of(old.method), old.user_id.is_some())),
        }
    }

    pub fn status(self) -> OperatorTokenStatus {
        let token = |(method, knows_user): (Method, bool)| ReplacedToken {
            method: method.access(),
            user_id: knows_user.then(|| method.user().to_owned()),
        };
        let ReplacedToken { method, user_id } = token((self.method, self.knows_user));
        OperatorTokenStatus {
            method,
            user_id,
            expires: self.born.map(|born| Time(at(born + 2))),
            renew_after: self.born.map(|born| Time(at(born + 1))),
            replaces: self.replaces.map(token),
        }
    }
}

/// The time of creation of a token that is renewed at this time.
fn unit(renew_after: Timestamp) -> u8 {
    u8::try_from((renew_after.as_second() - 1_000_000) / 1_000 - 1).unwrap_or(u8::MAX)
}

impl Status {
    fn written(&self) -> CoderControlPlaneStatus {
        let mut status = CoderControlPlaneStatus::default();
        status.operator_token = self.record.map(Record::status);
        status.operator_token_secret_ref = self.reference.map(reference);
        status.operator_access_ready = self.ready.then_some(true);
        status.workload.conditions = self.condition.into_iter().map(condition).collect();
        status
    }

    pub fn read(status: &CoderControlPlaneStatus) -> Self {
        let found =
            status.workload.conditions.iter().find(|c| c.type_ == condition_type::OPERATOR_ACCESS_READY);
        Self {
            record: status.operator_token.as_ref().map(Record::of_status),
            reference: status.operator_token_secret_ref.as_ref().map(|reference| reference.name == GENERATED),
            ready: status.operator_access_ready == Some(true),
            condition: found.and_then(|c| {
                let generation = u8::try_from(c.observed_generation?).ok()?;
                Some((c.status == "True", Reason::of(c)?, generation))
            }),
        }
    }
}

fn condition((is_true, reason, generation): (bool, Reason, u8)) -> Condition {
    Condition {
        type_: condition_type::OPERATOR_ACCESS_READY.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.to_string(),
        message: String::new(),
        observed_generation: Some(generation.into()),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

impl Model for World {
    fn successors(&self) -> Vec<(String, Self)> {
        let mut all = self.happenings();
        if self.phase != Phase::Gone {
            all.extend(self.operator_steps());
        }
        all
    }

    fn undisturbed(&self) -> Option<Self> {
        operator::undisturbed(self)
    }

    fn always(&self) -> Result<(), String> {
        if let Some(violation) = self.violation {
            return Err(violation.to_owned());
        }
        if self.phase == Phase::Gone {
            return match self.unnamed().next() {
                Some(row) => Err(format!("the object is gone and no event names {row:?}")),
                None => Ok(()),
            };
        }
        let recorded = match self.status.record {
            Some(record) => Some(record.method),
            None => access::minted_token(&self.object(&self.status)).map(|token| Method::of(token.method)),
        };
        let replaced = self.status.record.and_then(|record| record.replaces).map(|(method, _)| method);
        if let Some(row) = self.unnamed().find(|row| ![recorded, replaced].contains(&Some(row.method))) {
            return Err(format!("nothing records {row:?}"));
        }
        for method in Method::ALL {
            if self.rows.iter().filter(|row| row.method == method).count() > 2 {
                return Err(format!("more than two tokens by {method:?}"));
            }
        }
        Ok(())
    }

    fn at_rest(&self) -> Result<(), String> {
        match self.phase {
            Phase::Gone => return Ok(()),
            Phase::Deleting { .. } => return Err("the object does not go".to_owned()),
            Phase::Alive => {}
        }
        let record = self.status.record;
        let reason = self.status.condition.map(|(_, reason, _)| reason);
        if self.spec.disabled || self.spec.method == Method::Supplied {
            let expected = if self.spec.disabled { Reason::Disabled } else { Reason::TokenAccepted };
            let is_clean = self.unnamed().next().is_none() && record.is_none() && !self.finalizer;
            return (is_clean && reason == Some(expected)).then_some(()).ok_or("not revoked".to_owned());
        }
        // Until a person corrects the database, each token is refused, and the next one waits.
        if self.wrong_database && reason == Some(Reason::TokenRefused) {
            return Ok(());
        }
        let Some(row) = self.row(self.secret) else { return Err("the Secret holds no token".to_owned()) };
        if let Some(other) = self.unnamed().find(|other| other.id != row.id) {
            return Err(format!("{other:?} stays valid beside {row:?}"));
        }
        let expected =
            Record { method: self.spec.method, knows_user: true, born: Some(row.born), replaces: None };
        for (holds, why) in [
            (row.method == self.spec.method, "the token is of another method"),
            (record == Some(expected), "the status records something else"),
            (row.born >= self.now, "the token is due for renewal"),
            (self.finalizer, "there is no finalizer"),
            (reason == Some(Reason::TokenAccepted), "the condition is not True"),
        ] {
            if !holds {
                return Err(why.to_owned());
            }
        }
        Ok(())
    }
}
