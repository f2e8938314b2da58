//! Neither password nor token is in anything that is shown.

use coder_k8s_coderd::postgres::{Postgres, PostgresSettings};
use coder_k8s_testbed::postgres::{Proxy, ProxyFault, shared};
use secrecy::{ExposeSecret as _, SecretString};

use super::scene::{NAME, Scene, dsn, hasty};

const CANARY: &str = "0123456789-canarycanarycanarycana";

#[tokio::test]
async fn no_error_shows_a_password_or_a_token() {
    let scene = Scene::new().await;
    let existing = SecretString::from(CANARY);
    let password = scene.database.password().to_owned();
    let wanted = scene.wanted(Some(&existing));
    let ensured = scene.ensure_as(&wanted).await.unwrap();
    let made = ensured.token.expose_secret().to_owned();
    let mut shown = vec![format!("{ensured:?} {wanted:?} {:?}", scene.dsn)];

    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    let through = dsn(&scene.database.url_through(proxy.port()));
    let operator = Postgres::new(hasty());
    for trouble in [
        ProxyFault::Close,
        ProxyFault::Hang,
        ProxyFault::CutBefore("INSERT"),
        ProxyFault::CutAfter("COMMIT"),
        ProxyFault::SilentAfter("COMMIT"),
    ] {
        proxy.set(trouble);
        let error = operator.ensure(&through, None, &wanted).await.unwrap_err();
        shown.push(format!("{error} {error:?}"));
    }
    for change in [
        // Messages of the server about these quote the row.
        "ALTER TABLE api_keys ADD CONSTRAINT c CHECK (hashed_secret IS NULL) NOT VALID",
        "ALTER TABLE api_keys DROP CONSTRAINT c, ALTER COLUMN ip_address TYPE text, \
         ADD CONSTRAINT d CHECK (length(ip_address) > 99) NOT VALID",
        "CREATE FUNCTION f() RETURNS trigger AS $$ BEGIN RAISE '%', NEW; END $$ LANGUAGE plpgsql; \
         CREATE TRIGGER t BEFORE INSERT ON api_keys FOR EACH ROW EXECUTE FUNCTION f()",
    ] {
        scene.sql(change).await;
        let error = scene.ensure_as(&wanted).await.unwrap_err();
        shown.push(format!("{error} {error:?}"));
    }
    let wrong = dsn(&scene.database.url().replace(&password, "wrong-canary"));
    let error = Postgres::new(PostgresSettings::on_loopback()).revoke(&wrong, None, NAME).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));

    let (id, secret) = made.split_once('-').unwrap();
    for text in &shown {
        for hidden in [password.as_str(), id, secret, "0123456789", "canary"] {
            assert!(!text.contains(hidden), "{hidden} is in: {text}");
        }
    }
    assert_eq!(shown.len(), 10);
}
