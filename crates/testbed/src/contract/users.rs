//! Checks of users and their tokens.

use std::{sync::Arc, time::Duration};

use coder_k8s_coderd::{NewFirstUser, NewUser};
use uuid::Uuid;

use super::{Bench, Check, Finding, Needs, ensure, member, refused, text, unique};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("the first user is made once", Needs::Any, first_user_once),
        Check::new("a wrong password is not accepted", Needs::Any, wrong_password),
        Check::new("the owner's token is an owner's", Needs::Any, owner_is_owner),
        Check::new("unknown and malformed tokens are not accepted", Needs::Any, bad_tokens),
        Check::new("a token works until it is deleted", Needs::Any, token_life),
        Check::new("the name of a token is taken once", Needs::Any, token_name_once),
        Check::new("an owner's token does not outlive the longest lifetime", Needs::Any, token_lifetime),
        Check::new("a user's name and password have rules", Needs::Any, user_rules),
        Check::new("a user's name is taken once", Needs::Any, user_once),
        Check::new("a member is not an owner and cannot make users", Needs::Any, member_is_no_owner),
        Check::new("the list of a member without tokens is empty", Needs::Any, no_tokens),
        Check::new("a service account needs a license", Needs::Unlicensed, service_account_unlicensed),
        Check::new("a service account has neither address nor password", Needs::Licensed, service_account),
    ]
}

async fn first_user_once(bench: Arc<Bench>) -> Finding {
    ensure(bench.nobody.has_first_user().await.map_err(text)?, "there is a first user")?;
    let user = NewFirstUser {
        email: "another@example.com".to_owned(),
        username: unique("first"),
        password: format!("Contract-{}", Uuid::new_v4()).into(),
    };
    refused(bench.nobody.create_first_user(&user).await, "Duplicate")
}

async fn wrong_password(bench: Arc<Bench>) -> Finding {
    let password = format!("Wrong-{}", Uuid::new_v4()).into();
    refused(bench.nobody.log_in("nobody@example.com", &password).await, "Unauthenticated")
}

async fn owner_is_owner(bench: Arc<Bench>) -> Finding {
    let me = bench.owner.me().await.map_err(text)?;
    ensure(me.is_owner() && me.status == "active", "an active owner")?;
    ensure(!me.organization_ids.is_empty(), "a member of an organization")
}

async fn bad_tokens(bench: Arc<Bench>) -> Finding {
    for token in ["abcdefghij-klmnopqrstuvwxyzabcdef", "malformed", "a-b-c"] {
        let client = bench.nobody.with_any_token(&token.into()).map_err(|error| error.to_string())?;
        refused(client.me().await, "Unauthenticated")?;
    }
    Ok(())
}

async fn token_life(bench: Arc<Bench>) -> Finding {
    let name = unique("token");
    let token = bench.owner.create_token("me", &name, Some(Duration::from_hours(1))).await.map_err(text)?;
    let client = bench.nobody.with_any_token(&token.secret).map_err(|error| error.to_string())?;
    client.me().await.map_err(text)?;
    let listed = bench.owner.tokens("me").await.map_err(text)?;
    let found = listed.iter().find(|listed| listed.id == token.id).ok_or("the token is not listed")?;
    ensure(found.token_name == name, "listed under its name")?;
    ensure(found.expires_at > found.created_at, "it ends after it began")?;
    bench.owner.delete_token("me", &token.id).await.map_err(text)?;
    refused(client.me().await, "Unauthenticated")?;
    refused(bench.owner.delete_token("me", &token.id).await, "NotFound")
}

async fn token_name_once(bench: Arc<Bench>) -> Finding {
    let name = unique("token");
    let token = bench.owner.create_token("me", &name, None).await.map_err(text)?;
    let again = bench.owner.create_token("me", &name, None).await;
    bench.owner.delete_token("me", &token.id).await.map_err(text)?;
    refused(again, "Duplicate")
}

async fn token_lifetime(bench: Arc<Bench>) -> Finding {
    let longest = bench.owner.longest_token_lifetime("me").await.map_err(text)?;
    let token = bench.owner.create_token("me", &unique("long"), Some(longest)).await.map_err(text)?;
    bench.owner.delete_token("me", &token.id).await.map_err(text)?;
    let longer = longest + Duration::from_hours(1);
    refused(bench.owner.create_token("me", &unique("longer"), Some(longer)).await, "Invalid")
}

fn user(username: &str, password: &str) -> NewUser {
    NewUser {
        username: username.to_owned(),
        login: Some((format!("{}@example.com", unique("user")), password.into())),
        roles: Vec::new(),
        organization_ids: vec![Uuid::nil().to_string()],
    }
}

async fn user_rules(bench: Arc<Bench>) -> Finding {
    let good = format!("Contract-{}", Uuid::new_v4());
    for name in ["", "two--hyphens", "under_score", "a name", "new", &"a".repeat(33)] {
        refused(bench.owner.create_user(&user(name, &good)).await, "Invalid")?;
    }
    for password in ["password", "aaaaaaaaaaaaaaaaaaaaaaaa"] {
        refused(bench.owner.create_user(&user(&unique("weak"), password)).await, "Invalid")?;
    }
    Ok(())
}

async fn user_once(bench: Arc<Bench>) -> Finding {
    let (name, password) = (unique("twice"), format!("Contract-{}", Uuid::new_v4()));
    let made = bench.owner.create_user(&user(&name, &password)).await.map_err(text)?;
    ensure(made.username == name && made.status == "active" && !made.is_owner(), "an active member")?;
    refused(bench.owner.create_user(&user(&name, &password)).await, "Duplicate")
}

async fn member_is_no_owner(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    ensure(!member.me().await.map_err(text)?.is_owner(), "a member is not an owner")?;
    let password = format!("Contract-{}", Uuid::new_v4());
    refused(member.create_user(&user(&unique("other"), &password)).await, "Forbidden")
}

async fn no_tokens(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    ensure(member.tokens("me").await.map_err(text)?.is_empty(), "no tokens")
}

fn account() -> NewUser {
    let (roles, organization_ids) = (vec!["template-admin".to_owned()], vec![Uuid::nil().to_string()]);
    NewUser { username: unique("service"), login: None, roles, organization_ids }
}

async fn service_account_unlicensed(bench: Arc<Bench>) -> Finding {
    // The text is not known to be the same in all versions; the refusal is.
    let refusal = bench.owner.create_user(&account()).await.err().map(|error| error.reason().as_str());
    ensure(matches!(refusal, Some("NotEntitled" | "Forbidden")), "a service account is refused")
}

async fn service_account(bench: Arc<Bench>) -> Finding {
    let made = bench.owner.create_user(&account()).await.map_err(text)?;
    ensure(made.is_service_account && made.email.is_empty(), "a service account without an address")?;
    let token = bench.owner.create_token(&made.id, &unique("token"), None).await.map_err(text)?;
    let client = bench.nobody.with_any_token(&token.secret).map_err(|error| error.to_string())?;
    ensure(client.me().await.map_err(text)?.id == made.id, "the token is the account's")?;
    bench.owner.delete_token(&made.id, &token.id).await.map_err(text)
}
