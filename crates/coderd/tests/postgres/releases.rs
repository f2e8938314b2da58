//! The same life on every release whose tables differ.

use coder_k8s_coderd::postgres::{Change, DatabaseTokenRequest};
use coder_k8s_testbed::postgres::shared;

use super::scene::{DAY, LIFETIME, NAME, OTHER, Scene};

/// Each migration that changes what matters, and the last one.
const RELEASES: [Option<u32>; 6] = [Some(308), Some(371), Some(373), Some(433), Some(555), None];

#[tokio::test]
async fn the_whole_life_of_access_works_on_every_release() {
    for release in RELEASES {
        Box::pin(whole_life(release)).await;
    }
}

async fn whole_life(release: Option<u32>) {
    let mut scene = Scene::at(release).await;
    let begun = scene.now;
    let first = scene.ensure(None).await.unwrap_or_else(|error| panic!("{release:?}: {error}"));
    assert!(first.made && first.is_only_one, "{release:?}");
    assert_eq!(first.changes, [Change::AccountMade, Change::Joined(1), Change::TokenMade], "{release:?}");
    assert!(scene.accepts(&first.token).await, "{release:?}");
    assert_eq!(first.renew_at.duration_since(begun).as_hours(), 24 * 20, "{release:?}");

    let before = scene.fingerprint().await;
    let same = scene.ensure(Some(&first.token)).await.unwrap();
    assert!(!same.made && same.is_only_one && same.changes.is_empty(), "{release:?}: {:?}", same.changes);
    assert_eq!((same.expires, same.renew_at), (first.expires, first.renew_at), "{release:?}");
    assert_eq!(scene.fingerprint().await, before, "{release:?}");

    scene.now += LIFETIME - DAY;
    let renewed = scene.ensure(Some(&first.token)).await.unwrap();
    assert!(renewed.made && !renewed.is_only_one, "{release:?}");
    assert!(scene.accepts(&first.token).await && scene.accepts(&renewed.token).await, "{release:?}");
    let is_only_one = scene.ensure(Some(&renewed.token)).await.unwrap();
    assert_eq!(is_only_one.changes, [Change::TokensRemoved(1), Change::TokenRenamed], "{release:?}");
    assert!(!scene.accepts(&first.token).await && scene.accepts(&renewed.token).await, "{release:?}");
    assert_eq!(scene.token_names().await, [NAME], "{release:?}");

    assert_eq!(scene.revoke(OTHER).await.unwrap(), 0, "{release:?}");
    assert_eq!(scene.revoke(NAME).await.unwrap(), 1, "{release:?}");
    assert!(scene.tokens().await.is_empty(), "{release:?}");
    let account =
        "SELECT status::text || ' ' || rbac_roles::text FROM users WHERE username = 'coder-k8s-operator'";
    assert_eq!(scene.one(account).await, "suspended {}", "{release:?}");
    let before = scene.fingerprint().await;
    assert_eq!(scene.revoke(NAME).await.unwrap(), 0, "{release:?}");
    assert_eq!(scene.fingerprint().await, before, "{release:?}");

    let back = scene.ensure(Some(&renewed.token)).await.unwrap();
    assert_eq!(back.changes, [Change::AccountRepaired, Change::TokenMade], "{release:?}");
    assert_eq!(scene.one(account).await, "active {owner}", "{release:?}");
    assert!(scene.accepts(&back.token).await, "{release:?}");
}

#[tokio::test]
async fn a_token_may_do_everything_in_the_words_of_each_release() {
    for (release, sql, expected) in [
        (Some(308), "SELECT scope::text FROM api_keys", "all"),
        (Some(371), "SELECT scopes::text || ' ' || allow_list::text FROM api_keys", "{all} {*:*}"),
        (None, "SELECT scopes::text || ' ' || allow_list::text FROM api_keys", "{coder:all} {*:*}"),
    ] {
        let scene = Scene::at(release).await;
        scene.ensure(None).await.unwrap();
        assert_eq!(scene.one(sql).await, expected, "{release:?}");
    }
}

#[tokio::test]
async fn access_survives_the_upgrade_of_coderd() {
    let old = Scene::at(Some(308)).await;
    let token = old.ensure(None).await.unwrap().token;
    // The migration that moves the scope of every key, as coderd runs it.
    let module = coder_k8s_testbed::binaries::coder_module().unwrap();
    let all = coder_k8s_testbed::binaries::coder_migrations(&module).unwrap();
    for (number, path) in all.iter().filter(|(number, _)| *number > 308) {
        old.sql(&std::fs::read_to_string(path).unwrap()).await;
        old.sql(&format!("UPDATE schema_migrations SET version = {number}")).await;
    }
    let before = old.fingerprint().await;
    let after = old.ensure(Some(&token)).await.unwrap();
    assert!(!after.made && after.changes.is_empty(), "{:?}", after.changes);
    assert_eq!(old.fingerprint().await, before);
}

