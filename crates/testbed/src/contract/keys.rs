//! Checks of provisioner keys.

use std::{collections::BTreeMap, sync::Arc};

use super::{Bench, Check, Finding, Needs, ensure, member, refused, text, unique};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("keys need a license", Needs::Unlicensed, unlicensed),
        Check::new("the organization is looked up before the license", Needs::Unlicensed, gate_order),
        Check::new("a key that coderd does not know proves nothing", Needs::Enterprise, unknown_material),
        Check::new("a key proves itself until it is deleted", Needs::Licensed, key_life),
        Check::new("the name of a key is kept in lower case and taken once", Needs::Licensed, key_name_once),
        Check::new("the name of a key has 64 bytes at most", Needs::Licensed, key_name_length),
        Check::new("reserved names are not for keys", Needs::Licensed, reserved_names),
        Check::new("a key may have a name with odd characters", Needs::Licensed, odd_names),
        Check::new("a key is listed with its daemons", Needs::Licensed, key_daemons),
        Check::new("a member sees no keys and makes none", Needs::Licensed, member_keys),
    ]
}

fn no_tags() -> BTreeMap<String, String> {
    BTreeMap::new()
}

async fn unlicensed(bench: Arc<Bench>) -> Finding {
    let owner = &bench.owner;
    refused(owner.provisioner_keys("default").await, "NotEntitled")?;
    refused(owner.create_provisioner_key("default", &unique("key"), &no_tags()).await, "NotEntitled")?;
    refused(owner.provisioner_key_daemons("default").await, "NotEntitled")?;
    refused(owner.delete_provisioner_key("default", &unique("key")).await, "NotEntitled")
}

async fn gate_order(bench: Arc<Bench>) -> Finding {
    refused(bench.owner.provisioner_keys(&unique("org")).await, "NotFound")?;
    let stranger = bench.nobody.with_any_token(&"abcdefghij-klmnopqrstuvwxyzabcdef".into());
    let stranger = stranger.map_err(|error| error.to_string())?;
    refused(stranger.provisioner_keys("default").await, "Unauthenticated")
}

async fn unknown_material(bench: Arc<Bench>) -> Finding {
    refused(bench.nobody.provisioner_key_details(&"x".repeat(43).into()).await, "Unauthenticated")?;
    refused(bench.nobody.provisioner_key_details(&"short".into()).await, "Invalid")
}

async fn key_life(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("key"));
    let organization = owner.organization("default").await.map_err(text)?;
    let tags = BTreeMap::from([("environment".to_owned(), "contract".to_owned())]);
    let material = owner.create_provisioner_key("default", &name, &tags).await.map_err(text)?;
    let proven = bench.nobody.provisioner_key_details(&material).await.map_err(text)?;
    let listed = owner.provisioner_keys("default").await.map_err(text)?;
    ensure(listed.contains(&proven), "listed as it proves itself")?;
    ensure(proven.name == name && proven.tags == tags, "with its name and tags")?;
    ensure(proven.organization == organization.id, "in its organization")?;
    ensure(proven.created_at.is_some(), "with the time it was made")?;
    owner.delete_provisioner_key(&organization.id, &name).await.map_err(text)?;
    refused(bench.nobody.provisioner_key_details(&material).await, "Unauthenticated")?;
    refused(owner.delete_provisioner_key("default", &name).await, "NotFound")
}

async fn key_name_once(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("key"));
    let upper = name.to_uppercase();
    owner.create_provisioner_key("default", &upper, &no_tags()).await.map_err(text)?;
    let listed = owner.provisioner_keys("default").await.map_err(text)?;
    let again = owner.create_provisioner_key("default", &name, &no_tags()).await;
    owner.delete_provisioner_key("default", &upper).await.map_err(text)?;
    ensure(listed.iter().any(|key| key.name == name), "kept in lower case")?;
    refused(again, "Duplicate")
}

async fn key_name_length(bench: Arc<Bench>) -> Finding {
    let mut name = unique("key");
    name.push_str(&"x".repeat(64 - name.len()));
    bench.owner.create_provisioner_key("default", &name, &no_tags()).await.map_err(text)?;
    bench.owner.delete_provisioner_key("default", &name).await.map_err(text)?;
    name.push('x');
    refused(bench.owner.create_provisioner_key("default", &name, &no_tags()).await, "Invalid")?;
    refused(bench.owner.create_provisioner_key("default", "", &no_tags()).await, "Invalid")
}

async fn reserved_names(bench: Arc<Bench>) -> Finding {
    for name in ["built-in", "user-auth", "psk", "PSK"] {
        refused(bench.owner.create_provisioner_key("default", name, &no_tags()).await, "Invalid")?;
    }
    let listed = bench.owner.provisioner_keys("default").await.map_err(text)?;
    ensure(listed.iter().all(|key| key.name != "psk"), "reserved keys are not listed")?;
    refused(bench.owner.delete_provisioner_key("default", "psk").await, "Invalid")
}

async fn odd_names(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, format!("{} with space & more", unique("key")));
    owner.create_provisioner_key("default", &name, &no_tags()).await.map_err(text)?;
    owner.delete_provisioner_key("default", &name).await.map_err(text)?;
    let listed = owner.provisioner_keys("default").await.map_err(text)?;
    ensure(listed.iter().all(|key| key.name != name), "deleted")
}

async fn key_daemons(bench: Arc<Bench>) -> Finding {
    let (owner, name) = (&bench.owner, unique("key"));
    owner.create_provisioner_key("default", &name, &no_tags()).await.map_err(text)?;
    let listed = owner.provisioner_key_daemons("default").await.map_err(text)?;
    owner.delete_provisioner_key("default", &name).await.map_err(text)?;
    let found = listed.iter().find(|entry| entry.key.name == name).ok_or("the key is not listed")?;
    ensure(found.daemons.is_empty(), "no daemon came with it")?;
    ensure(listed.iter().any(|entry| entry.key.name == "user-auth"), "user-auth is always there")
}

async fn member_keys(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    let made = member.create_provisioner_key("default", &unique("key"), &no_tags()).await;
    refused(made, "Forbidden")?;
    refused(member.delete_provisioner_key("default", &unique("key")).await, "NotFound")
}
