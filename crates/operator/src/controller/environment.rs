//! What a variable of the pods' environment is, found out as the kubelet does: live, and held no longer than it is used.

use coder_k8s_api::PodSettings;
use coder_k8s_core::{
    pod::env::{Part, parts},
    sources::key_for,
};
use coder_k8s_engine::{client, secret};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, EnvVarSource};
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};

/// Why a value cannot be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// What it comes from is not there.
    #[error("{variable}: {what}")]
    Missing {
        /// The variable.
        variable: String,
        /// What is missing.
        what: String,
    },
    /// What it comes from could not be read.
    #[error("{0}")]
    Unreadable(String),
}

/// Whose environment it is.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a PodSettings,
}

impl Environment<'_> {
    /// The value of a variable. None: it is not set.
    pub(crate) async fn value(&self, variable: &str) -> Result<Option<SecretString>, Error> {
        self.before(variable, self.pod.extra_env.len()).await
    }

    /// The value of a variable, as far as the first entries of the list set it.
    fn before<'a>(
        &'a self,
        variable: &'a str,
        count: usize,
    ) -> BoxFuture<'a, Result<Option<SecretString>, Error>> {
        Box::pin(async move {
            let entries = self.pod.extra_env.iter().enumerate().take(count);
            let Some((place, entry)) = entries.rev().find(|(_, entry)| entry.name == variable) else {
                return self.sourced(variable).await;
            };
            match (&entry.value_from, &entry.value) {
                (Some(from), _) => self.referred(variable, from).await,
                (None, Some(value)) => self.expanded(value, place).await.map(Some),
                (None, None) => Ok(None),
            }
        })
    }

    /// A value with its variables, which must have been set before it, filled in. Others stay as they are written.
    async fn expanded(&self, value: &str, place: usize) -> Result<SecretString, Error> {
        let mut text = String::new();
        for part in parts(value) {
            match part {
                Part::Text(part) => text.push_str(&part),
                Part::Variable(name) => {
                    if let Some(value) = self.before(&name, place).await? {
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

    async fn referred(&self, variable: &str, from: &EnvVarSource) -> Result<Option<SecretString>, Error> {
        let (kind, name, key, optional, value) = if let Some(from) = &from.secret_key_ref {
            let value = self.of_secret(&from.name, &from.key).await?;
            ("Secret", &from.name, &from.key, from.optional, value)
        } else if let Some(from) = &from.config_map_key_ref {
            let value = self.of_map(&from.name, &from.key).await?;
            ("ConfigMap", &from.name, &from.key, from.optional, value)
        } else {
            let what = "only a value, a secretKeyRef and a configMapKeyRef can be followed".to_owned();
            return Err(Error::Missing { variable: variable.to_owned(), what });
        };
        if value.is_none() && optional != Some(true) {
            let what = format!("{kind} {name} with the key {key} is not there");
            return Err(Error::Missing { variable: variable.to_owned(), what });
        }
        Ok(value)
    }

    /// Of several sources the last wins.
    async fn sourced(&self, variable: &str) -> Result<Option<SecretString>, Error> {
        for from in self.pod.env_from.iter().rev() {
            let Some(key) = key_for(from, variable) else { continue };
            let value = match (&from.secret_ref, &from.config_map_ref) {
                (Some(secret), _) => self.of_secret(&secret.name, key).await?,
                (None, Some(map)) => self.of_map(&map.name, key).await?,
                (None, None) => None,
            };
            if value.is_some() {
                return Ok(value);
            }
        }
        Ok(None)
    }

    async fn of_secret(&self, name: &str, key: &str) -> Result<Option<SecretString>, Error> {
        let read = secret::read(self.client, self.namespace, name).await;
        let data = read.map_err(|error| Error::Unreadable(error.to_string()))?;
        let value = data.as_ref().and_then(|data| std::str::from_utf8(data.value(key)?).ok());
        Ok(value.map(|value| SecretString::from(value.to_owned())))
    }

    async fn of_map(&self, name: &str, key: &str) -> Result<Option<SecretString>, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let map = api.get_opt(name).await.map_err(|error| {
            Error::Unreadable(format!("cannot read ConfigMap {name}: {}", client::describe(&error)))
        })?;
        let value = map.and_then(|map| map.data.unwrap_or_default().remove(key));
        Ok(value.map(SecretString::from))
    }
}
