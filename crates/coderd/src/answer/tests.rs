use coder_k8s_api::Reason;
use secrecy::zeroize::Zeroizing;

use super::*;
use crate::error::RetryAdvice;

fn answer(status: u16, media: Media, body: &str) -> Answer {
    let body = Zeroizing::new(body.as_bytes().to_vec());
    Answer { status, media, retry_after: None, location: None, from_coderd: true, body }
}

fn of(answer: &Answer, surface: Surface, secrets: &[&str]) -> Option<ErrorKind> {
    let own = Url::parse("http://coder.example:7080").unwrap();
    answer.refusal(surface, &own, secrets.iter().copied())
}

fn says(status: u16, message: &str, detail: &str, surface: Surface) -> ErrorKind {
    let body = serde_json::json!({ "message": message, "detail": detail }).to_string();
    of(&answer(status, Media::Json, &body), surface, &[]).unwrap()
}

#[test]
fn refusals_of_coderd_are_told_apart_by_status_and_text() {
    use Surface::{AddsLicense, HidesForbidden, Plain};
    let duplicate = r#"insert: pq: duplicate key value violates unique constraint "licenses_jwt_key""#;
    let table = [
        (400, "Validation failed.", "", Plain, Reason::Invalid),
        (400, "Invalid license", "license has multiple issues", AddsLicense, Reason::InvalidLicense),
        (400, "License cannot be used on this deployment!", "", AddsLicense, Reason::InvalidLicense),
        (400, "Validation failed.", "", AddsLicense, Reason::InvalidLicense),
        (
            401,
            "You are signed out or your session has expired.",
            "API key is invalid.",
            Plain,
            Reason::Unauthenticated,
        ),
        (403, "Forbidden.", "", Plain, Reason::Forbidden),
        (403, "Forbidden.", "", AddsLicense, Reason::Forbidden),
        (403, "Workspace Proxy is a Premium feature. Contact sales!", "", Plain, Reason::NotEntitled),
        (
            403,
            "External provisioner daemons is an Enterprise feature. Contact sales!",
            "",
            Plain,
            Reason::NotEntitled,
        ),
        (404, "Route not found.", "", Plain, Reason::NotSupported),
        (404, "Resource not found or you do not have access to this resource", "", Plain, Reason::NotFound),
        (404, "Unknown license ID", "", Plain, Reason::NotFound),
        (404, "The initial user has not been created!", "", Plain, Reason::NotFound),
        (408, "", "", Plain, Reason::ServerError),
        (409, "User already exists.", "", Plain, Reason::Duplicate),
        (413, "Request body too large.", "", Plain, Reason::Invalid),
        (418, "teapot", "", Plain, Reason::Invalid),
        (429, "You've been rate limited", "", Plain, Reason::RateLimited),
        (500, "Failed to install license", duplicate, AddsLicense, Reason::Duplicate),
        (409, "License already exists", "", AddsLicense, Reason::Duplicate),
        (500, "Failed to install license", "disk full", AddsLicense, Reason::ServerError),
        (500, "Internal", duplicate, Plain, Reason::ServerError),
        (500, "Internal error", "insert: unauthorized: rbac: forbidden", HidesForbidden, Reason::Forbidden),
        (500, "Internal error", "insert: unauthorized: rbac: forbidden", Plain, Reason::ServerError),
        (500, "Internal error", "connection refused", HidesForbidden, Reason::ServerError),
        (502, "", "", Plain, Reason::ServerError),
        (503, "Healthcheck timed out.", "", Plain, Reason::ServerError),
    ];
    for (status, message, detail, surface, expected) in table {
        let kind = says(status, message, detail, surface);
        assert_eq!(kind.reason(), expected, "{status} {message} {detail}");
    }
    assert!((200..300).all(|status| of(&answer(status, Media::Json, ""), Plain, &[]).is_none()));
}

