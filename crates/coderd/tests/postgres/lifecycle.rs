//! Tokens over time: kept, renewed, is_only_one, replaced, revoked, and what happens in between.

use std::sync::Arc;

use coder_k8s_coderd::postgres::{Change, DatabaseTokenRequest, Postgres, PostgresSettings};
use jiff::SignedDuration;
use secrecy::{ExposeSecret as _, SecretString};

use super::scene::{DAY, LIFETIME, NAME, OTHER, Scene};

#[tokio::test]
async fn a_call_makes_one_connection_and_one_that_finds_all_right_only_reads() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    assert_eq!(scene.database.connections(), 1);
    let (before, rows) = (scene.database.statements().len(), scene.fingerprint().await);
    scene.ensure(Some(&token)).await.unwrap();
    assert_eq!(scene.database.connections(), 2);
    let statements = scene.database.statements().split_off(before);
    for statement in &statements {
        let word = statement.split_whitespace().next().unwrap();
        assert!(["BEGIN;", "SELECT", "ROLLBACK"].contains(&word), "{statement}");
        assert!(!statement.contains("FOR UPDATE"), "{statement}");
    }
    assert!(statements.len() <= 10, "{statements:#?}");
    assert_eq!(scene.fingerprint().await, rows);
}

#[tokio::test]
async fn a_token_is_due_after_two_thirds_of_its_life_to_the_microsecond() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    scene.now = first.renew_at - SignedDuration::from_micros(1);
    assert!(!scene.ensure(Some(&first.token)).await.unwrap().made);
    scene.now = first.renew_at;
    assert!(scene.ensure(Some(&first.token)).await.unwrap().made);
}

#[tokio::test]
async fn an_expired_token_is_replaced_and_the_last_microsecond_still_counts() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    scene.now = first.expires;
    let next = scene.ensure(Some(&first.token)).await.unwrap();
    assert!(next.made && next.is_only_one, "what does not work any more is not kept");
    assert_eq!(scene.token_names().await, [NAME]);
    scene.now = next.expires - SignedDuration::from_micros(1);
    let after = scene.ensure(Some(&next.token)).await.unwrap();
    assert!(after.made && !after.is_only_one, "what still works is kept until the new one is proven");
}

#[tokio::test]
async fn coderd_moving_the_end_of_a_used_token_does_not_put_its_renewal_off() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    scene.sql("UPDATE api_keys SET expires_at = expires_at + interval '20 days', last_used = now()").await;
    let later = scene.ensure(Some(&first.token)).await.unwrap();
    assert_eq!(later.renew_at, first.renew_at);
    scene.now = first.renew_at;
    assert!(scene.ensure(Some(&first.token)).await.unwrap().made);
}

#[tokio::test]
async fn a_shorter_life_makes_a_token_due_and_a_longer_one_does_not() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    scene.now += DAY * 3;
    let longer = DatabaseTokenRequest { lifetime: LIFETIME * 12, ..scene.wanted(Some(&first.token)) };
    assert!(!scene.ensure_as(&longer).await.unwrap().made);
    let shorter = DatabaseTokenRequest { lifetime: DAY, ..scene.wanted(Some(&first.token)) };
    let next = scene.ensure_as(&shorter).await.unwrap();
    assert!(next.made && !next.is_only_one);
    assert_eq!(next.expires, scene.now + DAY);
}

#[tokio::test]
async fn a_token_that_coderd_refuses_is_replaced_while_the_old_one_stays() {
    let scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    let replaced = DatabaseTokenRequest { replace: true, ..scene.wanted(Some(&first.token)) };
    let next = scene.ensure_as(&replaced).await.unwrap();
    assert!(next.made && !next.is_only_one);
    assert_eq!(scene.token_names().await, [NAME.to_owned(), format!("{NAME}-next")]);
    assert!(scene.accepts(&first.token).await && scene.accepts(&next.token).await);
}

#[tokio::test]
async fn a_token_that_may_not_do_everything_is_replaced() {
    let scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap();
    for change in ["scopes = '{api_key:read}'", "scopes = '{coder:all}', allow_list = '{template:*}'"] {
        scene.sql(&format!("UPDATE api_keys SET {change} WHERE token_name = '{NAME}'")).await;
        let next = scene.ensure(Some(&first.token)).await.unwrap();
        assert!(next.made && !next.is_only_one, "{change}");
    }
}

/// A crash may fall between any two of: make the new one, store it, prove it, settle.
#[tokio::test]
async fn a_renewal_that_was_cut_short_anywhere_ends_with_one_token() {
    let mut scene = Scene::new().await;
    let mut held = scene.ensure(None).await.unwrap().token;
    for stored in [true, false, true, true, false, false, true] {
        scene.now += LIFETIME - DAY;
        let next = scene.ensure(Some(&held)).await.unwrap();
        assert!(next.made && !next.is_only_one);
        assert!(scene.accepts(&held).await && scene.accepts(&next.token).await);
        if stored {
            held = next.token;
        } else {
            // Lost on the way: the old one is still at hand, and is renewed again.
            let again = scene.ensure(Some(&held)).await.unwrap();
            assert!(again.made && !scene.accepts(&next.token).await && scene.accepts(&held).await);
            held = again.token;
        }
        let is_only_one = scene.ensure(Some(&held)).await.unwrap();
        assert!(!is_only_one.made && is_only_one.is_only_one);
        assert_eq!(scene.token_names().await, [NAME]);
        assert!(scene.accepts(&held).await);
    }
}

