//! Reads what a variable of the pods' environment is made of, which `core::environment` computes as the kubelet does.
//!
//! Secrets and ConfigMaps are read live for each call, each once. Values are returned as secrets and are not kept here.

use std::collections::BTreeMap;

use coder_k8s_api::PodSettings;
use coder_k8s_core::{
    environment::{Expansion, TooLarge},
    intervals::MAX_EXPANDED_BYTES,
    sources::{Source, key_for, source_of},
};
use coder_k8s_engine::{
    client,
    secret::{self, SecretData},
};
use k8s_openapi::api::core::v1::{ConfigMap, EnvVarSource};
use kube::{Api, Client};
use secrecy::SecretString;

/// Why a variable has no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Its source does not exist, or is of a kind that the operator does not follow. Only an edit changes that.
    #[error("{variable}: {what}")]
    Missing { variable: String, what: String },
    /// It is larger than any that the operator needs. Only an edit changes that.
    #[error(
        "{variable}: the variables that it is made of hold more than {} KiB, and the operator expands no more: shorten them",
        MAX_EXPANDED_BYTES / 1024
    )]
    TooLarge { variable: String },
    /// Its source could not be read this time.
    #[error("{0}")]
    Unreadable(String),
}

/// The environment of the pods of one object.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a PodSettings,
}

impl Environment<'_> {
    /// The value of a variable. None: the spec does not set it.
    pub(crate) async fn value(&self, variable: &str) -> Result<Option<SecretString>, Error> {
        let too_large = |TooLarge| Error::TooLarge { variable: variable.to_owned() };
        let mut expansion = Expansion::of(&self.pod.extra_env, variable).map_err(too_large)?;
        for (source, uses) in references(&expansion)? {
            let content = self.read(&source).await?;
            for Reference { position, variable, key, optional } in uses {
                match content.text(key) {
                    Some(value) => expansion.give_reference(position, value).map_err(too_large)?,
                    None if optional => {}
                    None => return Err(absent(variable, &source, key)),
                }
            }
        }
        // Of several sources with the same key the last wins.
        let mut missing = expansion.elsewhere().clone();
        for from in self.pod.env_from.iter().rev() {
            let Some(source) = source_of(from) else { continue };
            if !missing.iter().any(|variable| key_for(from, variable).is_some()) {
                continue;
            }
            let content = self.read(&source).await?;
            let found = missing
                .iter()
                .filter_map(|variable| Some((*variable, content.text(key_for(from, variable)?)?)));
            for (variable, value) in found.collect::<Vec<_>>() {
                missing.remove(variable);
                expansion.give_elsewhere(variable, value).map_err(too_large)?;
            }
        }
        expansion.value().map_err(too_large)
    }

    async fn read(&self, source: &Source) -> Result<Content, Error> {
        match source {
            Source::Secret(name) => {
                let read = secret::read(self.client, self.namespace, name).await;
                let data = read.map_err(|error| Error::Unreadable(error.to_string()))?;
                Ok(data.map_or(Content::Absent, Content::Secret))
            }
            Source::ConfigMap(name) => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
                let map = async { api.get_opt(client::object_name(name)?).await }.await.map_err(|error| {
                    Error::Unreadable(format!("cannot read ConfigMap {name}: {}", client::describe(&error)))
                })?;
                Ok(map.and_then(|map| map.data).map_or(Content::Absent, Content::ConfigMap))
            }
        }
    }
}

/// The content of a Secret or ConfigMap.
enum Content {
    Absent,
    Secret(SecretData),
    ConfigMap(BTreeMap<String, String>),
}

impl Content {
    /// The value of a key, if it is text.
    fn text(&self, key: &str) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Secret(data) => std::str::from_utf8(data.value(key)?).ok(),
            Self::ConfigMap(data) => data.get(key).map(String::as_str),
        }
    }
}

/// An entry that takes its value from a key.
struct Reference<'a> {
    position: usize,
    variable: &'a str,
    key: &'a str,
    optional: bool,
}

/// What the entries that take part refer to, by source.
fn references<'a>(expansion: &Expansion<'a>) -> Result<BTreeMap<Source, Vec<Reference<'a>>>, Error> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (position, entry, from) in expansion.references() {
        let variable = entry.name.as_str();
        let (source, key, optional) = key_of(from).ok_or_else(|| {
            let what =
                "the operator reads only a value, a secretKeyRef or a configMapKeyRef: use one of them";
            Error::Missing { variable: variable.to_owned(), what: what.to_owned() }
        })?;
        let reference = Reference { position, variable, key, optional: optional == Some(true) };
        all.entry(source).or_default().push(reference);
    }
    Ok(all)
}

fn key_of(from: &EnvVarSource) -> Option<(Source, &str, Option<bool>)> {
    let secret = from.secret_key_ref.as_ref();
    let secret = secret.map(|from| (Source::Secret(from.name.clone()), from.key.as_str(), from.optional));
    let map = from.config_map_key_ref.as_ref();
    let map = map.map(|from| (Source::ConfigMap(from.name.clone()), from.key.as_str(), from.optional));
    secret.or(map)
}

fn absent(variable: &str, source: &Source, key: &str) -> Error {
    let (kind, name) = match source {
        Source::Secret(name) => ("Secret", name),
        Source::ConfigMap(name) => ("ConfigMap", name),
    };
    let what = format!("{kind} {name} with the key {key} is not there");
    Error::Missing { variable: variable.to_owned(), what }
}
