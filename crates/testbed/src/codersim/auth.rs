//! Authentication and rate limits.

use jiff::SignedDuration;
use sha2::{Digest, Sha256};

use super::{
    message::{Asked, Reply},
    proxy_wire,
    state::{State, User},
};

const SIGNED_OUT: &str = "You are signed out or your session has expired. Please sign in again to continue.";
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// The credential of a request: a session token, else the key of a daemon, else the token of a proxy.
pub(super) fn credential(asked: &Asked) -> Option<&str> {
    session_token(asked)
        .or_else(|| asked.header("coder-provisioner-daemon-key"))
        .or_else(|| asked.header(proxy_wire::TOKEN))
}

/// The session token of a request, in the order of coderd: a cookie takes precedence over the header.
pub(super) fn session_token(asked: &Asked) -> Option<&str> {
    let cookie = asked.header("cookie").and_then(|cookies| {
        cookies.split(';').find_map(|cookie| cookie.trim().strip_prefix("coder_session_token="))
    });
    let bearer = asked.header("authorization").and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    cookie
        .or_else(|| asked.param("coder_session_token"))
        .or_else(|| asked.header("coder-session-token"))
        .or(bearer)
        .or_else(|| asked.param("access_token"))
}

impl State {
    /// The user of a request, or the refusal of coderd.
    pub(super) fn authenticate(&mut self, asked: &Asked) -> Result<&User, Reply> {
        let refuse = |detail: &str| {
            Reply::error(401, SIGNED_OUT)
                .detail(detail)
                .header("WWW-Authenticate", r#"Bearer realm="coder", error="invalid_token""#)
        };
        let text = session_token(asked)
            .ok_or_else(|| refuse("Cookie \"coder_session_token\" or query parameter must be provided."))?;
        let parts: Vec<_> = text.split('-').collect();
        let [id, secret] = parts.as_slice() else {
            let count = parts.len();
            return Err(refuse(&format!(
                "Invalid API key format: incorrect amount of API key parts, expected 2 got {count}"
            )));
        };
        for (part, text, expected) in [("ID", id, 10), ("secret", secret, 22)] {
            let length = text.len();
            if length != expected {
                return Err(refuse(&format!(
                    "Invalid API key format: invalid API key {part} length, expected {expected} got {length}"
                )));
            }
        }
        let now = self.now();
        let token = self.tokens.iter_mut().find(|token| token.id == *id);
        let token = token.ok_or_else(|| refuse("API key is invalid."))?;
        if token.hashed_secret != Sha256::digest(secret).as_slice() {
            return Err(refuse("API key secret is invalid."));
        }
        if token.expires_at <= now {
            return Err(refuse(&format!("API key expired at \"{}\".", token.expires_at)));
        }
        if token.session {
            token.expires_at = now + SignedDuration::from_hours(24);
        }
        let user_id = token.user_id.clone();
        let user = self.users.iter_mut().find(|user| user.id == user_id);
        let user = user.ok_or_else(|| refuse("API key is invalid."))?;
        match user.status {
            "dormant" => user.status = "active",
            "active" => {}
            other => {
                let message = format!(
                    "User is not active (status = {other:?}). Contact an admin to reactivate your account."
                );
                return Err(Reply::error(401, &message));
            }
        }
        Ok(user)
    }

    /// The rate limiter in front of `/api/v2`.
    pub(super) fn limit(&mut self, asked: &Asked) -> Result<(), Reply> {
        let Some(limit) = self.rate_limit else { return Ok(()) };
        let caller = self.authenticate(asked).ok().map(|user| (user.id.clone(), user.is_owner()));
        let bypass = asked
            .header("x-coder-bypass-ratelimit")
            .is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"));
        if let (true, Some((_, owner))) = (bypass, &caller) {
            let refusal = "\"X-Coder-Bypass-Ratelimit\" header provided but user is not \"owner\"";
            return if *owner { Ok(()) } else { Err(Reply::text(428, refusal)) };
        }
        let now = self.now();
        let key = (caller.map_or_else(String::new, |(id, _)| id), asked.path.clone());
        let (since, count) = self.windows.entry(key).or_insert((now, 0));
        if now.duration_since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count <= limit {
            return Ok(());
        }
        let message = format!("You've been rate limited for sending more than {limit} requests in 1m0s.");
        let reset = (*since + WINDOW).as_second().to_string();
        Err(Reply::error(429, &message)
            .header("Retry-After", "60")
            .header("X-RateLimit-Limit", &limit.to_string())
            .header("X-RateLimit-Remaining", "0")
            .header("X-RateLimit-Reset", &reset))
    }
}
