//! The one narrow place that every call to coderd passes.
//!
//! Here a call gets its deadline, waits for its slot in the server's budget, carries its credential, is counted,
//! and can be made to fail. What the calls are is in the modules of their topics.

use std::{
    error::Error,
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::{
    address::AddressError,
    answer::{self, Answer},
    connector::{CallTimer, Shared, inject},
    error::{CoderdError, ErrorKind, Outage, Result},
    request::{Auth, Call, Request},
    request_budget::{BudgetKey, CallOutcome, Permit, RequestBudget},
    server::{BadEndpoint, Endpoint, Origin},
};

const SESSION_TOKEN: &str = "coder-session-token";
const PROVISIONER_KEY: &str = "coder-provisioner-daemon-key";
const PROXY_TOKEN: &str = "coder-external-proxy-token";
const BYPASS_RATE_LIMIT: &str = "x-coder-bypass-ratelimit";
/// The answer to a bypass that the caller may not use. coderd grants it to owners alone, and answers 428 to others instead
/// of ignoring the header, so that the request has to be sent again without it.
const BYPASS_REFUSED: u16 = 428;

/// A client of one coderd. Outside this crate only an [`crate::IdentifiedServer`] makes one with a token.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    origin: Arc<Origin>,
    budget: Arc<RequestBudget>,
    pool: Arc<reqwest::Client>,
    /// The session token, which a header can hold.
    token: Option<SecretString>,
    limits: CallLimits,
    /// Whether the rate-limit bypass was refused to this token.
    bypass_refused: Arc<AtomicBool>,
}

/// What the calls of a client may take, for a caller with a deadline. None: as all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Deadline of one call, if that is shorter than the one of all calls.
    pub timeout: Option<Duration>,
    /// How long a server is left alone that asks for it, or that cannot be reached, if that is shorter than for all calls.
    pub patience: Option<Duration>,
}

