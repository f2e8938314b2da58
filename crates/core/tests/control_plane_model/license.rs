//! The license: the world around `license::decide`.
//!
//! Decisions and the record on status are those of `core`. Modelled are coderd with its list, a person who rotates the
//! Secret, other administrators who add and delete licenses, an upgrade of the server, and a process that can die, lose an
//! answer or find coderd away at every effect.

use std::hash::{Hash, Hasher};

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneSpec, CoderControlPlaneStatus, LicenseStatus, Reason,
    condition::condition_type,
};
use coder_k8s_core::{
    condition::Conditions,
    controlplane::coderd::Step,
    controlplane::coderd::{
        self, CoderdReport,
        license::{
            self, InstalledLicense, LicenseEffect, LicenseList, LicenseQuery, LicenseRecord, LicenseReport,
            LicenseText, LicenseVerdict, ObservedLicense, rejection_id,
        },
    },
    outcome::Blocker,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::search::Model;

/// A deliberate mistake, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Does not look for the license in coderd's list.
    IgnoresList,
    /// Sends what coderd rejected again.
    ForgetsRejection,
    /// Does not remember what it applied.
    ForgetsHash,
    /// Removes the replaced license before its successor is sent.
    RemovesFirst,
    /// Removes the replaced license although the spec does not ask for it.
    RemovesUnasked,
    /// Removes whatever else coderd holds.
    RemovesOthers,
}

/// What does not change during a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    pub remove_replaced: bool,
    /// Whether a license can be found in coderd's list by its claims.
    pub is_recognisable: bool,
    /// Whether every replaced license of ours is removed in the end. The status records one replaced license, so that a
    /// second rotation before its removal leaves one behind, and so does a loss whose repair is not recorded.
    pub leaves_nothing: bool,
    /// Whether coderd rejects the second license.
    pub rejects_second: bool,
    pub flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub rotations: u8,
    pub crashes: u8,
    pub upgrades: u8,
    /// Licenses that other administrators add or delete.
    pub others: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Listed {
    id: u8,
    /// None: a license that no Secret of ours holds.
    text: Option<u8>,
    is_ours: bool,
}

/// What the status records of the license.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Status {
    applied: Option<u8>,
    id: Option<u8>,
    replaces: Option<u8>,
    rejected: Option<(u8, u8)>,
    condition: Option<bool>,
}

/// What the process knows of the license.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Applied { text: u8, installed: Option<(u8, Option<u8>)> },
    Blocked,
    Rejected(u8, u8),
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    limits: Limits,
    /// The license in the Secret.
    text: u8,
    version: u8,
    list: Vec<Listed>,
    status: Status,
    known: Option<Known>,
    exchange: Option<Exchange>,
    /// Whether another administrator deleted a license of ours since the last exchange began.
    has_loss: bool,
    budget: Budget,
    violation: Option<&'static str>,
}

/// An exchange that is about to perform an effect.
#[derive(Clone, Debug)]
struct Exchange {
    text: u8,
    observed: ObservedLicense,
    listed: Vec<Listed>,
    effect: LicenseEffect,
}

impl Hash for Exchange {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { text, observed, listed, effect } = self;
        (text, listed, effect, &observed.record.hash, &observed.record.uuid).hash(state);
        (observed.was_applied, &observed.record.refused, &observed.server_version).hash(state);
        observed.sent.as_ref().map(|sent| sent.as_ref().map(|sent| sent.id)).hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Well,
    /// The answer is lost, after the effect or before it.
    Fails {
        is_done: bool,
    },
    Crashes {
        is_done: bool,
    },
}

fn uuid(id: u8) -> String {
    format!("u{id}")
}

fn hash_of(text: u8) -> String {
    format!("h{text}")
}

fn number(text: &str) -> u8 {
    text.trim_start_matches(['u', 'h', 'v']).parse().unwrap_or(u8::MAX)
}

fn mark((text, version): (u8, u8)) -> String {
    rejection_id(&hash_of(text), &format!("v{version}"))
}

