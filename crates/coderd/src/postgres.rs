//! stub
#![allow(missing_docs, clippy::all, clippy::pedantic, unused)]
use crate::{Faults, Observer, Resolve};
use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use std::{sync::Arc, time::Duration};
#[derive(Debug)]
pub struct Dsn;
#[derive(Debug, thiserror::Error)]
#[error("bad")]
pub struct BadDsn;
impl Dsn {
    pub fn parse(_: &str, _: &str) -> Result<Self, BadDsn> {
        Err(BadDsn)
    }
    pub fn server(&self) -> &str {
        ""
    }
}
pub struct Settings {
    pub connect: Duration,
    pub statement: Duration,
    pub whole: Duration,
    pub resolver: Option<Arc<dyn Resolve>>,
    pub observer: Option<Arc<dyn Observer>>,
    pub faults: Option<Arc<dyn Faults>>,
}
pub struct Postgres;
#[derive(Debug, thiserror::Error)]
#[error("bad")]
pub struct Error;
impl Error {
    pub fn reason(&self) -> &'static str {
        "x"
    }
    pub fn retry(&self) -> crate::Retry {
        crate::Retry::Backoff
    }
}
pub struct Wanted<'a> {
    pub token_name: &'a str,
    pub existing: Option<&'a SecretString>,
    pub lifetime: SignedDuration,
    pub now: Timestamp,
    pub replace: bool,
}
pub struct Ensured {
    pub token: SecretString,
    pub expires: Timestamp,
    pub renew_at: Timestamp,
    pub made: bool,
    pub settled: bool,
    pub deployment_id: Option<String>,
}
impl Postgres {
    pub fn new(_: Settings) -> Self {
        Self
    }
    pub async fn ensure(&self, _: &Dsn, _: Option<&[u8]>, _: &Wanted<'_>) -> Result<Ensured, Error> {
        Err(Error)
    }
    pub async fn revoke(&self, _: &Dsn, _: Option<&[u8]>, _: &str) -> Result<u64, Error> {
        Err(Error)
    }
}
