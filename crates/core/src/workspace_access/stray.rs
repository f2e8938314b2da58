//! Decides which grants in other namespaces end although no reconcile looks after them: their object is paused, cannot be
//! read, or no longer exists.
//!
//! Nothing is granted here, and nothing in the namespace of the object is touched. Only what bears the UID of the object that
//! it was written for counts: a Role or RoleBinding that merely has our labels is somebody else's.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{
    Reason,
    names::{annotation, label},
};
use kube::{Resource, ResourceExt};

use super::{Consent, Existing, GrantPolicy, Grantee, GranteeKind, Plan};
use crate::outcome::{Blocker, EventNote};

/// What a Role or RoleBinding in another namespace says about the object that it was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantOrigin {
    /// Kind of the object.
    pub kind: GranteeKind,
    /// Namespace of the object.
    pub source: String,
    /// UID of the object.
    pub uid: String,
}

impl GrantOrigin {
    /// The origin of a grant. None: it is somebody else's, or in the namespace of its object, where the garbage collector
    /// removes it.
    pub fn of<K: Resource>(grant: &K) -> Option<Self> {
        let labels = grant.labels();
        labels.get(label::MANAGED_BY).filter(|manager| *manager == label::MANAGER)?;
        let uid = grant.annotations().get(annotation::WORKSPACE_RBAC_OWNER_UID)?.clone();
        let (kind, source) = GranteeKind::all().find_map(|kind| {
            let (name, namespace) = kind.labels();
            labels.get(name).and(labels.get(namespace)).map(|source| (kind, source.clone()))
        })?;
        let is_elsewhere = grant.namespace().as_ref() != Some(&source) && grant.owner_references().is_empty();
        is_elsewhere.then_some(Self { kind, source, uid })
    }
}

/// Why a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The object that it was written for no longer exists.
    Owner,
    /// Its namespace no longer consents.
    Consent,
}

impl Loss {
    /// Why a grant ends, if it does.
    pub fn of<K: Resource>(
        grant: &K,
        owner_exists: bool,
        consent: Consent,
        policy: GrantPolicy,
    ) -> Option<Self> {
        if !owner_exists {
            return Some(Self::Owner);
        }
        (consent == Consent::Missing && !policy.tolerates(grant)).then_some(Self::Consent)
    }

    /// The event on a grant that was removed. It is read by those who may read the namespace of the grant, so that it names
    /// no object of another.
    pub fn event(self, what: &str, origin: &GrantOrigin) -> EventNote {
        let (reason, why) = match self {
            Self::Owner => (Reason::OwnerGone, "the object that it was written for no longer exists"),
            Self::Consent => (Reason::ConsentMissing, "the namespace does not consent any more"),
        };
        let message =
            format!("removed {what}, which let workspaces of namespace {} in: {why}", origin.source);
        EventNote { warning: false, reason, message }
    }
}

impl Existing {
    /// The other namespaces in which an object has grants.
    pub fn elsewhere(&self, grantee: &Grantee) -> BTreeSet<String> {
        let roles = self.roles.iter().filter(|role| grantee.made(&***role)).map(|role| role.namespace());
        let bindings = self.bindings.iter().filter(|b| grantee.made(&***b)).map(|b| b.namespace());
        roles.chain(bindings).flatten().filter(|namespace| *namespace != grantee.namespace).collect()
    }
}

/// The event on a deleted object whose grants in other namespaces could not be removed in time. `left` names them, with
/// their namespaces, or is the reason why they are not known.
pub fn abandoned(left: Result<&[String], &Blocker>, why: Option<&Blocker>) -> EventNote {
    let what = match left {
        Ok(left) => left.join(", "),
        Err(unknown) => format!("what is left in other namespaces ({})", unknown.message),
    };
    let why = why.map(|blocker| format!(": {}", blocker.message)).unwrap_or_default();
    let message = format!("gave up removing {what}{why}; the operator removes it later, once it can");
    EventNote { warning: true, reason: Reason::GrantAbandoned, message }
}