#[tokio::test]
async fn a_second_token_that_is_due_before_it_was_settled_changes_places() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap().token;
    scene.now += LIFETIME - DAY;
    let second = scene.ensure(Some(&first)).await.unwrap().token;
    scene.now += LIFETIME - DAY;
    let third = scene.ensure(Some(&second)).await.unwrap();
    assert!(third.made && !third.is_only_one);
    assert_eq!(scene.token_names().await, [NAME.to_owned(), format!("{NAME}-next")]);
    assert!(
        !scene.accepts(&first).await && scene.accepts(&second).await && scene.accepts(&third.token).await
    );
    scene.ensure(Some(&third.token)).await.unwrap();
    assert_eq!(scene.token_names().await, [NAME]);
}

#[tokio::test]
async fn what_is_no_token_of_ours_is_replaced() {
    let scene = Scene::new().await;
    let real = scene.ensure(None).await.unwrap().token;
    let id = real.expose_secret().split('-').next().unwrap().to_owned();
    for text in
        ["", " ", "nonsense", "id-", "-secret", "unknown000-0123456789012345678901", &format!("{id}-wrong")]
    {
        let before = scene.tokens().await;
        let next = scene.ensure(Some(&SecretString::from(text))).await.unwrap();
        assert!(next.made && next.is_only_one, "{text}");
        let after = scene.tokens().await;
        assert_eq!(after.len(), 1, "{text}");
        assert_ne!(before, after, "{text}");
    }
}

#[tokio::test]
async fn white_space_around_a_stored_token_does_not_matter_and_goes() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    let stored = SecretString::from(format!(" {}\n", token.expose_secret()));
    let kept = scene.ensure(Some(&stored)).await.unwrap();
    assert!(kept.changes.is_empty());
    assert_eq!(kept.token.expose_secret(), token.expose_secret());
}

#[tokio::test]
async fn the_token_of_another_control_plane_is_not_accepted_as_ours() {
    let scene = Scene::new().await;
    let other = DatabaseTokenRequest { token_name: OTHER, ..scene.wanted(None) };
    let theirs = scene.ensure_as(&other).await.unwrap().token;
    let ours = scene.ensure(Some(&theirs)).await.unwrap();
    assert!(ours.made && scene.accepts(&theirs).await);
    assert_eq!(scene.token_names().await, [OTHER, NAME]);
}

#[tokio::test]
async fn control_planes_that_share_a_database_do_not_take_each_others_access() {
    let scene = Scene::new().await;
    let ours = scene.ensure(None).await.unwrap().token;
    let theirs = scene
        .ensure_as(&DatabaseTokenRequest { token_name: OTHER, ..scene.wanted(None) })
        .await
        .unwrap()
        .token;
    assert_eq!(scene.revoke(NAME).await.unwrap(), 1);
    assert!(!scene.accepts(&ours).await);
    assert!(scene.accepts(&theirs).await, "the account stays active while somebody has a token");
    assert_eq!(scene.revoke(OTHER).await.unwrap(), 1);
    let status = "SELECT status::text FROM users WHERE username = 'coder-k8s-operator'";
    assert_eq!(scene.one(status).await, "suspended");
}

#[tokio::test]
async fn a_revocation_takes_both_tokens_of_a_renewal() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap().token;
    scene.now += LIFETIME - DAY;
    scene.ensure(Some(&first)).await.unwrap();
    assert_eq!(scene.revoke(NAME).await.unwrap(), 2);
    assert!(scene.tokens().await.is_empty());
}

#[tokio::test]
async fn an_expired_token_of_another_control_plane_does_not_keep_the_account_active() {
    let scene = Scene::new().await;
    scene.ensure(None).await.unwrap();
    scene.ensure_as(&DatabaseTokenRequest { token_name: OTHER, ..scene.wanted(None) }).await.unwrap();
    scene
        .sql(&format!("UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE token_name = '{OTHER}'"))
        .await;
    scene.revoke(NAME).await.unwrap();
    let status = "SELECT status::text FROM users WHERE username = 'coder-k8s-operator'";
    assert_eq!(scene.one(status).await, "suspended");
}

