//! The one narrow place that every call to coderd passes.
//!
//! Here a call gets its deadline, waits for its slot in the server's budget, carries its credential, is counted,
//! and can be made to fail. What the calls are is in the modules of their topics.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};
use url::Url;

use crate::{
    answer::{self, Answer},
    call::{Auth, Call, Request},
    classify,
    connector::Shared,
    decode,
    error::{Error, ErrorKind, Outage},
    faults::{EXIT_CODE, Fault},
    servers::{Budget, CallOutcome, Hold, Permit, Why},
    target::{BadTarget, Origin},
};

const SESSION_TOKEN: &str = "coder-session-token";
const PROVISIONER_KEY: &str = "coder-provisioner-daemon-key";
const PROXY_TOKEN: &str = "coder-external-proxy-token";
const BYPASS_RATE_LIMIT: &str = "x-coder-bypass-ratelimit";
/// The answer to a bypass that the caller may not use.
const BYPASS_REFUSED: u16 = 428;

/// A client of one coderd. Outside this crate every client has a credential: see [`crate::IdentifiedServer`].
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    origin: Arc<Origin>,
    /// Whether the port is found by the resolver and must not be in the URL.
    rerouted: bool,
    budget: Arc<Budget>,
    pool: Arc<reqwest::Client>,
    credential: Option<Credential>,
    /// Whether the rate-limit bypass was refused to this credential.
    limited: Arc<AtomicBool>,
    deadline: Duration,
}

/// A session token, ready to be sent.
#[derive(Clone)]
struct Credential {
    header: HeaderValue,
    secret: SecretString,
}

impl Credential {
    fn new(token: &SecretString) -> Result<Self, BadTarget> {
        let secret: SecretString = token.expose_secret().trim().into();
        let header = sensitive(&secret).ok_or(BadTarget::Token)?;
        Ok(Self { header, secret })
    }
}

