//! What belongs to people is never touched.

use coder_k8s_coderd::postgres::{EMAIL, USERNAME};

use super::scene::{NAME, Scene};

impl Scene {
    /// Adds an account, and gives it a token.
    async fn account(&self, username: &str, email: &str, is_system: bool) {
        self.sql(&format!(
            "INSERT INTO users (id, email, username, hashed_password, created_at, updated_at, is_system, status) \
             VALUES (gen_random_uuid(), '{email}', '{username}', 'x', now(), now(), {is_system}, 'active'); \
             INSERT INTO api_keys (id, hashed_secret, user_id, last_used, expires_at, created_at, updated_at, \
             login_type, token_name, scopes, allow_list) SELECT '{username}', 'x', id, now(), \
             now() + interval '1 day', now(), now(), 'token', '{NAME}', '{{coder:all}}', '{{*:*}}' FROM users \
             WHERE username = '{username}'"
        ))
        .await;
    }
}

#[tokio::test]
async fn an_account_of_a_person_with_our_name_or_address_is_refused_and_left_alone() {
    let scene = Scene::new().await;
    for (username, email, is_system, named) in [
        (USERNAME, "ann@example.com", false, "username"),
        ("Coder-K8s-Operator", "ann@example.com", false, "username"),
        (USERNAME, EMAIL, false, "username"),
        ("ann", EMAIL, false, "e-mail"),
        ("ann", "Coder-K8s-Operator@coder-k8s.invalid", false, "e-mail"),
        (USERNAME, "robot@system", true, "username"),
    ] {
        scene.without_accounts().await;
        scene.account(username, email, is_system).await;
        let before = scene.fingerprint().await;
        let error = scene.ensure(None).await.unwrap_err();
        assert_eq!((error.reason().as_str(), error.stalled()), ("AccountTaken", true), "{username} {email}");
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(scene.revoke(NAME).await.unwrap(), 0, "{username} {email}");
        assert_eq!(scene.fingerprint().await, before, "{username} {email}");
    }
}

#[tokio::test]
async fn a_person_who_takes_our_name_later_stops_the_repair_and_not_the_account() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    scene.sql(&format!("UPDATE users SET username = 'renamed' WHERE email = '{EMAIL}'")).await;
    scene.account(USERNAME, "ann@example.com", false).await;
    let before = scene.fingerprint().await;
    assert_eq!(scene.ensure(Some(&token)).await.unwrap_err().reason().as_str(), "AccountTaken");
    assert_eq!(scene.fingerprint().await, before);
    assert!(scene.accepts(&token).await, "what works is not withdrawn");
}

#[tokio::test]
async fn a_deleted_account_of_a_person_is_no_obstacle() {
    let scene = Scene::new().await;
    scene.account(USERNAME, EMAIL, false).await;
    scene.sql(&format!("UPDATE users SET deleted = true WHERE username = '{USERNAME}'")).await;
    assert!(scene.ensure(None).await.unwrap().made);
}

#[tokio::test]
async fn tokens_and_accounts_of_others_stay_as_they_are() {
    let scene = Scene::new().await;
    scene.account("ann", "ann@example.com", false).await;
    scene.account("prebuilder", "prebuilder@system", true).await;
    let theirs = "SELECT xmin::text || ' ' || t::text FROM users AS t WHERE username <> 'coder-k8s-operator' \
                  UNION ALL SELECT xmin::text || ' ' || k::text FROM api_keys AS k WHERE id IN ('ann', 'prebuilder') \
                  ORDER BY 1";
    let before = scene.list(theirs).await;
    let token = scene.ensure(None).await.unwrap().token;
    scene.ensure(None).await.unwrap();
    scene.ensure(Some(&token)).await.unwrap();
    scene.revoke(NAME).await.unwrap();
    assert_eq!(scene.list(theirs).await, before);
    assert!(before.len() >= 4);
}

#[tokio::test]
async fn a_token_of_our_account_that_somebody_else_named_is_left_alone() {
    let scene = Scene::new().await;
    scene.ensure(None).await.unwrap();
    for name in ["mine", "coder-k8s-operator", &format!("{NAME}x"), &format!("{NAME}-next-next")] {
        scene
            .sql(&format!(
                "INSERT INTO api_keys SELECT ('copy-' || '{name}')::text, hashed_secret, user_id, last_used, expires_at, \
                 created_at, updated_at, login_type, lifetime_seconds, ip_address, '{name}', scopes, allow_list \
                 FROM api_keys WHERE token_name = '{NAME}'"
            ))
            .await;
    }
    scene.ensure(None).await.unwrap();
    assert_eq!(scene.tokens().await.len(), 5);
    assert_eq!(scene.revoke(NAME).await.unwrap(), 1);
    assert_eq!(scene.tokens().await.len(), 4);
}
