//! The state of the model of registrations.

use coder_k8s_core::{
    target::{CoderdTarget, SecretDataRef},
    workload::PodCredential,
    workspaceproxy::registration::{Effect, RegistrationMarks, RegistrationRecord},
};

use super::super::{Budget, Limits, Phase};

/// Number of a registration, in the order they were made.
pub type Id = u8;

/// What the user asks for. Every field has two values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    pub server: bool,
    pub address: bool,
    pub name: bool,
    pub secret: bool,
    /// Whether a person supplies the token, so that nothing is registered.
    pub supplied: bool,
}

/// What a Secret holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    Empty,
    Garbage,
    /// The token of a registration, and which of its tokens: only the newest one works.
    Of(Id, u8),
    /// The token that a person supplies.
    Supplied,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub token: Token,
    pub marks: Option<RegistrationMarks>,
}

/// A registration in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyHere {
    pub id: Id,
    pub server: bool,
    pub name: String,
    /// How often it got another token.
    pub newest: u8,
    pub mine: bool,
    /// Whether a proxy ever ran with it.
    pub used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    pub held: Token,
    pub pod_credential: PodCredential,
}

/// A request to register, or to regenerate the token of this registration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub target: CoderdTarget,
    pub name: String,
    pub id: Option<String>,
}

/// What the operator is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Flight {
    /// Decided when the spec was this.
    Do(Spec, Effect),
    /// A token is made and its registration on the status; the token is in memory alone.
    Store { id: Id, newest: u8, secret: bool, expected: Option<Stored>, marks: RegistrationMarks },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub spec: Spec,
    pub phase: Phase,
    pub has_finalizer: bool,
    pub record: RegistrationRecord,
    pub secrets: [Option<Stored>; 2],
    pub proxies: Vec<ProxyHere>,
    pub deployment: Option<PodCredential>,
    pub pods: Vec<Pod>,
    pub flight: Option<Flight>,
    /// A request that coderd got and has not carried out yet.
    pub late: Option<Request>,
    /// Registrations that the operator deleted, as bits.
    pub killed: u64,
    /// Registrations that people were told of, as bits.
    pub named: u64,
    pub made: Id,
    pub budget: Budget,
    pub violation: Option<&'static str>,
}

impl World {
    pub fn new(limits: &Limits) -> Self {
        Self {
            spec: Spec::default(),
            phase: Phase::Alive,
            has_finalizer: false,
            record: RegistrationRecord::default(),
            secrets: [None, None],
            proxies: Vec::new(),
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

    pub fn wanted_name(&self) -> &'static str {
        if self.spec.name { "us" } else { "eu" }
    }

    pub fn proxy(&self, id: Id) -> Option<&ProxyHere> {
        self.proxies.iter().find(|proxy| proxy.id == id)
    }

    pub fn holder(&self, server: bool, name: &str) -> Option<&ProxyHere> {
        self.proxies.iter().find(|proxy| proxy.server == server && proxy.name == name)
    }

    /// Registers, unless the name is taken.
    pub fn register(&mut self, server: bool, name: &str, mine: bool, used: bool) -> Option<Id> {
        if self.holder(server, name).is_some() {
            return None;
        }
        let id = self.made;
        self.made += 1;
        self.proxies.push(ProxyHere { id, server, name: name.to_owned(), newest: 0, mine, used });
        Some(id)
    }

    pub fn secret(&self, which: bool) -> Option<&Stored> {
        self.secrets[usize::from(which)].as_ref()
    }

    /// The token that a pod would read. None: the pod does not start.
    pub fn read(&self, place: &SecretDataRef) -> Option<Token> {
        match secret_of(place) {
            Some(which) => {
                self.secret(which).map(|stored| stored.token).filter(|token| *token != Token::Empty)
            }
            None => Some(Token::Supplied),
        }
    }

    /// Whether the coderd of this address knows the token.
    pub fn works(&self, token: Token, server: bool) -> bool {
        matches!(token, Token::Of(id, newest)
            if self.proxy(id).is_some_and(|proxy| proxy.server == server && proxy.newest == newest))
    }

    pub fn is_named(&self, id: Id) -> bool {
        self.named & (1 << id) != 0
    }

    /// Registrations of ours that nobody was told to delete.
    pub fn ours(&self) -> impl Iterator<Item = &ProxyHere> {
        self.proxies.iter().filter(|proxy| proxy.mine && !self.is_named(proxy.id))
    }

    /// Takes what is only history out of the state, so that different ways to the same end meet.
    pub fn forget(&mut self) {
        if self.phase == Phase::Gone {
            self.record = RegistrationRecord::default();
            self.secrets = [None, None];
            self.deployment = None;
            self.pods.clear();
            self.flight = None;
        }
    }
}

pub fn id_text(id: Id) -> String {
    format!("p{id}")
}

pub fn id_of(text: &str) -> Option<Id> {
    text.strip_prefix('p')?.parse().ok()
}

pub fn secret_place(which: bool) -> SecretDataRef {
    SecretDataRef { name: if which { "s1" } else { "s0" }.to_owned(), key: "token".to_owned() }
}

/// The Secret that a person writes.
pub fn supplied_place() -> SecretDataRef {
    SecretDataRef { name: "supplied".to_owned(), key: "token".to_owned() }
}

/// Which Secret of ours a place is.
pub fn secret_of(place: &SecretDataRef) -> Option<bool> {
    match place.name.as_str() {
        "s0" => Some(false),
        "s1" => Some(true),
        _ => None,
    }
}
