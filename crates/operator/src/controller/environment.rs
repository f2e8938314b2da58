//! Resolves a variable of the pods' environment as the kubelet does: `env` before `envFrom`, the last entry first, with
//! `$(NAME)` expanded.
//!
//! Secrets and ConfigMaps are read live for each call. Values are returned as secrets and are not kept here.

use coder_k8s_api::PodSettings;
use coder_k8s_core::{
    pod::{ValuePart, value_parts},
    sources::key_for,
};
use coder_k8s_engine::{client, secret};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, EnvVarSource};
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};

/// Why a variable has no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Its source does not exist, or is of a kind that the operator does not follow. Only an edit changes that.
    #[error("{variable}: {what}")]
    Missing { variable: String, what: String },
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
        self.value_before(variable, self.pod.extra_env.len()).await
    }

    /// The value of a variable that the first `count` entries of `extraEnv`, or `envFrom`, give it.
    fn value_before<'a>(
        &'a self,
        variable: &'a str,
        count: usize,
    ) -> BoxFuture<'a, Result<Option<SecretString>, Error>> {
        Box::pin(async move {
            let entries = self.pod.extra_env.iter().enumerate().take(count);
            let Some((position, entry)) = entries.rev().find(|(_, entry)| entry.name == variable) else {
                return self.env_from_value(variable).await;
            };
            match (&entry.value_from, &entry.value) {
                (Some(from), _) => self.referenced_value(variable, from).await,
                (None, Some(value)) => self.expand(value, position).await.map(Some),
                (None, None) => Ok(None),
            }
        })
    }

    /// Expands `$(NAME)`. As in a pod, only entries before this one count, and an unknown name stays as it is written.
    async fn expand(&self, value: &str, position: usize) -> Result<SecretString, Error> {
        let mut text = String::new();
        for part in value_parts(value) {
            match part {
                ValuePart::Text(part) => text.push_str(&part),
                ValuePart::Variable(name) => {
                    if let Some(value) = self.value_before(&name, position).await? {
                        text.push_str(value.expose_secret());
                    } else {
                        text.push_str("$(");
                        text.push_str(&name);
                        text.push(')');
                    }
                }
            }
        }
        Ok(SecretString::from(text))
    }

    async fn referenced_value(
        &self,
        variable: &str,
        from: &EnvVarSource,
    ) -> Result<Option<SecretString>, Error> {
        let (kind, name, key, optional, value) = if let Some(from) = &from.secret_key_ref {
            let value = self.secret_value(&from.name, &from.key).await?;
            ("Secret", &from.name, &from.key, from.optional, value)
        } else if let Some(from) = &from.config_map_key_ref {
            let value = self.config_map_value(&from.name, &from.key).await?;
            ("ConfigMap", &from.name, &from.key, from.optional, value)
        } else {
            let what =
                "the operator reads only a value, a secretKeyRef or a configMapKeyRef: use one of them"
                    .to_owned();
            return Err(Error::Missing { variable: variable.to_owned(), what });
        };
        if value.is_none() && optional != Some(true) {
            let what = format!("{kind} {name} with the key {key} is not there");
            return Err(Error::Missing { variable: variable.to_owned(), what });
        }
        Ok(value)
    }

    /// The value from `envFrom`. Of several sources with the same key the last wins.
    async fn env_from_value(&self, variable: &str) -> Result<Option<SecretString>, Error> {
        for from in self.pod.env_from.iter().rev() {
            let Some(key) = key_for(from, variable) else { continue };
            let value = match (&from.secret_ref, &from.config_map_ref) {
                (Some(secret), _) => self.secret_value(&secret.name, key).await?,
                (None, Some(map)) => self.config_map_value(&map.name, key).await?,
                (None, None) => None,
            };
            if value.is_some() {
                return Ok(value);
            }
        }
        Ok(None)
    }

    async fn secret_value(&self, name: &str, key: &str) -> Result<Option<SecretString>, Error> {
        let read = secret::read(self.client, self.namespace, name).await;
        let data = read.map_err(|error| Error::Unreadable(error.to_string()))?;
        let value = data.as_ref().and_then(|data| std::str::from_utf8(data.value(key)?).ok());
        Ok(value.map(|value| SecretString::from(value.to_owned())))
    }

    async fn config_map_value(&self, name: &str, key: &str) -> Result<Option<SecretString>, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let map = api.get_opt(name).await.map_err(|error| {
            Error::Unreadable(format!("cannot read ConfigMap {name}: {}", client::describe(&error)))
        })?;
        let value = map.and_then(|map| map.data.unwrap_or_default().remove(key));
        Ok(value.map(SecretString::from))
    }
}
