use std::collections::BTreeSet;

use super::*;

const NAME: &str = "n";
const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn at(hours: i32) -> Timestamp {
    Timestamp::UNIX_EPOCH + HOUR * (hours + 1_000_000)
}

/// A token of 30 hours whose secret is its id.
fn row(id: &str, name: &str, created: i32) -> TokenRow {
    TokenRow {
        id: id.to_owned(),
        digest: Sha256::digest(id).to_vec(),
        name: name.to_owned(),
        created: at(created),
        expires: at(created + 30),
        lifetime: HOUR * 30,
        unrestricted: true,
    }
}

fn decide(tokens: &[TokenRow], existing: Option<&str>, replace: bool) -> TokenPlan {
    let existing = existing.map(|id| SecretString::from(format!("{id}-{id}")));
    let request = DatabaseTokenRequest {
        token_name: NAME,
        existing: existing.as_ref(),
        lifetime: HOUR * 30,
        now: at(0),
        replace,
    };
    token(tokens, &TokenNames::of(NAME), &request)
}

fn keep(id: &str, remove: &[&str], rename: bool) -> TokenPlan {
    TokenPlan::Keep { id: id.to_owned(), remove: remove.iter().map(|id| (*id).to_owned()).collect(), rename }
}

fn make(name: &str, remove: &[&str], keeps_existing: bool) -> TokenPlan {
    let remove = remove.iter().map(|id| (*id).to_owned()).collect();
    TokenPlan::Make { name: name.to_owned(), remove, keeps_existing }
}

#[test]
fn every_state_of_the_tokens_has_its_step() {
    let (plain, next) = ("n", "n-next");
    let young = |id, name| row(id, name, -19);
    let due = |id, name| row(id, name, -20);
    let dead = |id, name| row(id, name, -30);
    for (case, tokens, existing, replace, expected) in [
        ("nothing", vec![], None, false, make(plain, &[], false)),
        ("one, and nobody has it", vec![young("a", plain)], None, false, make(plain, &["a"], false)),
        ("a young one", vec![young("a", plain)], Some("a"), false, keep("a", &[], false)),
        ("a young one, refused", vec![young("a", plain)], Some("a"), true, make(next, &[], true)),
        ("a due one", vec![due("a", plain)], Some("a"), false, make(next, &[], true)),
        ("a dead one", vec![dead("a", plain)], Some("a"), false, make(plain, &["a"], false)),
        ("another one", vec![young("a", plain)], Some("b"), false, make(plain, &["a"], false)),
        (
            "renewed and stored",
            vec![due("a", plain), young("b", next)],
            Some("b"),
            false,
            keep("b", &["a"], true),
        ),
        (
            "renewed and not stored",
            vec![due("a", plain), young("b", next)],
            Some("a"),
            false,
            make(next, &["b"], true),
        ),
        (
            "renewed, stored and due again",
            vec![dead("a", plain), due("b", next)],
            Some("b"),
            false,
            make(plain, &["a"], true),
        ),
        (
            "refused, replaced, and the new one is refused too",
            vec![young("a", plain), young("b", next)],
            Some("b"),
            true,
            make(plain, &["a"], true),
        ),
        (
            "an old operator came back with the first one",
            vec![young("a", plain), young("b", next)],
            Some("a"),
            false,
            keep("a", &["b"], false),
        ),
        (
            "both lost",
            vec![young("a", plain), young("b", next)],
            None,
            false,
            make(plain, &["a", "b"], false),
        ),
    ] {
        assert_eq!(decide(&tokens, existing, replace), expected, "{case}");
    }
}

#[test]
fn a_token_counts_only_with_its_secret() {
    let mut stolen = row("a", "n", -1);
    stolen.digest = Sha256::digest("other").to_vec();
    assert_eq!(decide(&[stolen], Some("a"), false), make("n", &["a"], false));
}

#[test]
fn a_token_that_may_not_do_everything_is_renewed() {
    let narrow = TokenRow { unrestricted: false, ..row("a", "n", -1) };
    assert_eq!(decide(&[narrow], Some("a"), false), make("n-next", &[], true));
}

#[test]
fn only_the_account_with_both_marks_is_ours() {
    let account = |email: &str, is_system| Account {
        id: "1".to_owned(),
        email: email.to_owned(),
        username: USERNAME.to_owned(),
        is_system,
        is_correct: true,
    };
    assert!(account(EMAIL, true).is_ours());
    for (email, is_system) in [(EMAIL, false), ("ann@example.com", true), ("ann@example.com", false)] {
        let other = account(email, is_system);
        assert!(!other.is_ours());
        assert!(matches!(
            super::account(&[other]),
            Err(DatabaseErrorKind::AccountTaken { what: "username", .. })
        ));
    }
    assert_eq!(super::account(&[]), Ok(AccountPlan::Make));
    let broken = Account { is_correct: false, ..account(EMAIL, true) };
    assert_eq!(super::account(&[broken]), Ok(AccountPlan::Repair { id: "1".to_owned() }));
}

#[test]
fn a_token_has_the_shape_of_coderds_own() {
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let token = random_token().unwrap();
        let (id, secret) = token.expose_secret().split_once('-').unwrap();
        assert_eq!((id.len(), secret.len()), (ID_CHARS, SECRET_CHARS));
        assert!(id.chars().chain(secret.chars()).all(|c| c.is_ascii_alphanumeric()));
        seen.extend(secret.chars());
    }
    assert_eq!(seen.len(), ALPHABET.len(), "every character comes up");
    assert_eq!(usize::from(UNBIASED_BYTES) % ALPHABET.len(), 0, "and none more often than another");
}

#[test]
fn a_token_is_taken_apart_at_its_first_dash() {
    let parts = |text: &str| TokenParts::of(&SecretString::from(text));
    let whole = parts(" id-sec-ret\n").unwrap();
    assert_eq!(whole.id, "id");
    assert_eq!(whole.digest, <[u8; 32]>::from(Sha256::digest("sec-ret")));
    for text in ["", "id", "id-", "-secret", "-"] {
        assert!(parts(text).is_none(), "{text}");
    }
}

#[test]
fn the_other_name_is_always_the_one_that_is_free() {
    let names = TokenNames::of("a");
    assert_eq!(names.both(), ["a", "a-next"]);
    assert_eq!((names.other("a"), names.other("a-next")), ("a-next", "a"));
}