/// The secret as a header that is never logged. `None` if it is empty or no header can hold it.
fn header_value(secret: &SecretString) -> Option<HeaderValue> {
    let text = Some(secret.expose_secret()).filter(|text| !text.is_empty())?;
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.origin.url.as_str())
            .field("authenticated", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client without a token. Sends nothing.
    pub(crate) fn anonymous(shared: &Arc<Shared>, target: &Endpoint) -> Result<Self, BadEndpoint> {
        let origin = Origin::parse(&target.url)?;
        let pool = shared.pool(&origin, target.ca.as_deref())?;
        let budget = shared.budgets.get(BudgetKey::new(target, &origin));
        let (shared, origin, bypass_refused) = (shared.clone(), Arc::new(origin), Arc::default());
        Ok(Self { shared, origin, budget, pool, token: None, limits: CallLimits::default(), bypass_refused })
    }

    /// The same client with other limits.
    pub(crate) fn within(&self, limits: CallLimits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// The same client for calls whose loss would cost more than they do: they are sent even while the server is left alone.
    #[must_use]
    pub fn at_once(&self) -> Self {
        self.within(CallLimits { patience: Some(Duration::ZERO), ..self.limits })
    }

    /// The deadline of one call.
    fn deadline(&self) -> Duration {
        let deadline = self.shared.settings.deadline;
        self.limits.timeout.map_or(deadline, |timeout| timeout.min(deadline))
    }

    pub(crate) fn with_token(&self, token: &SecretString) -> Result<Self, BadEndpoint> {
        let token: SecretString = token.expose_secret().trim().into();
        header_value(&token).ok_or(BadEndpoint::Token)?;
        Ok(Self { token: Some(token), bypass_refused: Arc::default(), ..self.clone() })
    }

    /// The same server with any token that a test likes, whoever the server is.
    #[cfg(feature = "test-util")]
    pub fn with_any_token(&self, token: &SecretString) -> Result<Self, BadEndpoint> {
        self.with_token(token)
    }

    /// Sends a request whose answer is an object.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        self.call(request, Answer::object).await
    }

    /// Sends a request whose answer is a list, or null for an empty one.
    pub(crate) async fn list<T: DeserializeOwned>(&self, request: Request) -> Result<Vec<T>> {
        self.call(request, Answer::list).await
    }

    /// Sends a request whose answer says nothing.
    pub(crate) async fn perform(&self, request: Request) -> Result<()> {
        self.call(request, Answer::nothing).await
    }

    /// Sends a request and reads a success with `read`.
    pub(crate) async fn call<T>(
        &self,
        request: Request,
        read: impl Fn(&Answer) -> Result<T, ErrorKind>,
    ) -> Result<T> {
        let fail = |kind| self.error(request.call, kind);
        let session = matches!(request.auth, Auth::Session);
        if session && self.token.is_none() {
            return Err(fail(ErrorKind::Unauthenticated("this call needs a session token".to_owned())));
        }
        let until = Instant::now() + self.deadline();
        let bypass = session && !self.bypass_refused.load(Ordering::Relaxed);
        let mut result = self.attempt(&request, until, bypass).await;
        if bypass && matches!(&result, Ok(answer) if answer.status == BYPASS_REFUSED) {
            self.bypass_refused.store(true, Ordering::Relaxed);
            result = self.attempt(&request, until, false).await;
        }
        result.and_then(|answer| read(&answer)).map_err(fail)
    }

    pub(crate) fn error(&self, call: Call, kind: ErrorKind) -> CoderdError {
        CoderdError { call: call.name, server: self.origin.authority.clone(), kind }
    }

    /// One exchange with the server, counted and reported to its budget. A refused bypass is not yet an error.
    async fn attempt(&self, request: &Request, until: Instant, bypass: bool) -> Result<Answer, ErrorKind> {
        let mut timer = CallTimer::start(self.shared.settings.observer.as_ref(), request.call);
        let result = self.admitted(request, until, bypass).await;
        timer.outcome = match &result {
            Ok(answer) if answer.status == BYPASS_REFUSED => "BypassRefused",
            Ok(_) => "ok",
            Err(ErrorKind::Transient(Outage::HeldOff { .. })) => "HeldOff",
            Err(kind) => kind.reason().as_str(),
        };
        result
    }

    async fn admitted(&self, request: &Request, until: Instant, bypass: bool) -> Result<Answer, ErrorKind> {
        let timeout = |_| ErrorKind::Transient(Outage::Timeout(self.deadline()));
        let message = self.message(request, bypass)?;
        let permit = timeout_at(until, self.budget.admit(self.limits.patience)).await.map_err(timeout)??;
        let exchange = timeout_at(until, self.exchange(request.call, message)).await;
        let result = exchange.map_err(timeout).flatten().and_then(|answer| {
            if bypass && answer.status == BYPASS_REFUSED {
                return Ok(answer);
            }
            let credential = self.credential(request).map(|(_, secret)| secret.expose_secret());
            let secrets = request.secret_texts().chain(credential);
            answer.refusal(request.surface, &self.origin.url, secrets).map_or(Ok(answer), Err)
        });
        let outcome = call_outcome(&permit, &result);
        permit.report(outcome);
        result
    }

    async fn exchange(&self, call: Call, message: reqwest::Request) -> Result<Answer, ErrorKind> {
        let faults = self.shared.settings.faults.as_ref();
        if let Err(status) = inject(faults.and_then(|faults| faults.before(&call))).await {
            return Answer::injected(status);
        }
        self.check_literal().await?;
        let response = self.pool.execute(message).await.map_err(|error| failed_exchange(&error))?;
        let answer = Answer::read(response).await;
        match inject(faults.and_then(|faults| faults.after(&call))).await {
            Ok(()) => answer,
            Err(status) => Answer::injected(status),
        }
    }

    /// Checks an address in place of a name, about which reqwest asks no resolver.
    async fn check_literal(&self) -> Result<(), ErrorKind> {
        let Some(literal) = self.origin.literal else { return Ok(()) };
        let checked =
            self.shared.settings.addresses.resolve(None, &literal.to_string(), self.origin.port).await;
        checked.map(drop).map_err(|_| ErrorKind::AddressNotAllowed)
    }

    /// Whether a given resolver finds the port, so that it must not be in the URL.
    fn is_rerouted(&self) -> bool {
        self.origin.literal.is_none() && self.shared.settings.resolver.is_some()
    }

    fn url(&self, request: &Request) -> Option<Url> {
        if request.has_bad_part() {
            return None;
        }
        let mut url = self.origin.url.clone();
        if self.is_rerouted() {
            // A port in the URL would replace the one of the resolved address.
            url.set_port(None).ok()?;
        }
        url.path_segments_mut().ok()?.clear().extend(&request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        Some(url)
    }

    /// The credential of a request, and the header that carries it.
    fn credential<'a>(&'a self, request: &'a Request) -> Option<(&'static str, &'a SecretString)> {
        match &request.auth {
            Auth::Nobody => None,
            Auth::Session => self.token.as_ref().map(|token| (SESSION_TOKEN, token)),
            Auth::ProvisionerKey(key) => Some((PROVISIONER_KEY, key)),
            Auth::Proxy(token) => Some((PROXY_TOKEN, token)),
        }
    }

    /// The message as it goes over the wire.
    fn message(&self, request: &Request, bypass: bool) -> Result<reqwest::Request, ErrorKind> {
        let invalid = |message: &str| ErrorKind::Invalid(message.to_owned());
        let url = self.url(request);
        let url = url.ok_or_else(|| invalid("a name in the request is empty or consists of dots"))?;
        let mut message =
            self.pool.request(request.method.clone(), url).header(header::ACCEPT, "application/json");
        if self.is_rerouted() {
            // The URL has no port now; the server sees the address that it was asked by.
            message = message.header(header::HOST, &self.origin.authority);
        }
        if let Some((name, secret)) = self.credential(request) {
            let value = header_value(secret).ok_or_else(|| invalid("the key or token cannot be sent"))?;
            message = message.header(name, value);
        }
        if bypass {
            message = message.header(BYPASS_RATE_LIMIT, "true");
        }
        if let Some(body) = &request.body {
            message = message.header(header::CONTENT_TYPE, "application/json").body(body.to_vec());
        }
        message.build().map_err(|_| invalid("the request cannot be built"))
    }
}

/// Why there is no answer.
fn failed_exchange(error: &reqwest::Error) -> ErrorKind {
    let causes = iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source());
    if causes.filter_map(|cause| cause.downcast_ref()).any(|cause| matches!(cause, AddressError::NotAllowed))
    {
        return ErrorKind::AddressNotAllowed;
    }
    let outage = if error.is_connect() { Outage::Unreachable } else { Outage::Broken };
    ErrorKind::Transient(outage(answer::cause(error)))
}

/// What an exchange shows about the server.
fn call_outcome(permit: &Permit, result: &Result<Answer, ErrorKind>) -> CallOutcome {
    match result {
        Err(ErrorKind::RateLimited { retry_after }) => CallOutcome::RateLimited(*retry_after),
        // A call that waited long for its slot had little time left; that is not the server's fault.
        Err(ErrorKind::Transient(Outage::Timeout(deadline))) if permit.elapsed() < *deadline / 2 => {
            CallOutcome::Nothing
        }
        Err(ErrorKind::Transient(outage)) if outage.is_of_server() => {
            CallOutcome::Unreachable(outage.clone())
        }
        Err(ErrorKind::AddressNotAllowed) => CallOutcome::Nothing,
        Err(_) | Ok(_) => CallOutcome::Answered,
    }
}
