//! What follows from what was observed: which key the Secret holds, and what coderd must be asked to know.

use coder_k8s_api::Reason;

use super::{
    Blocker, FoundKey, KeyMarks, KeyProof, KeyQuery, KeyRef, KeyScope, Keys, Organization, PodCredential,
    Query, Secret, tags,
};
use crate::{
    credential::{self, CredentialVerdict, Facts},
    target::SecretDataRef,
};

/// Why a rule does not get to its end.
pub(super) type Stop = credential::Stop<Keys>;

pub(super) type Flow<T> = credential::Flow<Keys, T>;

/// What a decision about keys rests on.
pub(super) type KeyFacts<'a> = Facts<'a, Keys>;

/// A key of ours that a Secret holds, proven in this reconcile.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) secret: SecretDataRef,
    pub(super) key: FoundKey,
    pub(super) checksums: [String; 2],
}

impl<'a> KeyFacts<'a> {
    /// The current key and the announced one.
    fn recorded(&self) -> impl Iterator<Item = &'a KeyRef> {
        let pending = self.record.pending.iter().map(|pending| &pending.credential);
        self.record.current.iter().chain(pending)
    }

    /// The Secrets that may hold the key: the wanted one, and where it was kept so far; if that was forgotten, every one
    /// of ours. No other: a replaced key must not become the current one again.
    fn places(&self) -> impl Iterator<Item = &'a SecretDataRef> {
        let (desired, recorded) = (&self.observed.desired.secret, self.record.secret.as_ref());
        let others = self.observed.secrets.keys().filter(move |place| match recorded {
            Some(recorded) => *place == recorded,
            None => true,
        });
        [desired].into_iter().chain(others.filter(move |place| *place != desired))
    }

    /// What the annotations of these Secrets say.
    pub(super) fn marks(&self) -> Vec<&'a KeyMarks> {
        let marks = |place| match self.observed.secrets.get(place) {
            Some(Secret::Ours { marks, .. }) => marks.as_ref(),
            _ => None,
        };
        self.places().filter_map(marks).collect()
    }

    /// The key of ours that a Secret holds. An answer that is not definite stops everything.
    pub(super) fn live(&self) -> Flow<Option<Live>> {
        for place in self.places() {
            let Some((checksums, marks)) = self.held(place) else { continue };
            if let Some(key) = self.identity(place, marks, checksums)?
                && self.is_ours(&key, marks)?
            {
                return Ok(Some(Live { secret: place.clone(), key, checksums: checksums.clone() }));
            }
        }
        Ok(None)
    }

    /// Whether a Secret holds material that coderd does not know, or knows as somebody else's.
    pub(super) fn is_refused(&self) -> bool {
        self.places().any(|place| self.is_refused_in(place))
    }

    /// The same of one Secret.
    pub(super) fn is_refused_in(&self, place: &SecretDataRef) -> bool {
        matches!(self.observed.proofs.get(place), Some(KeyProof::Refused | KeyProof::Is(_)))
    }

    /// Stops while a Secret that may hold the key cannot be read.
    pub(super) fn secrets_are_known(&self) -> Flow<()> {
        for place in self.places() {
            match self.observed.secrets.get(place) {
                Some(Secret::Unknown(blocker)) => return Err(Stop::unsure(blocker)),
                Some(_) => {}
                None => {
                    let message = format!("waiting for Secret {} to be read", place.name);
                    return Err(Stop::unsure(&Blocker::new(Reason::SecretUnknown, message)));
                }
            }
        }
        Ok(())
    }

    /// The key that the material in a Secret belongs to. None: to no key, or to one of another deployment.
    fn identity(
        &self,
        place: &SecretDataRef,
        marks: Option<&KeyMarks>,
        checksums: &[String; 2],
    ) -> Flow<Option<FoundKey>> {
        if !self.is_of_target(marks, checksums)? {
            return Ok(None);
        }
        match self.observed.proofs.get(place) {
            None => Err(Stop::ask(Query::Proof(place.clone()))),
            Some(KeyProof::Is(key)) => Ok(Some(key.clone())),
            Some(KeyProof::Refused) => Ok(None),
            Some(KeyProof::Unknown(blocker)) => Err(Stop::unsure(blocker)),
            Some(KeyProof::Unsupported) => self.identity_by_listing(marks).map(Some),
        }
    }

    /// Whether this material may be shown to the target: if its annotations name that deployment; without annotations,
    /// if the current key is there, or if no pod has it and a key was announced there.
    fn is_of_target(&self, marks: Option<&KeyMarks>, checksums: &[String; 2]) -> Flow<bool> {
        let target = self.target()?;
        let marked = marks.and_then(|marks| marks.deployment_id.as_ref());
        let carried = self.observed.workload.as_ref().map(|workload| &workload.pod_credential.checksum);
        let is_new = carried.is_some_and(|carried| !checksums.contains(carried));
        let announced =
            self.record.pending.as_ref().is_some_and(|pending| pending.credential.target.is_same(target));
        Ok(match (marked, &self.record.current) {
            (Some(_), _) => marked == target.deployment_id.as_ref(),
            (None, Some(current)) => current.target.is_same(target) || (is_new && announced),
            // The status is lost: the pods still know where they connect to.
            (None, None) => self
                .observed
                .workload
                .as_ref()
                .is_none_or(|workload| workload.pod_credential.url == target.url),
        })
    }

    /// Where coderd cannot be asked what material is, annotations and the list must agree. A list without the key
    /// proves nothing: it shows only what the credential may see.
    fn identity_by_listing(&self, marks: Option<&KeyMarks>) -> Flow<FoundKey> {
        let scope = self.target_scope()?;
        let known = marks.and_then(|marks| marks.id.clone());
        let known = known.or_else(|| self.record.current.as_ref()?.id.clone());
        let name = marks.map(|marks| marks.name.clone());
        let listed = self.listing(&scope)?.iter().find(|listed| match &known {
            Some(id) => listed.key.id == *id,
            None => name.as_ref().is_some_and(|name| listed.key.name.eq_ignore_ascii_case(name)),
        });
        listed.map(|listed| listed.key.clone()).ok_or_else(|| {
            let message = "this coderd cannot be asked what a key is, and does not list it".to_owned();
            Stop::unsure(&Blocker::new(Reason::NotSupported, message))
        })
    }

    /// Whether a key whose material our Secret holds is ours. Its UUID tells; what is adopted without it, because it was
    /// lost, must agree with what is left of the status, or be what the spec asks for.
    fn is_ours(&self, key: &FoundKey, marks: Option<&KeyMarks>) -> Flow<bool> {
        let marked = marks.and_then(|marks| marks.id.as_ref());
        if marked == Some(&key.id) || self.record.knows(&key.id) {
            return Ok(true);
        }
        match &self.record.current {
            _ if marked.is_some() => Ok(false),
            Some(current) if current.id.is_some() => Ok(false),
            Some(current) => Ok(current.name.eq_ignore_ascii_case(&key.name)
                && current.details.organization.id.as_deref().is_none_or(|id| id == key.organization)
                && current.target.is_same(self.target()?)),
            None => Ok(self.mismatch(key)?.is_none()),
        }
    }

    /// Why a key of the target is not what the spec asks for. None: it is.
    pub(super) fn mismatch(&self, key: &FoundKey) -> Flow<Option<Reason>> {
        let desired = &self.observed.desired;
        if !desired.name.covers(&key.name) {
            return Ok(Some(Reason::KeyNameChanged));
        }
        if !tags::mean_the_same(&desired.tags, &key.tags) {
            return Ok(Some(Reason::TagsChanged));
        }
        Ok((self.organization()? != key.organization).then_some(Reason::OrganizationChanged))
    }

    /// The UUID of the wanted organization. Taken from the status if that records the same name, else asked for.
    pub(super) fn organization(&self) -> Flow<String> {
        let (target, name) = (self.target()?, &self.observed.desired.organization);
        let recorded =
            self.recorded().find(|key| key.details.organization.name == *name && key.target.is_same(target));
        if let Some(id) = recorded.and_then(|key| key.details.organization.id.clone()) {
            return Ok(id);
        }
        match &self.observed.own.organization {
            None => Err(Stop::ask(Query::Own(KeyQuery::Organization))),
            Some(Ok(Some(id))) => Ok(id.clone()),
            Some(Ok(None)) => Err(Stop::Wait(CredentialVerdict::stalled(
                Reason::OrganizationNotFound,
                format!(
                    "coderd has no organization {name} that these credentials may see: correct spec.organizationName, or use \
                     credentials of a member"
                ),
            ))),
            Some(Err(blocker)) => Err(Stop::blocked(blocker)),
        }
    }

    /// The wanted organization of the target.
    pub(super) fn target_scope(&self) -> Flow<KeyScope> {
        let organization =
            Organization { id: Some(self.organization()?), name: self.observed.desired.organization.clone() };
        Ok(KeyScope { target: self.target()?.clone(), organization })
    }

    /// What the pods of a live key run with. The checksum of the Go operator says the same, and is kept.
    pub(super) fn run(&self, live: &Live) -> Option<PodCredential> {
        let [ours, go_operator] = &live.checksums;
        let carried = self.observed.workload.as_ref().map(|workload| &workload.pod_credential.checksum);
        let checksum = if carried == Some(go_operator) { go_operator } else { ours };
        let url = self.observed.target.as_ref().ok()?.url.clone();
        Some(PodCredential { secret: live.secret.clone(), checksum: checksum.clone(), url })
    }

    /// What pods run with while nothing is proven: as they do; or, where there are none, with what the Secret holds if
    /// it bears the mark of the current key.
    pub(super) fn last_pod_credential(&self) -> Option<PodCredential> {
        if let Some(workload) = &self.observed.workload {
            return Some(workload.pod_credential.clone());
        }
        self.stored_pod_credential(&self.record.current.as_ref()?.target.url)
    }

    /// A key of the target as the record keeps it.
    pub(super) fn as_recorded(&self, key: &FoundKey) -> Flow<KeyRef> {
        let mut known = self.recorded().map(|key| &key.details.organization);
        let known = known.find(|known| known.id.as_ref() == Some(&key.organization));
        // An organization that nobody named yet is called by its UUID, never by a name that may be another's.
        let name = known.map_or_else(|| key.organization.clone(), |known| known.name.clone());
        Ok(key.reference(self.target()?, name))
    }
}
