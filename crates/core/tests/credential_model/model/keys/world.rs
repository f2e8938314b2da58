//! The state of the model of provisioner keys.

use coder_k8s_core::provisioner::{
    keys::{KeyIntent, KeyMarks, KeyRecord, PodCredential, SecretDataRef, tags::Tags},
    names::KeyBase,
};

use super::super::{Budget, Limits, Phase};

/// Number of a key, in the order they were made.
pub type Id = u8;

/// What the user asks for. Every field has two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    pub server: bool,
    pub address: bool,
    pub tags: bool,
    pub name: bool,
    pub secret: bool,
    pub organization: bool,
}

/// What a Secret holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Material {
    Empty,
    Garbage,
    Of(Id),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub material: Material,
    pub marks: Option<KeyMarks>,
}

/// A key in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyHere {
    pub id: Id,
    pub server: bool,
    pub organization: bool,
    pub name: String,
    /// One of the two that the user asks for, or those of somebody else.
    pub tags: u8,
    pub mine: bool,
    pub used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    pub held: Material,
    pub pod_credential: PodCredential,
}

/// What the operator is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Flight {
    /// Decided when the spec was this.
    Do(Spec, coder_k8s_core::provisioner::keys::Effect),
    /// A key is made and its UUID on the status; its material is in memory alone.
    Store { id: Id, secret: bool, expected: Option<Stored>, marks: KeyMarks },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub spec: Spec,
    pub chosen: bool,
    pub phase: Phase,
    pub has_finalizer: bool,
    pub record: KeyRecord,
    pub secrets: [Option<Stored>; 2],
    pub keys: Vec<KeyHere>,
    pub deployment: Option<PodCredential>,
    pub pods: Vec<Pod>,
    pub flight: Option<Flight>,
    /// A request that coderd got and has not carried out yet.
    pub late: Option<KeyIntent>,
    /// Keys that the operator deleted, as bits.
    pub killed: u64,
    /// Keys that people were told of, as bits.
    pub named: u64,
    pub made: Id,
    pub budget: Budget,
    pub violation: Option<&'static str>,
}

impl World {
    pub fn new(limits: &Limits) -> Self {
        let spec = Spec {
            server: false,
            address: false,
            tags: false,
            name: false,
            secret: false,
            organization: false,
        };
        Self {
            spec,
            chosen: limits.chosen,
            phase: Phase::Alive,
            has_finalizer: false,
            record: KeyRecord::default(),
            secrets: [None, None],
            keys: Vec::new(),
            deployment: None,
            pods: Vec::new(),
            flight: None,
            late: None,
            killed: 0,
            named: 0,
            made: 0,
            budget: limits.budget,
            violation: None,
        }
    }

    pub fn base(&self) -> KeyBase {
        let given = match (self.chosen, self.spec.name) {
            (false, false) => None,
            (true, false) => Some("Team"),
            (_, true) => Some("other"),
        };
        KeyBase::new(given, "ns", "pool")
    }

    pub fn wanted_tags(&self) -> u8 {
        u8::from(self.spec.tags)
    }

    pub fn key(&self, id: Id) -> Option<&KeyHere> {
        self.keys.iter().find(|key| key.id == id)
    }

    pub fn holder(&self, server: bool, organization: bool, name: &str) -> Option<&KeyHere> {
        self.keys
            .iter()
            .find(|key| key.server == server && key.organization == organization && key.name == name)
    }

    /// Makes a key, unless the name is taken, and numbers it.
    pub fn make(&mut self, key: KeyHere) -> Option<Id> {
        if self.holder(key.server, key.organization, &key.name).is_some() {
            return None;
        }
        let id = self.made;
        self.made += 1;
        self.keys.push(KeyHere { id, ..key });
        Some(id)
    }

    pub fn secret(&self, which: bool) -> Option<&Stored> {
        self.secrets[usize::from(which)].as_ref()
    }

    /// Takes what is only history out of the state, so that different ways to the same end meet.
    pub fn forget(&mut self) {
        if self.phase == Phase::Gone {
            self.record = KeyRecord::default();
            self.secrets = [None, None];
            self.deployment = None;
            self.pods.clear();
            self.flight = None;
        }
    }
}

pub fn id_text(id: Id) -> String {
    format!("k{id}")
}

pub fn id_of(text: &str) -> Option<Id> {
    text.strip_prefix('k')?.parse().ok()
}

pub const FOREIGN: u8 = 2;

pub fn tags(which: u8) -> Tags {
    let region = ["eu", "us", "elsewhere"][usize::from(which)];
    [("region".to_owned(), region.to_owned())].into()
}

pub fn organization_text(which: bool) -> String {
    if which { "o1" } else { "o0" }.to_owned()
}

pub fn secret_place(which: bool) -> SecretDataRef {
    SecretDataRef { name: if which { "s1" } else { "s0" }.to_owned(), key: "key".to_owned() }
}

pub fn secret_of(place: &SecretDataRef) -> bool {
    place.name == "s1"
}

pub fn checksums(material: Material) -> Option<[String; 2]> {
    match material {
        Material::Empty => None,
        Material::Garbage => Some(["c-garbage".to_owned(), "e-garbage".to_owned()]),
        Material::Of(id) => Some([format!("c{id}"), format!("e{id}")]),
    }
}
