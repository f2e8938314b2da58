//! Creates and revokes operator tokens in coderd's database.
//!
//! The database is found as the pods find it, by `CODER_PG_CONNECTION_URL`. A connection is opened only to create, check or
//! revoke a token, and closed right after. The address, which holds a password, is read each time and not kept.

use std::collections::BTreeMap;

use coder_k8s_api::{PodSettings, Reason};
use coder_k8s_coderd::{
    IdentifiedServer,
    postgres::{DatabaseTokenRequest, Dsn, DsnContext, Ensured},
};
use coder_k8s_core::{
    controlplane::coderd::{
        access::{DATABASE_AUTH, DATABASE_URL, NO_DATABASE},
        operator_token::CreatedToken,
    },
    environment::{Expansion, TooLarge},
    intervals::MAX_EXPANDED_BYTES,
    outcome::Blocker,
    sources::{Source, key_for, source_of},
};
use coder_k8s_engine::{
    client,
    secret::{self, SecretData},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, EnvVarSource};
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};

use super::{Plane, token};
use crate::coderd::{blocker_of_database, targets};

/// An address and the CA to trust there.
struct Database {
    dsn: Dsn,
    ca: Option<Vec<u8>>,
}

/// Whether the address and the CA are usable. Does not connect.
pub(super) async fn check(plane: Plane<'_>) -> Result<(), Blocker> {
    let Database { dsn, ca } = find(plane).await?;
    plane.ctx.external.postgres.examine(&dsn, ca.as_deref()).map_err(blocker_of_database)
}

/// Whether nobody verifies who answers as the database. Does not connect.
pub(super) async fn is_unverified(plane: Plane<'_>) -> Result<bool, Blocker> {
    let Database { dsn, ca } = find(plane).await?;
    Ok(dsn.is_unverified(ca.is_some()))
}

/// Creates a token, unless the present one is good. With `replace` it is not, whatever the database knows of it.
pub(super) async fn create(
    plane: Plane<'_>,
    server: &IdentifiedServer,
    present: Option<&SecretString>,
    replace: bool,
) -> Result<(SecretString, CreatedToken), Blocker> {
    let database = find(plane).await?;
    let ensured = ensure(plane, &database, present, replace).await?;
    if ensured.deployment_id.as_deref().is_some_and(|id| id != server.deployment_id()) {
        // The database belongs to another coderd than the one that answers: its token must not be sent there.
        revoke_in(&database, plane).await?;
        let message = "another deployment answers than the one whose database CODER_PG_CONNECTION_URL names, and the token \
                       was not sent there: correct operatorAccess.apiURL or the database";
        return Err(Blocker::until_change(Reason::DeploymentChanged, message));
    }
    let Ensured { token, expires, renew_at, is_only_one, .. } = ensured;
    Ok((token, CreatedToken { expires, renew_after: renew_at, is_only_one }))
}

/// Removes every other token of this control plane.
pub(super) async fn keep_only(plane: Plane<'_>, token: &SecretString) -> Result<(), Blocker> {
    ensure(plane, &find(plane).await?, Some(token), false).await.map(drop)
}

/// Revokes every token of this control plane.
pub(super) async fn revoke(plane: Plane<'_>) -> Result<(), Blocker> {
    let database = find(plane).await?;
    let revoked = revoke_in(&database, plane).await?;
    tracing::info!(tokens = revoked, "revoked the operator token in {}", database.dsn.server());
    Ok(())
}

async fn revoke_in(Database { dsn, ca }: &Database, plane: Plane<'_>) -> Result<u64, Blocker> {
    let (postgres, name) = (&plane.ctx.external.postgres, plane.token_name());
    // Boxed: the future of a connection is large.
    Box::pin(postgres.revoke(dsn, ca.as_deref(), &name)).await.map_err(blocker_of_database)
}