#[tokio::test]
async fn a_new_organization_is_joined_and_a_lost_role_is_taken_again() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    scene.organization("acme").await;
    scene.organization("gone").await;
    scene.sql("SET session_replication_role = replica; UPDATE organizations SET deleted = true WHERE name = 'gone'").await;
    let after = scene.ensure(Some(&token)).await.unwrap();
    assert_eq!(after.changes, [Change::Joined(1)]);
    assert_eq!(scene.memberships().await, ["acme {organization-admin}", "coder {organization-admin}"]);
    scene
        .sql(
            "UPDATE organization_members SET roles = '{organization-auditor}' FROM organizations AS o \
             WHERE o.id = organization_id AND o.name = 'acme'",
        )
        .await;
    let after = scene.ensure(Some(&token)).await.unwrap();
    assert_eq!(after.changes, [Change::Promoted(1)]);
    let expected = ["acme {organization-auditor,organization-admin}", "coder {organization-admin}"];
    assert_eq!(scene.memberships().await, expected, "what somebody added stays");
}

#[tokio::test]
async fn an_account_that_was_changed_is_put_right_and_nothing_else_is_touched() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    let ours = "email = 'coder-k8s-operator@coder-k8s.invalid'";
    for change in [
        "status = 'suspended'",
        "status = 'dormant'",
        "rbac_roles = '{}'",
        "rbac_roles = '{auditor}'",
        "login_type = 'password'",
        "hashed_password = 'x'",
        "username = 'renamed'",
        "name = 'Robot'",
    ] {
        scene.sql(&format!("UPDATE users SET {change} WHERE {ours}")).await;
        let after = scene.ensure(Some(&token)).await.unwrap();
        assert_eq!(after.changes, [Change::AccountRepaired], "{change}");
        let state = format!(
            "SELECT status::text || rbac_roles::text || login_type::text || username || name FROM users WHERE {ours}"
        );
        let roles = if change.contains("auditor") { "{auditor,owner}" } else { "{owner}" };
        let expected = format!("active{roles}nonecoder-k8s-operatorcoder-k8s-operator");
        assert_eq!(scene.one(&state).await, expected, "{change}");
        assert!(scene.ensure(Some(&token)).await.unwrap().changes.is_empty(), "{change}");
        scene.sql(&format!("UPDATE users SET rbac_roles = '{{owner}}' WHERE {ours}")).await;
    }
    scene.sql(&format!("UPDATE users SET deleted = true WHERE {ours}")).await;
    let again = scene.ensure(Some(&token)).await.unwrap();
    assert_eq!(again.changes, [Change::AccountMade, Change::Joined(1), Change::TokenMade]);
}

#[tokio::test]
async fn the_identity_of_the_deployment_comes_along() {
    let scene = Scene::new().await;
    assert_eq!(scene.ensure(None).await.unwrap().deployment_id, None);
    scene.sql("INSERT INTO site_configs (key, value) VALUES ('deployment_id', 'f19d2b54')").await;
    assert_eq!(scene.ensure(None).await.unwrap().deployment_id.as_deref(), Some("f19d2b54"));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_that_start_at_once_all_get_a_token_and_one_account() {
    let scene = Arc::new(Scene::new().await);
    let names: Vec<String> = (0..6).map(|n| format!("coder-k8s-operator-{n:016x}")).collect();
    let calls = names.iter().cloned().map(|name| {
        let scene = scene.clone();
        tokio::spawn(async move {
            let wanted = DatabaseTokenRequest { token_name: &name, ..scene.wanted(None) };
            Postgres::new(PostgresSettings::on_loopback()).ensure(&scene.dsn, None, &wanted).await
        })
    });
    for call in futures::future::join_all(calls).await {
        let ensured = call.unwrap().unwrap();
        assert!(ensured.is_only_one && scene.accepts(&ensured.token).await);
    }
    assert_eq!(scene.token_names().await, names);
    assert_eq!(scene.list("SELECT id::text FROM users WHERE username = 'coder-k8s-operator'").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_of_one_control_plane_end_with_one_live_token() {
    let scene = Arc::new(Scene::new().await);
    let calls = (0..4).map(|_| {
        let scene = scene.clone();
        tokio::spawn(async move { scene.ensure(None).await })
    });
    let mut live = Vec::new();
    for call in futures::future::join_all(calls).await {
        let ensured = call.unwrap().unwrap();
        if scene.accepts(&ensured.token).await {
            live.push(ensured.token);
        }
    }
    assert_eq!(live.len(), 1, "the last one has it");
    assert_eq!(scene.token_names().await, [NAME]);
    assert!(scene.ensure(live.first()).await.unwrap().changes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_at_once_leave_the_old_token_alone() {
    let mut scene = Scene::new().await;
    let first = scene.ensure(None).await.unwrap().token;
    scene.now += LIFETIME - DAY;
    let scene = Arc::new(scene);
    let calls = (0..4).map(|_| {
        let (scene, first) = (scene.clone(), first.clone());
        tokio::spawn(async move { scene.ensure(Some(&first)).await })
    });
    for call in futures::future::join_all(calls).await {
        assert!(!call.unwrap().unwrap().is_only_one);
    }
    assert!(scene.accepts(&first).await);
    assert_eq!(scene.tokens().await.len(), 2);
}
