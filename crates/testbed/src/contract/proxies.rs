//! Checks of workspace proxies.

use std::sync::Arc;

use coder_k8s_coderd::{Client, ProxySettings, RegisteredProxy};
use secrecy::ExposeSecret;

use super::{Bench, Check, Finding, Needs, ensure, member, refused, text, unique};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("proxies need a license, before any credential", Needs::Unlicensed, unlicensed),
        Check::new("the primary proxy is listed first and stays", Needs::Licensed, primary),
        Check::new("a proxy keeps its token until a new one is asked for", Needs::Licensed, tokens),
        Check::new("the name of a proxy is taken once, and free when it is deleted", Needs::Licensed, names),
        Check::new("a deleted proxy is found by its uuid alone", Needs::Licensed, deletion),
        Check::new("a proxy is not renamed onto another one", Needs::Licensed, renaming),
        Check::new("a member lists proxies and makes none", Needs::Licensed, member_proxies),
    ]
}

fn settings(name: &str) -> ProxySettings {
    let (display_name, icon) = ("Contract".to_owned(), "/emojis/1f5fa.png".to_owned());
    ProxySettings { name: name.to_owned(), display_name, icon }
}

async fn register(owner: &Client, name: &str) -> Result<RegisteredProxy, String> {
    owner.create_proxy(&settings(name)).await.map_err(text)
}

async fn unlicensed(bench: Arc<Bench>) -> Finding {
    refused(bench.owner.proxies().await, "NotEntitled")?;
    refused(bench.owner.create_proxy(&settings(&unique("proxy"))).await, "NotEntitled")?;
    let stranger = bench.nobody.with_any_token(&"abcdefghij-klmnopqrstuvwxyzabcdef".into());
    refused(stranger.map_err(|error| error.to_string())?.proxies().await, "NotEntitled")
}

async fn primary(bench: Arc<Bench>) -> Finding {
    let (owner, deployment) = (&bench.owner, bench.nobody.build_info().await.map_err(text)?.deployment_id);
    let listed = owner.proxies().await.map_err(text)?;
    let first = listed.first().ok_or("no proxy is listed")?;
    ensure(first.name == "primary" && first.id == deployment && first.status.status == "ok", "the primary")?;
    refused(owner.create_proxy(&settings("primary")).await, "Invalid")?;
    refused(owner.delete_proxy("primary").await, "Invalid")
}

async fn tokens(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("proxy"));
    let made = register(owner, &name).await?;
    let id = made.proxy.id.clone();
    let first = made.token.ok_or("no token when made")?;
    let well_formed =
        |token: &str| token.split_once(':').is_some_and(|(of, secret)| of == id && secret.len() == 64);
    let changed = ProxySettings { display_name: "Changed".to_owned(), ..settings(&name) };
    let kept = owner.update_proxy(&id, &changed, false).await.map_err(text)?;
    bench.nobody.prove_proxy_token(&first).await.map_err(text)?;
    let renewed = owner.update_proxy(&id, &changed, true).await.map_err(text)?;
    refused(bench.nobody.prove_proxy_token(&first).await, "Unauthenticated")?;
    if let Some(second) = &renewed.token {
        bench.nobody.prove_proxy_token(second).await.map_err(text)?;
        owner.delete_proxy(&id).await.map_err(text)?;
        refused(bench.nobody.prove_proxy_token(second).await, "Unauthenticated")?;
    }
    ensure(well_formed(first.expose_secret()), "the uuid, a colon, and 64 characters")?;
    ensure(kept.token.is_none() && kept.proxy.display_name == "Changed", "changed, with its old token")?;
    let second = renewed.token.ok_or("no new token")?;
    ensure(well_formed(second.expose_secret()), "a new token of the same shape")?;
    ensure(first.expose_secret() != second.expose_secret(), "another token")
}

async fn names(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("proxy"));
    register(owner, &name).await?;
    let again = owner.create_proxy(&settings(&name.to_uppercase())).await;
    owner.delete_proxy(&name).await.map_err(text)?;
    refused(again, "Duplicate")?;
    let second = register(owner, &name).await?;
    owner.delete_proxy(&second.proxy.id).await.map_err(text)
}

async fn deletion(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("proxy"));
    let id = register(owner, &name).await?.proxy.id;
    ensure(!owner.proxy(&name).await.map_err(text)?.deleted, "found by its name")?;
    refused(owner.proxy(&name.to_uppercase()).await, "NotFound")?;
    owner.delete_proxy(&name).await.map_err(text)?;
    refused(owner.proxy(&name).await, "NotFound")?;
    refused(owner.delete_proxy(&name).await, "NotFound")?;
    ensure(owner.proxy(&id).await.map_err(text)?.deleted, "found by its uuid, as deleted")?;
    owner.delete_proxy(&id).await.map_err(text)?;
    let listed = owner.proxies().await.map_err(text)?;
    ensure(listed.iter().all(|proxy| proxy.id != id), "not listed any more")
}

async fn renaming(bench: Arc<Bench>) -> Finding {
    let owner = &bench.owner;
    let one = register(owner, &unique("proxy")).await?.proxy;
    let other = register(owner, &unique("proxy")).await?.proxy;
    let renamed = owner.update_proxy(&one.id, &settings(&other.name), false).await;
    for id in [&one.id, &other.id] {
        owner.delete_proxy(id).await.map_err(text)?;
    }
    // Not a conflict: coderd does not map the database's refusal here.
    refused(renamed, "ServerError")
}

async fn member_proxies(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    ensure(!member.proxies().await.map_err(text)?.is_empty(), "a list with the primary")?;
    refused(member.create_proxy(&settings(&unique("proxy"))).await, "Forbidden")
}