/// Decides what a paused object loses: its grants in namespaces that do not consent, whatever its spec says. `consent` is
/// that of the namespaces in which it has grants.
pub fn of_paused(
    grantee: &Grantee,
    consent: &BTreeMap<String, Consent>,
    existing: &Existing,
    policy: GrantPolicy,
) -> Plan {
    let consent_in = |namespace: Option<String>| {
        namespace.and_then(|namespace| consent.get(&namespace)).copied().unwrap_or(Consent::Given)
    };
    let roles = existing.roles.iter().filter(|role| {
        grantee.made(&***role) && Loss::of(&***role, true, consent_in(role.namespace()), policy).is_some()
    });
    let bindings = existing.bindings.iter().filter(|b| {
        grantee.made(&***b) && Loss::of(&***b, true, consent_in(b.namespace()), policy).is_some()
    });
    let missing = consent.iter().filter(|(_, given)| **given == Consent::Missing);
    Plan {
        without_consent: missing
            .map(|(namespace, given)| {
                let kept = existing.bindings.iter().any(|b| grantee.inherited(&**b, namespace, policy));
                (namespace.clone(), *given, kept)
            })
            .collect(),
        obsolete_roles: roles.cloned().collect(),
        obsolete_bindings: bindings.cloned().collect(),
        ..Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{grantee, standing};
    use super::*;

    const SCOPED: GrantPolicy = GrantPolicy { privileged_rules: false, named_namespaces: true };
    const EVERYWHERE: GrantPolicy = GrantPolicy { privileged_rules: false, named_namespaces: false };

    #[test]
    fn a_grant_ends_with_its_owner_or_its_consent_and_an_inherited_one_with_its_owner_alone() {
        let (ours, of_go) = (standing("dev", "uid-1", true), standing("dev", "uid-1", false));
        let mut consented = ours.clone();
        let binding = std::sync::Arc::make_mut(&mut consented.bindings[0]);
        binding.annotations_mut().insert(annotation::WORKSPACE_RBAC_CONSENT.into(), "yes".into());
        let (owner, consent) = (Some(Loss::Owner), Some(Loss::Consent));
        for (grant, policy, missing) in [
            (&ours, EVERYWHERE, consent),
            (&consented, SCOPED, consent),
            // An earlier release took the flag for consent.
            (&ours, SCOPED, None),
            (&of_go, EVERYWHERE, None),
            (&of_go, SCOPED, None),
        ] {
            let loss = |exists, consent| Loss::of(&*grant.bindings[0], exists, consent, policy);
            assert_eq!(loss(true, Consent::Missing), missing);
            assert_eq!(loss(false, Consent::Given), owner);
            for kept in [Consent::Given, Consent::Unknown, Consent::Unwatched, Consent::NoNamespace] {
                assert_eq!(loss(true, kept), None, "{kept:?}");
            }
        }
    }

    #[test]
    fn only_what_bears_our_mark_in_another_namespace_counts() {
        let origin = |existing: &Existing| GrantOrigin::of(&*existing.bindings[0]);
        let (kind, source, uid) = (GranteeKind::ControlPlane, "coder".to_owned(), "uid-1".to_owned());
        let mut elsewhere = standing("dev", "uid-1", true);
        let binding = std::sync::Arc::make_mut(&mut elsewhere.bindings[0]);
        assert_eq!(GrantOrigin::of(binding), None, "without the label of the operator");
        binding.labels_mut().insert(label::MANAGED_BY.into(), label::MANAGER.into());
        assert_eq!(origin(&elsewhere), Some(GrantOrigin { kind, source, uid }));
        let binding = std::sync::Arc::make_mut(&mut elsewhere.bindings[0]);
        binding.annotations_mut().remove(annotation::WORKSPACE_RBAC_OWNER_UID);
        assert_eq!(origin(&elsewhere), None, "labelled by hand");
        let mut at_home = standing("coder", "uid-1", true);
        let binding = std::sync::Arc::make_mut(&mut at_home.bindings[0]);
        binding.labels_mut().insert(label::MANAGED_BY.into(), label::MANAGER.into());
        assert_eq!(origin(&at_home), None);
    }

    #[test]
    fn a_paused_object_loses_what_is_not_consented_to_and_nothing_else() {
        let mut existing = standing("dev", "uid-1", true);
        for more in
            [standing("qa", "uid-1", true), standing("coder", "uid-1", true), standing("dev", "uid-9", true)]
        {
            existing.roles.extend(more.roles);
            existing.bindings.extend(more.bindings);
        }
        assert_eq!(existing.elsewhere(&grantee()), ["dev".to_owned(), "qa".to_owned()].into());
        let consent = [("dev".to_owned(), Consent::Missing), ("qa".to_owned(), Consent::Given)].into();
        let plan = of_paused(&grantee(), &consent, &existing, EVERYWHERE);
        assert!(plan.grants.is_empty());
        assert_eq!(plan.without_consent, [("dev".to_owned(), Consent::Missing, false)]);
        assert_eq!((plan.obsolete_roles.len(), plan.obsolete_bindings.len()), (1, 1));
        assert_eq!(plan.obsolete_bindings[0].namespace().as_deref(), Some("dev"));
        let unknown = [("dev".to_owned(), Consent::Unknown)].into();
        assert_eq!(of_paused(&grantee(), &unknown, &existing, EVERYWHERE), Plan::default());
    }

    #[test]
    fn an_event_on_a_removed_grant_names_no_object_of_another_namespace() {
        let origin =
            GrantOrigin { kind: GranteeKind::ControlPlane, source: "team-a".into(), uid: "uid-1".into() };
        let event = Loss::Owner.event("RoleBinding coder-84e8e53b", &origin);
        assert_eq!(event.reason, Reason::OwnerGone);
        assert_eq!(
            event.message,
            "removed RoleBinding coder-84e8e53b, which let workspaces of namespace team-a in: the object that it was \
             written for no longer exists"
        );
    }
}