#[tokio::test]
async fn a_coderd_that_is_too_old_is_told_by_the_column_that_it_lacks() {
    let scene = Scene::at(Some(307)).await;
    let error = scene.ensure(None).await.unwrap_err();
    assert_eq!(error.reason().as_str(), "SchemaUnknown");
    assert!(error.stalled() && error.to_string().contains("users.is_system"), "{error}");
    assert_eq!(scene.revoke(NAME).await.unwrap(), 0, "there is nothing of ours in there");
}

#[tokio::test]
async fn tables_that_are_not_known_are_not_written() {
    let scene = Scene::new().await;
    scene.sql("TRUNCATE users CASCADE").await;
    for (table, change, undo, named) in [
        ("users", "ADD COLUMN shoe_size int NOT NULL", "DROP COLUMN shoe_size", "users.shoe_size"),
        ("api_keys", "ADD COLUMN color text NOT NULL", "DROP COLUMN color", "api_keys.color"),
        (
            "organization_members",
            "ADD COLUMN rank int NOT NULL",
            "DROP COLUMN rank",
            "organization_members.rank",
        ),
        (
            "api_keys",
            "RENAME COLUMN hashed_secret TO secret_hash",
            "RENAME COLUMN secret_hash TO hashed_secret",
            "api_keys.hashed_secret",
        ),
        (
            "users",
            "ADD CONSTRAINT no_robots CHECK (username NOT LIKE '%operator%')",
            "DROP CONSTRAINT no_robots",
            "no_robots",
        ),
    ] {
        scene.sql(&format!("ALTER TABLE {table} {change}")).await;
        scene.is_not_known(named).await;
        scene.sql(&format!("ALTER TABLE {table} {undo}")).await;
    }
    for (kind, label) in [("api_key_scope", "coder:all"), ("login_type", "none"), ("user_status", "active")] {
        scene.sql(&format!("ALTER TYPE {kind} RENAME VALUE '{label}' TO 'x'")).await;
        scene.is_not_known(label).await;
        scene.sql(&format!("ALTER TYPE {kind} RENAME VALUE 'x' TO '{label}'")).await;
    }
    assert!(scene.ensure(None).await.unwrap().made);
}

impl Scene {
    async fn is_not_known(&self, named: &str) {
        let before = self.fingerprint().await;
        let error = self.ensure(None).await.unwrap_err();
        assert_eq!(error.reason().as_str(), "SchemaUnknown", "{error}");
        assert!(error.to_string().contains(named), "{named}: {error}");
        assert_eq!(self.fingerprint().await, before, "{named}");
    }
}

#[tokio::test]
async fn a_new_column_with_a_default_does_no_harm() {
    let scene = Scene::new().await;
    scene.sql("ALTER TABLE users ADD COLUMN shoe_size int NOT NULL DEFAULT 42, ADD COLUMN hat text").await;
    assert!(scene.ensure(None).await.unwrap().made);
}

#[tokio::test]
async fn a_database_that_coderd_has_not_set_up_yet_is_waited_for() {
    let scene = Scene::of(shared().await.database().await.unwrap()).await;
    let error = scene.ensure(None).await.unwrap_err();
    assert_eq!((error.reason().as_str(), error.stalled()), ("DatabaseNotMigrated", false));
    assert_eq!(scene.revoke(NAME).await.unwrap(), 0);

    let scene = Scene::new().await;
    for (change, reason) in [
        ("UPDATE schema_migrations SET dirty = true", "DatabaseNotMigrated"),
        ("DELETE FROM schema_migrations", "DatabaseNotMigrated"),
        (
            "INSERT INTO schema_migrations VALUES (1, false); SET session_replication_role = replica; UPDATE organizations SET deleted = true",
            "NoOrganization",
        ),
    ] {
        scene.sql(change).await;
        let error = scene.ensure(None).await.unwrap_err();
        assert_eq!((error.reason().as_str(), error.stalled()), (reason, false), "{change}");
    }
    scene.sql("UPDATE organizations SET deleted = false").await;
    assert!(scene.ensure(None).await.unwrap().made);
}

#[tokio::test]
async fn tables_in_another_schema_are_found_by_the_urls_search_path() {
    let mut scene = Scene::new().await;
    scene.sql("ALTER SCHEMA public RENAME TO coder").await;
    assert_eq!(scene.ensure(None).await.unwrap_err().reason().as_str(), "DatabaseNotMigrated");
    let role = scene.database.name().to_owned();
    scene.dsn = super::scene::dsn(&format!("{}&search_path=coder&role={role}", scene.database.url()));
    let wanted = DatabaseTokenRequest { token_name: OTHER, ..scene.wanted(None) };
    assert!(scene.ensure_as(&wanted).await.unwrap().made);
}