async fn ensure(
    plane: Plane<'_>,
    Database { dsn, ca }: &Database,
    existing: Option<&SecretString>,
    replace: bool,
) -> Result<Ensured, Blocker> {
    let (name, lifetime, now) = (plane.token_name(), token::lifetime(plane.object), Timestamp::now());
    let request = DatabaseTokenRequest { token_name: &name, existing, lifetime, now, replace };
    let postgres = &plane.ctx.external.postgres;
    let ensured = Box::pin(postgres.ensure(dsn, ca.as_deref(), &request)).await;
    let ensured = ensured.map_err(blocker_of_database)?;
    if ensured.made {
        tracing::info!("created an operator token in {}", dsn.server());
    }
    Ok(ensured)
}

/// Finds the database by the environment of the pods. Every failure but an unreadable source waits for a change.
async fn find(Plane { key, object, ctx, .. }: Plane<'_>) -> Result<Database, Blocker> {
    let environment = Environment { client: &ctx.client, namespace: &key.namespace, pod: &object.spec.pod };
    let auth = environment.value(DATABASE_AUTH).await.map_err(unavailable)?;
    if auth.is_some_and(|auth| !["", "password"].contains(&auth.expose_secret().trim())) {
        let message = "CODER_PG_AUTH asks for a login other than by password, which the operator does not support: choose \
                       another operatorAccess.method";
        return Err(Blocker::until_change(Reason::DatabaseAuthUnsupported, message));
    }
    let url = environment.value(DATABASE_URL).await.map_err(unavailable)?;
    let Some(url) = url.filter(|url| !url.expose_secret().trim().is_empty()) else {
        return Err(Blocker::until_change(Reason::DatabaseUrlMissing, NO_DATABASE));
    };
    let dsn = Dsn::parse(url.expose_secret(), &DsnContext { namespace: &key.namespace })
        .map_err(|bad| Blocker::until_change(bad.reason(), format!("{DATABASE_URL}: {bad}")))?;
    let ca = object.spec.operator_access.database_ca_secret_ref.as_ref();
    let ca = ca.map(|reference| (reference, "operatorAccess.databaseCASecretRef"));
    let ca = targets::read_ca(ca, &key.namespace, ctx).await?;
    Ok(Database { dsn, ca })
}

fn unavailable(error: VariableError) -> Blocker {
    match error {
        VariableError::TooLarge { .. } => Blocker::until_change(Reason::BadConnectionUrl, error.to_string()),
        VariableError::Missing { .. } => Blocker::until_change(Reason::SecretMissing, error.to_string()),
        VariableError::Unreadable(message) => Blocker::new(Reason::Error, message),
    }
}

/// Why a variable has no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VariableError {
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
    pub(crate) async fn value(&self, variable: &str) -> Result<Option<SecretString>, VariableError> {
        let too_large = |TooLarge| VariableError::TooLarge { variable: variable.to_owned() };
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

    async fn read(&self, source: &Source) -> Result<Content, VariableError> {
        match source {
            Source::Secret(name) => {
                let read = secret::read(self.client, self.namespace, name).await;
                let data = read.map_err(|error| VariableError::Unreadable(error.to_string()))?;
                Ok(data.map_or(Content::Absent, Content::Secret))
            }
            Source::ConfigMap(name) => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
                let map = async { api.get_opt(client::object_name(name)?).await }.await.map_err(|error| {
                    VariableError::Unreadable(format!(
                        "cannot read ConfigMap {name}: {}",
                        client::describe(&error)
                    ))
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
fn references<'a>(expansion: &Expansion<'a>) -> Result<BTreeMap<Source, Vec<Reference<'a>>>, VariableError> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (position, entry, from) in expansion.references() {
        let variable = entry.name.as_str();
        let (source, key, optional) = key_of(from).ok_or_else(|| {
            let what =
                "the operator reads only a value, a secretKeyRef or a configMapKeyRef: use one of them";
            VariableError::Missing { variable: variable.to_owned(), what: what.to_owned() }
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

fn absent(variable: &str, source: &Source, key: &str) -> VariableError {
    let (kind, name) = match source {
        Source::Secret(name) => ("Secret", name),
        Source::ConfigMap(name) => ("ConfigMap", name),
    };
    let what = format!("{kind} {name} with the key {key} is not there");
    VariableError::Missing { variable: variable.to_owned(), what }
}