fn unmark(mark: &str) -> Option<(u8, u8)> {
    mark.split_once('@').map(|(hash, version)| (number(hash), number(version)))
}

fn installed(id: u8, replaces: Option<u8>) -> LicenseStatus {
    let replaces = replaces.map(uuid);
    LicenseStatus { id: Some(id.into()), uuid: Some(uuid(id)), replaces, ..LicenseStatus::default() }
}

impl World {
    /// A control plane whose first license is applied.
    pub fn settled(limits: Limits, budget: Budget) -> Self {
        let mut world = Self::new(Limits { flaw: None, ..limits }, budget);
        while let Some(next) = world.undisturbed() {
            world = next;
        }
        Self { limits, ..world }
    }

    /// A control plane that has just got its license Secret.
    pub fn new(limits: Limits, budget: Budget) -> Self {
        Self {
            limits,
            text: 0,
            version: 0,
            list: Vec::new(),
            status: Status::default(),
            known: None,
            exchange: None,
            has_loss: false,
            budget,
            violation: None,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn happenings(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        if self.budget.rotations > 0 {
            all.push((
                "rotation".to_owned(),
                self.with(|next| {
                    next.budget.rotations -= 1;
                    next.text = 1 - next.text;
                }),
            ));
        }
        if self.budget.upgrades > 0 {
            all.push((
                "upgrade".to_owned(),
                self.with(|next| {
                    next.budget.upgrades -= 1;
                    next.version += 1;
                }),
            ));
        }
        if self.budget.others > 0 {
            for text in [None, Some(self.text)].into_iter().filter(|text| !self.holds(*text)) {
                all.push((
                    format!("others add {text:?}"),
                    self.with(|next| {
                        next.budget.others -= 1;
                        next.add(text, false);
                    }),
                ));
            }
            for place in 0..self.list.len() {
                all.push((
                    format!("others delete license {place}"),
                    self.with(|next| {
                        next.budget.others -= 1;
                        next.list.remove(place);
                        next.has_loss = true;
                    }),
                ));
            }
        }
        all
    }

    fn holds(&self, text: Option<u8>) -> bool {
        self.list.iter().any(|listed| listed.text == text)
    }

    /// Adds a license under the least number that nothing remembers.
    fn add(&mut self, text: Option<u8>, is_ours: bool) -> u8 {
        let known = match self.known {
            Some(Known::Applied { installed: Some((id, replaces)), .. }) => [Some(id), replaces],
            _ => [None, None],
        };
        let is_free = |id: &u8| {
            let is_recorded =
                [self.status.id, self.status.replaces].contains(&Some(*id)) || known.contains(&Some(*id));
            !is_recorded && self.list.iter().all(|listed| listed.id != *id)
        };
        let id = (0..u8::MAX).find(is_free).unwrap_or(u8::MAX);
        self.list.push(Listed { id, text, is_ours });
        self.list.sort_unstable_by_key(|listed| listed.id);
        id
    }

    fn crashed(&self) -> Self {
        self.with(|next| {
            next.budget.crashes -= 1;
            (next.exchange, next.known) = (None, None);
        })
    }

    /// Puts the report on the status. None: nothing to write.
    fn reconcile(&self) -> Option<Self> {
        let license = self.known.map(|known| match known {
            Known::Applied { text, installed: found } => LicenseVerdict::Applied {
                uploaded: None,
                hash: hash_of(text),
                accepted: None,
                installed: found.map(|(id, replaces)| installed(id, replaces)),
            },
            Known::Blocked => LicenseVerdict::Blocker(Blocker::new(Reason::Unreachable, "")),
            Known::Rejected(text, version) => LicenseVerdict::Refused {
                blocker: Blocker::new(Reason::InvalidLicense, ""),
                rejection_id: mark((text, version)),
            },
        });
        let report = CoderdReport { license, ..CoderdReport::default() };
        let mut object = CoderControlPlane::new("coder", CoderControlPlaneSpec::default());
        object.spec.license_secret_ref =
            serde_json::from_value(serde_json::json!({"name": "license"})).unwrap_or_default();
        let before = self.status.written();
        let mut conditions = Conditions::new(&before.workload.conditions, None, Timestamp::UNIX_EPOCH);
        let mut status = before.clone();
        coderd::set_conditions(
            &object,
            &report,
            &coderd::PresentInputs::default(),
            &mut conditions,
            &mut status,
            Timestamp::UNIX_EPOCH,
        );
        status.workload.conditions = conditions.into_vec();
        let status = Status::read(&status);
        (status != self.status).then(|| Self { status, ..self.clone() })
    }

    /// What earlier exchanges left, as the operator reads it.
    fn record(&self) -> LicenseRecord {
        let Status { applied, id, replaces, rejected, condition: _ } = self.status;
        let recorded = LicenseRecord {
            hash: applied.map(hash_of),
            uuid: replaces.or(id).map(uuid),
            refused: rejected.map(mark),
        };
        let mut record = match self.known {
            Some(Known::Applied { text, installed }) => LicenseRecord {
                hash: Some(hash_of(text)),
                uuid: installed.map(|(id, replaces)| uuid(replaces.unwrap_or(id))).or(recorded.uuid),
                refused: None,
            },
            Some(Known::Rejected(text, version)) => {
                LicenseRecord { refused: Some(mark((text, version))), ..recorded }
            }
            Some(Known::Blocked) | None => recorded,
        };
        match self.limits.flaw {
            Some(Flaw::ForgetsHash) => record.hash = None,
            Some(Flaw::ForgetsRejection) => record.refused = None,
            _ => {}
        }
        record
    }

    fn start(&self, is_up: bool) -> Self {
        let mut next = self.clone();
        next.has_loss = false;
        let observed = ObservedLicense {
            server_version: format!("v{}", self.version),
            remove_replaced: self.limits.remove_replaced || self.limits.flaw == Some(Flaw::RemovesUnasked),
            was_applied: match self.known {
                Some(known) => matches!(known, Known::Applied { .. }),
                None => self.status.condition == Some(true),
            },
            record: self.record(),
            secret: None,
            list: None,
            sent: None,
            removed: None,
        };
        let exchange =
            Exchange { text: self.text, observed, listed: Vec::new(), effect: LicenseEffect::Send };
        next.go_on(exchange, is_up)
    }

    fn listed(&self, text: u8) -> LicenseList {
        let is_visible = self.limits.is_recognisable && self.limits.flaw != Some(Flaw::IgnoresList);
        let ours = self.list.iter().find(|listed| listed.text == Some(text)).filter(|_| is_visible);
        let all =
            self.list.iter().map(|listed| InstalledLicense { id: listed.id.into(), uuid: uuid(listed.id) });
        LicenseList {
            ours: ours.map(|listed| installed(listed.id, None)),
            uploaded_at: None,
            all: all.collect(),
        }
    }

    /// Decides and answers until the next effect or the end.
    fn go_on(mut self, mut exchange: Exchange, is_up: bool) -> Self {
        loop {
            match license::decide(&exchange.observed, Timestamp::UNIX_EPOCH) {
                Step::Ask(LicenseQuery::Secret) => {
                    let is_recognisable = self.limits.is_recognisable;
                    let text = LicenseText { hash: hash_of(exchange.text), is_recognisable };
                    exchange.observed.secret = Some(Ok(Some(text)));
                }
                Step::Ask(LicenseQuery::List) => {
                    let list = if is_up { Ok(self.listed(exchange.text)) } else { Err(away()) };
                    exchange.listed.clone_from(&self.list);
                    exchange.observed.list = Some(list);
                }
                Step::Act(effect) => {
                    exchange.effect = self.flawed(&exchange).unwrap_or(effect);
                    self.exchange = Some(exchange);
                    return self;
                }
                Step::Done(report) => {
                    self.finish(exchange.text, report);
                    return self;
                }
            }
        }
    }

    fn flawed(&self, exchange: &Exchange) -> Option<LicenseEffect> {
        let of_anybody = self.limits.flaw != Some(Flaw::RemovesOthers);
        let is_other =
            |listed: &&Listed| listed.text != Some(exchange.text) && (of_anybody || !listed.is_ours);
        let other = exchange.listed.iter().find(is_other).filter(|other| self.list.contains(other))?;
        let is_first = exchange.observed.removed.is_none();
        let removes = match self.limits.flaw {
            Some(Flaw::RemovesFirst) => exchange.observed.sent.is_none(),
            Some(Flaw::RemovesOthers) => exchange.observed.sent.is_some(),
            _ => false,
        };
        let license = InstalledLicense { id: other.id.into(), uuid: uuid(other.id) };
        (removes && is_first).then_some(LicenseEffect::Remove(license))
    }

    fn finish(&mut self, text: u8, report: LicenseReport) {
        let LicenseReport { license, keeps, access: _, retry: _ } = report;
        if keeps {
            return;
        }
        self.known = license.map(|license| match license {
            LicenseVerdict::Applied { installed, .. } => Known::Applied {
                text,
                installed: installed.and_then(|found| {
                    Some((number(found.uuid.as_deref()?), found.replaces.as_deref().map(number)))
                }),
            },
            LicenseVerdict::Blocker(_) => Known::Blocked,
            LicenseVerdict::Refused { rejection_id, .. } => {
                unmark(&rejection_id).map_or(Known::Blocked, |(text, version)| Known::Rejected(text, version))
            }
        });
    }

    fn hows(&self) -> Vec<How> {
        let mut all = vec![How::Well, How::Fails { is_done: false }, How::Fails { is_done: true }];
        if self.budget.crashes > 0 {
            all.extend([How::Crashes { is_done: false }, How::Crashes { is_done: true }]);
        }
        all
    }

    fn perform(&self, how: How) -> Self {
        let mut next = self.clone();
        let Some(mut exchange) = next.exchange.take() else { return next };
        let is_done = match how {
            How::Well => true,
            How::Fails { is_done } | How::Crashes { is_done } => is_done,
        };
        match exchange.effect.clone() {
            LicenseEffect::Send => {
                next.check_send(&exchange);
                let answer = if is_done { next.take(exchange.text) } else { Err(away()) };
                if answer.as_ref().is_err_and(|blocker| blocker.reason == Reason::Duplicate) {
                    exchange.observed.list = Some(Ok(next.listed(exchange.text)));
                    exchange.listed.clone_from(&next.list);
                }
                exchange.observed.sent = Some(if how == How::Well { answer } else { Err(away()) });
            }
            LicenseEffect::Remove(old) => {
                if is_done {
                    next.check_removal(&exchange, &old);
                    next.list.retain(|listed| i64::from(listed.id) != old.id);
                }
                exchange.observed.removed = Some(if how == How::Well { Ok(()) } else { Err(away()) });
            }
        }
        if matches!(how, How::Crashes { .. }) {
            return next.crashed();
        }
        next.go_on(exchange, true)
    }

    /// coderd takes a license, or not.
    fn take(&mut self, text: u8) -> Result<LicenseStatus, Blocker> {
        if self.limits.rejects_second && text == 1 {
            return Err(Blocker::until_change(Reason::InvalidLicense, ""));
        }
        if self.holds(Some(text)) {
            return Err(Blocker::new(Reason::Duplicate, ""));
        }
        let id = self.add(Some(text), true);
        Ok(installed(id, None))
    }

    fn check_send(&mut self, exchange: &Exchange) {
        let is_listed = exchange.listed.iter().any(|listed| listed.text == Some(exchange.text));
        let is_applied = self.status.applied == Some(exchange.text) && self.status.condition == Some(true);
        if is_listed && self.limits.is_recognisable {
            self.violation = Some("a license was sent although the list shows it");
        }
        if is_listed && is_applied {
            self.violation = Some("a license was sent again although it was applied and nobody deleted it");
        }
        if self.status.rejected == Some((exchange.text, self.version)) {
            self.violation = Some("a rejected license was sent again");
        }
    }

    fn check_removal(&mut self, exchange: &Exchange, old: &InstalledLicense) {
        let removed = self.list.iter().find(|listed| i64::from(listed.id) == old.id);
        if !self.limits.remove_replaced {
            self.violation = Some("a license was removed although the spec does not ask for it");
        }
        if removed.is_some_and(|removed| !removed.is_ours) {
            self.violation = Some("a license of somebody else was removed");
        }
        if !self.holds(Some(exchange.text)) && !self.has_loss {
            self.violation = Some("a license was removed before coderd held its successor");
        }
    }
}

fn away() -> Blocker {
    Blocker::new(Reason::Unreachable, "")
}

impl Status {
    fn written(self) -> CoderControlPlaneStatus {
        let Self { applied, id, replaces, rejected, condition } = self;
        let mut status = CoderControlPlaneStatus::default();
        status.license_last_applied_hash = applied.map(hash_of);
        if id.is_some() || rejected.is_some() {
            status.license = Some(LicenseStatus {
                id: id.map(i64::from),
                uuid: id.map(uuid),
                replaces: replaces.map(uuid),
                refused: rejected.map(mark),
                ..LicenseStatus::default()
            });
        }
        status.workload.conditions = condition.into_iter().map(applied_condition).collect();
        status
    }

    fn read(status: &CoderControlPlaneStatus) -> Self {
        let license = status.license.as_ref();
        let mut conditions = status.workload.conditions.iter();
        Self {
            applied: status.license_last_applied_hash.as_deref().map(number),
            id: license.and_then(|license| license.uuid.as_deref()).map(number),
            replaces: license.and_then(|license| license.replaces.as_deref()).map(number),
            rejected: license.and_then(|license| license.refused.as_deref()).and_then(unmark),
            condition: conditions
                .find(|c| c.type_ == condition_type::LICENSE_APPLIED)
                .map(|c| c.status == "True"),
        }
    }
}

fn applied_condition(is_true: bool) -> Condition {
    Condition {
        type_: condition_type::LICENSE_APPLIED.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: Reason::Applied.to_string(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

impl Model for World {
    fn successors(&self) -> Vec<(String, Self)> {
        let mut all = self.happenings();
        if let Some(exchange) = &self.exchange {
            let name = |how: &How| format!("{:?}: {how:?}", exchange.effect);
            all.extend(self.hows().into_iter().map(|how| (name(&how), self.perform(how))));
        } else {
            all.extend([true, false].map(|is_up| (format!("exchange, up {is_up}"), self.start(is_up))));
            if self.budget.crashes > 0 {
                all.push(("crash".to_owned(), self.crashed()));
            }
        }
        all.extend(self.reconcile().map(|next| ("reconcile".to_owned(), next)));
        all
    }

    fn undisturbed(&self) -> Option<Self> {
        if self.exchange.is_some() {
            return Some(self.perform(How::Well));
        }
        if let Some(next) = self.reconcile() {
            return Some(next);
        }
        let next = self.start(true);
        (next.exchange.is_some() || next.known != self.known).then_some(next)
    }

    fn always(&self) -> Result<(), String> {
        self.violation.map_or(Ok(()), |violation| Err(violation.to_owned()))
    }

    fn at_rest(&self) -> Result<(), String> {
        let Status { applied, rejected, condition, replaces, .. } = self.status;
        let ours = self.list.iter().filter(|listed| listed.is_ours && listed.text != Some(self.text)).count();
        let checks = if self.limits.rejects_second && self.text == 1 {
            [
                (condition == Some(false), "a rejected license counts as applied"),
                (rejected == Some((1, self.version)), "the rejection is not recorded"),
                (!self.holds(Some(1)), "coderd holds what it rejected"),
            ]
        } else {
            [
                (
                    condition == Some(true) && applied == Some(self.text),
                    "the license is not recorded as applied",
                ),
                (
                    self.holds(Some(self.text)) || !self.limits.is_recognisable,
                    "coderd does not hold the license",
                ),
                (
                    replaces.is_none()
                        && (ours == 0 || !self.limits.remove_replaced || !self.limits.leaves_nothing),
                    "a replaced license is left",
                ),
            ]
        };
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, why)) => Err(why.to_owned()),
            None => Ok(()),
        }
    }
}
