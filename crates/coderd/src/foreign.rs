//! What foreign bytes become, without a network. For the fuzzer.

use serde::de::DeserializeOwned;
use url::Url;

use crate::{
    BuildInfo, Daemon, Entitlements, Job, KeyDaemons, License, Organization, Proxy, Token, User,
    answer::Answer, authorities, error::ErrorKind, request::Surface,
};

/// What an answer of coderd becomes: an error, or which types it can be read as. `secret` was sent to get it.
pub async fn answer(response: http::Response<Vec<u8>>, secret: &str) -> String {
    let answer = match Answer::read(response.into()).await {
        Ok(answer) => answer,
        Err(kind) => return kind.to_string(),
    };
    let Ok(own) = Url::parse("http://coder.example:7080") else { return String::new() };
    for surface in [Surface::AddsLicense, Surface::HidesForbidden] {
        if let Some(refusal) = answer.refusal(surface, &own, [secret].into_iter()) {
            return refusal.to_string();
        }
    }
    let read = [
        object::<BuildInfo>(&answer),
        object::<Entitlements>(&answer),
        object::<Proxy>(&answer),
        object::<User>(&answer),
        list::<Daemon>(&answer),
        list::<Job>(&answer),
        list::<KeyDaemons>(&answer),
        list::<License>(&answer),
        list::<Organization>(&answer),
        list::<Token>(&answer),
        shown(answer.nothing()),
    ];
    read.join(" ")
}

fn object<T: DeserializeOwned>(answer: &Answer) -> String {
    shown(answer.object::<T>().map(drop))
}

fn list<T: DeserializeOwned>(answer: &Answer) -> String {
    shown(answer.list::<T>().map(drop))
}

fn shown(read: Result<(), ErrorKind>) -> String {
    read.map_or_else(|kind| kind.to_string(), |()| "ok".to_owned())
}

/// The number of certificates in a bundle, or what is wrong with it.
pub fn certificates(pem: &[u8]) -> Result<usize, &'static str> {
    authorities::certificates(pem).map(|all| all.len())
}