#[test]
fn who_is_not_coderd_is_not_taken_for_it() {
    let page = "<html>404</html>";
    for status in [400, 401, 403, 404, 409] {
        for (media, what) in [(Media::Html, Unexpected::WebPage), (Media::Other, Unexpected::ContentType)] {
            let kind = of(&answer(status, media, page), Surface::AddsLicense, &[]).unwrap();
            assert_eq!(kind, ErrorKind::UnexpectedAnswer { status, what });
            assert_eq!(kind.retry(), RetryAdvice::Backoff);
        }
    }
    let mut gateway = answer(404, Media::Json, r#"{"message":"no Route matched with those values"}"#);
    gateway.from_coderd = false;
    let kind = of(&gateway, Surface::Plain, &[]).unwrap();
    assert_eq!(kind, ErrorKind::UnexpectedAnswer { status: 404, what: Unexpected::NotCoderd });
    let down = of(&answer(503, Media::Html, page), Surface::Plain, &[]).unwrap();
    assert_eq!(down.reason(), Reason::ServerError);
    let limited = of(&answer(429, Media::Html, page), Surface::Plain, &[]).unwrap();
    assert_eq!(limited.reason(), Reason::RateLimited);
}

#[test]
fn a_redirect_names_the_other_host_and_nothing_more() {
    let to = |location: Option<&str>| {
        let mut answer = answer(307, Media::Html, "");
        answer.location = location.map(str::to_owned);
        of(&answer, Surface::Plain, &[]).unwrap()
    };
    let redirected = |to: &str| ErrorKind::Redirected { to: to.to_owned() };
    assert_eq!(to(Some("https://me:secret@sso.example/login?token=x")), redirected("sso.example"));
    assert_eq!(to(Some("http://sso.example:8443/")), redirected("sso.example:8443"));
    assert_eq!(to(Some("/login")), redirected("coder.example:7080"));
    assert_eq!(to(None).reason(), Reason::UnexpectedAnswer);
}

#[test]
fn the_retry_delay_is_what_the_server_asked_for() {
    let mut limited = answer(429, Media::Json, "{}");
    limited.retry_after = Some(Duration::from_mins(1));
    let kind = of(&limited, Surface::Plain, &[]).unwrap();
    assert_eq!(kind.retry(), RetryAdvice::After(Duration::from_mins(1)));
    for seconds in [1_000_000_000, u64::MAX] {
        limited.retry_after = Some(Duration::from_secs(seconds));
        let kind = of(&limited, Surface::Plain, &[]).unwrap();
        assert_eq!(kind.retry(), RetryAdvice::After(crate::intervals::RATE_LIMIT_DELAY_MAX), "{seconds}");
    }
    limited.retry_after = None;
    assert!(matches!(of(&limited, Surface::Plain, &[]).unwrap().retry(), RetryAdvice::After(_)));
}

#[test]
fn a_message_is_short_and_free_of_what_was_sent() {
    let token = "abcdefghij-klmnopqrstuvwxyz012345";
    let jwt = "eyJhbGciOiJF.eyJqdGkiOiJm.c2lnbmF0dXJl";
    let body = serde_json::json!({
        "message": format!("bad {token} and {jwt}\nor eyJqdGkiOiJm {}", "x".repeat(500)),
        "detail": "the detail",
        "validations": [{ "field": "license", "detail": format!("must not be {jwt}") }],
    });
    let kind = of(&answer(400, Media::Json, &body.to_string()), Surface::Plain, &[token, jwt]).unwrap();
    let text = format!("{kind} {kind:?}");
    for part in [token, jwt, "klmnopqrstuvwxyz012345", "eyJqdGkiOiJm", "the detail", "\n"] {
        assert!(!text.contains(part), "{part} in {text}");
    }
    let ErrorKind::Invalid(message) = kind else { panic!("{kind:?}") };
    assert!(message.starts_with("bad [hidden] and [hidden] or [hidden] xxx"), "{message}");
    assert!(message.len() <= MAX_MESSAGE_CHARS);
}

#[test]
fn a_credential_that_was_not_sent_with_this_request_is_hidden_by_its_form() {
    for (text, shown) in [
        ("no such token: abcdefghij-klmnopqrstuvwxyz012345", "no such token: abcdefghij-[hidden]"),
        ("key (GVfJbRxMdc2V2PWVMWsb5kXsrQbFyhQJhZcGIJFbPAA) unknown", "key ([hidden]) unknown"),
        ("eyJhbGciOiJFZERTQSIsImtpZCI6IjIwMjIt.eyJ0", "[hidden].eyJ0"),
        ("bad RDKjswRMMqukc7p-mA3F-XQaaRBRre0-4EmxX4Bwda4", "bad [hidden]"),
        // What people look for stays.
        ("no key 6f6d7a0e-93ab-4bb5-8c4c-0a1b2c3d4e5f", "no key 6f6d7a0e-93ab-4bb5-8c4c-0a1b2c3d4e5f"),
        ("feature external_provisioner_daemons is off", "feature external_provisioner_daemons is off"),
        ("Ümläut 2026-11-17T10:00:00.123456789Z", "Ümläut 2026-11-17T10:00:00.123456789Z"),
    ] {
        let body = serde_json::json!({ "message": text }).to_string();
        let kind = of(&answer(400, Media::Json, &body), Surface::Plain, &[]).unwrap();
        assert_eq!(kind, ErrorKind::Invalid(shown.to_owned()));
    }
}

#[test]
fn the_fields_of_a_failed_validation_are_named_without_their_details() {
    let body = r#"{"message":"Validation failed.","validations":[{"field":"name","detail":"S3CR3T"}]}"#;
    let kind = of(&answer(400, Media::Json, body), Surface::Plain, &[]).unwrap();
    assert_eq!(kind, ErrorKind::Invalid("Validation failed. (name)".to_owned()));
    let odd = r#"{"message":null,"validations":null}"#;
    let kind = of(&answer(400, Media::Json, odd), Surface::Plain, &[]).unwrap();
    assert_eq!(kind, ErrorKind::Invalid("status 400 without a message".to_owned()));
}

#[test]
fn an_answer_of_more_values_than_coderd_sends_is_refused_before_it_is_decoded() {
    let list = |count: usize| answer(200, Media::Json, &format!("[{}{{}}]", "{},".repeat(count - 1)));
    let too_many = ErrorKind::UnexpectedAnswer { status: 200, what: Unexpected::TooMany };
    // Two for each: the object, and the comma before it.
    assert!(list(MAX_ANSWER_VALUES / 2).list::<IgnoredAny>().is_ok());
    assert_eq!(list(MAX_ANSWER_VALUES / 2 + 1).list::<IgnoredAny>().unwrap_err(), too_many);
    assert_eq!(list(MAX_ANSWER_VALUES).nothing(), Err(too_many));
    for (json, count) in [
        ("", 0),
        ("7", 0),
        (r#"{"a":1,"b":[2,{}]}"#, 5),
        (r#"{"a,[{":"],\",[","b":"\\"}"#, 2),
        (r#""never closed [,,,"#, 0),
    ] {
        assert_eq!(count_values(json.as_bytes()), count, "{json}");
    }
}

#[test]
fn words_are_short_and_notes_are_few() {
    #[derive(Debug, Deserialize)]
    struct Said {
        #[serde(deserialize_with = "word")]
        id: String,
        #[serde(default, deserialize_with = "word_or_empty")]
        name: String,
        #[serde(default, deserialize_with = "notes")]
        notes: Vec<String>,
    }
    let read = |value: serde_json::Value| answer(200, Media::Json, &value.to_string()).object::<Said>();
    let long = "x".repeat(MAX_WORD_BYTES + 1);
    let said = read(serde_json::json!({"id": long[1..], "name": null, "notes": null})).unwrap();
    assert!(said.id.len() == MAX_WORD_BYTES && said.name.is_empty() && said.notes.is_empty());
    let too_many = ErrorKind::UnexpectedAnswer { status: 200, what: Unexpected::TooMany };
    assert_eq!(read(serde_json::json!({"id": long})).unwrap_err(), too_many);
    assert_eq!(read(serde_json::json!({"id": "1", "name": long})).unwrap_err(), too_many);
    assert!(matches!(
        read(serde_json::json!({"id": null})).unwrap_err(),
        ErrorKind::UnexpectedAnswer { what: Unexpected::Undecodable { .. }, .. }
    ));
    let said = read(serde_json::json!({"id": "1", "notes": vec!["ä".repeat(MAX_NOTE_BYTES); MAX_NOTES + 5]}));
    let notes = said.unwrap().notes;
    assert_eq!(notes.len(), MAX_NOTES + 1);
    assert!(notes[0].len() <= MAX_NOTE_BYTES && notes[0].ends_with('…'));
    assert_eq!(notes[MAX_NOTES], "and 5 more, which are not shown");
}

#[test]
fn a_refusal_that_is_too_long_to_search_is_not_shown() {
    let message = format!("{} secret-token", "x".repeat(MAX_REFUSAL_BYTES));
    let kind = says(400, &message, "", Surface::Plain);
    assert_eq!(
        kind,
        ErrorKind::Invalid("status 400 with a message of 8205 bytes, which is too long to show".into())
    );
}