fn sensitive(secret: &SecretString) -> Option<HeaderValue> {
    let text = Some(secret.expose_secret()).filter(|text| !text.is_empty())?;
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.origin.url.as_str())
            .field("authenticated", &self.credential.is_some())
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(
        shared: Arc<Shared>,
        origin: Origin,
        rerouted: bool,
        budget: Arc<Budget>,
        pool: Arc<reqwest::Client>,
    ) -> Self {
        let credential = None;
        let (origin, limited, deadline) = (Arc::new(origin), Arc::default(), shared.settings.deadline);
        Self { shared, origin, rerouted, budget, pool, credential, limited, deadline }
    }

    pub(crate) fn with_token(&self, token: &SecretString) -> Result<Self, BadTarget> {
        let credential = Some(Credential::new(token)?);
        Ok(Self { credential, limited: Arc::default(), ..self.clone() })
    }

    /// The same server with any token that a test likes, whoever the server is.
    #[cfg(feature = "test-util")]
    pub fn with_any_token(&self, token: &SecretString) -> Result<Self, BadTarget> {
        self.with_token(token)
    }

    /// The same with another deadline for each call.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Host and port of the server.
    pub fn server(&self) -> &str {
        &self.origin.authority
    }

    /// Sends a request and reads its answer as a type.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, request: Request) -> Result<T, Error> {
        let call = request.call;
        let answer = self.send(request).await?;
        decode::object(&answer).map_err(|kind| self.error(call, kind))
    }

    /// Sends a request whose answer may be null for an empty list.
    pub(crate) async fn list<T: DeserializeOwned>(&self, request: Request) -> Result<Vec<T>, Error> {
        let call = request.call;
        let answer = self.send(request).await?;
        decode::list(&answer).map_err(|kind| self.error(call, kind))
    }

    /// Sends a request whose answer says nothing.
    pub(crate) async fn perform(&self, request: Request) -> Result<(), Error> {
        let call = request.call;
        let answer = self.send(request).await?;
        decode::nothing(&answer).map_err(|kind| self.error(call, kind))
    }

    /// Sends a request; gives a success of any shape.
    pub(crate) async fn send(&self, mut request: Request) -> Result<Answer, Error> {
        let call = request.call;
        if request.auth == Auth::Session {
            let Some(credential) = &self.credential else {
                let message = "this call needs a session token".to_owned();
                return Err(self.error(call, ErrorKind::Unauthenticated { message }));
            };
            request.secrets.push(credential.secret.clone());
        }
        let until = Instant::now() + self.deadline;
        let bypass = request.auth == Auth::Session && !self.limited.load(Ordering::Relaxed);
        let mut result = self.attempt(&request, until, bypass).await;
        if bypass && matches!(&result, Ok(answer) if answer.status == BYPASS_REFUSED) {
            self.limited.store(true, Ordering::Relaxed);
            result = self.attempt(&request, until, false).await;
        }
        result.map_err(|kind| self.error(call, kind))
    }

    pub(crate) fn error(&self, call: Call, kind: ErrorKind) -> Error {
        Error { call: call.name, server: self.origin.authority.clone(), kind }
    }

    /// One exchange with the server, counted and reported to its budget. A refused bypass is not yet an error.
    async fn attempt(&self, request: &Request, until: Instant, bypass: bool) -> Result<Answer, ErrorKind> {
        let mut ticket =
            Ticket { shared: &self.shared, call: request.call, started: Instant::now(), outcome: "canceled" };
        let result = self.admitted(request, until, bypass).await;
        ticket.outcome = match &result {
            Ok(answer) if answer.status == BYPASS_REFUSED => "BypassRefused",
            Ok(_) => "ok",
            Err(ErrorKind::Transient(Outage::HeldOff { .. })) => "HeldOff",
            Err(kind) => kind.reason().as_str(),
        };
        result
    }

    async fn admitted(&self, request: &Request, until: Instant, bypass: bool) -> Result<Answer, ErrorKind> {
        let timeout = || ErrorKind::Transient(Outage::Timeout(self.deadline));
        let message = self.message(request, bypass)?;
        let permit = timeout_at(until, self.budget.admit()).await.map_err(|_| timeout())?;
        let permit = permit.map_err(|hold| self.not_sent(hold))?;
        let exchange = timeout_at(until, self.exchange(request.call, message)).await;
        let result = exchange.unwrap_or_else(|_| Err(timeout())).and_then(|answer| {
            if bypass && answer.status == BYPASS_REFUSED {
                return Ok(answer);
            }
            let secrets = request.secret_texts();
            match classify::refusal(&answer, request.surface, &self.origin.url, secrets) {
                None => Ok(answer),
                Some(kind) => Err(kind),
            }
        });
        let (outcome, outage) = call_outcome(&permit, &result);
        permit.report(outcome, outage);
        result
    }

    /// The error of a call that is not sent because the server is left alone.
    fn not_sent(&self, hold: Hold) -> ErrorKind {
        let Hold { why, remaining: retry_after } = hold;
        match why {
            Why::RateLimited => ErrorKind::RateLimited { retry_after },
            Why::OutOfReach => {
                let last =
                    self.budget.last_outage().unwrap_or(Outage::Unreachable("out of reach".to_owned()));
                ErrorKind::Transient(Outage::HeldOff { retry_after, last: Box::new(last) })
            }
        }
    }

    async fn exchange(&self, call: Call, message: reqwest::Request) -> Result<Answer, ErrorKind> {
        let faults = self.shared.settings.faults.as_ref();
        match faults.and_then(|faults| faults.before(&call)) {
            None => {}
            Some(Fault::Delay(delay)) => sleep(delay).await,
            Some(fault) => return instead(fault),
        }
        let response = self.pool.execute(message).await.map_err(|error| answer::unsent(&error))?;
        let answer = Answer::read(response).await;
        match faults.and_then(|faults| faults.after(&call)) {
            None => {}
            Some(Fault::Delay(delay)) => sleep(delay).await,
            Some(fault) => return instead(fault),
        }
        answer
    }

    fn url(&self, request: &Request) -> Option<Url> {
        if request.bad_part() {
            return None;
        }
        let mut url = self.origin.url.clone();
        if self.rerouted {
            url.set_port(None).ok()?;
        }
        url.path_segments_mut().ok()?.clear().extend(&request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        Some(url)
    }

    /// The message as it goes over the wire.
    fn message(&self, request: &Request, bypass: bool) -> Result<reqwest::Request, ErrorKind> {
        let invalid = |message: &str| ErrorKind::Invalid { message: message.to_owned() };
        let url = self.url(request);
        let url = url.ok_or_else(|| invalid("a name in the request is empty or consists of dots"))?;
        let mut message =
            self.pool.request(request.method.clone(), url).header(header::ACCEPT, "application/json");
        if self.rerouted {
            message = message.header(header::HOST, &self.origin.authority);
        }
        if let (Auth::Session, Some(credential)) = (request.auth, &self.credential) {
            message = message.header(SESSION_TOKEN, credential.header.clone());
        }
        if bypass {
            message = message.header(BYPASS_RATE_LIMIT, "true");
        }
        if let Some(key) = &request.key {
            let key = sensitive(key).ok_or_else(|| invalid("the key or token cannot be sent"))?;
            let name = if request.auth == Auth::Proxy { PROXY_TOKEN } else { PROVISIONER_KEY };
            message = message.header(name, key);
        }
        if let Some(body) = &request.body {
            message = message.header(header::CONTENT_TYPE, "application/json").body(body.to_vec());
        }
        message.build().map_err(|_| invalid("the request cannot be built"))
    }
}

/// What an exchange shows about the server.
fn call_outcome(permit: &Permit, result: &Result<Answer, ErrorKind>) -> (CallOutcome, Option<Outage>) {
    match result {
        Err(ErrorKind::RateLimited { retry_after }) => (CallOutcome::RateLimited(*retry_after), None),
        // A call that waited long for its slot had little time left; that is not the server's fault.
        Err(ErrorKind::Transient(Outage::Timeout(deadline))) if permit.elapsed() < *deadline / 2 => {
            (CallOutcome::Nothing, None)
        }
        Err(ErrorKind::Transient(outage)) if classify::is_out_of_order(outage) => {
            (CallOutcome::Unreachable, Some(outage.clone()))
        }
        Err(_) | Ok(_) => (CallOutcome::Answered, None),
    }
}

/// What the caller gets in place of an answer.
fn instead(fault: Fault) -> Result<Answer, ErrorKind> {
    match fault {
        Fault::Error | Fault::Delay(_) => {
            Err(ErrorKind::Transient(Outage::Broken("injected fault".to_owned())))
        }
        Fault::Status(code) => Ok(Answer::injected(code)),
        Fault::Exit => std::process::exit(EXIT_CODE),
    }
}

/// Measures one attempt and counts it when dropped.
struct Ticket<'a> {
    shared: &'a Shared,
    call: Call,
    started: Instant,
    outcome: &'static str,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let (call, outcome, took) = (self.call.name, self.outcome, self.started.elapsed());
        if let Some(observer) = &self.shared.settings.observer {
            observer.called(call, outcome, took);
        }
        tracing::debug!(call, outcome, ms = took.as_millis(), "called coderd");
    }
}
