//! What the process says: structured lines on stderr, for people or for machines.
//!
//! The filter can be changed while running. One limit no filter lifts: everything of kube is dropped, because
//! it prints the whole body of an answer it cannot decode, which may be a Secret; and crates that are
//! not ours stop at INFO, because their finer levels show requests and headers.

use std::{fmt, io::IsTerminal, str::FromStr, sync::Arc};

use parking_lot::Mutex;
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, filter_fn},
    fmt::MakeWriter,
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

/// Our own crates start with this.
const OURS: &str = "coder_k8s";
/// Never to be heard: see the module.
const SILENCED: &str = "kube_";

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people on a terminal, else for machines.
    #[default]
    Auto,
    /// Time, level, message and fields on a line.
    Human,
    /// One JSON object a line.
    Json,
}

impl Format {
    /// The names as a flag takes them.
    pub const NAMES: [&str; 3] = ["auto", "human", "json"];

    fn is_json(self, terminal: bool) -> bool {
        match self {
            Self::Auto => !terminal,
            Self::Human => false,
            Self::Json => true,
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(given: &str) -> Result<Self, Error> {
        match given {
            "auto" => Ok(Self::Auto),
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            _ => Err(Error::Format(given.to_owned())),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        })
    }
}

/// Why logging cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not one of the formats.
    #[error("{0:?} is not a log format: use auto, human or json")]
    Format(String),
    /// No level and no list of directives.
    #[error(
        "{given:?} is not a log filter: {why}; use one of off, error, warn, info, debug, trace, \
         or directives as in `info,coder_k8s_engine::lease=debug`"
    )]
    Filter {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// Logging was set up before.
    #[error("logging is set up already")]
    Twice,
    /// The subscriber is gone.
    #[error("logging has ended")]
    Ended,
}

/// Changes the filter of the running process.
#[derive(Clone)]
pub struct Handle {
    filter: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
}

impl Handle {
    /// Filters by `filter` from now on; an unreadable one changes nothing.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let parsed = parse(filter)?;
        let mut current = self.current.lock();
        self.filter.reload(parsed).map_err(|_| Error::Ended)?;
        filter.trim().clone_into(&mut current);
        Ok(())
    }

    /// The filter in force, as it was given.
    pub fn current(&self) -> String {
        self.current.lock().clone()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("current", &self.current()).finish_non_exhaustive()
    }
}

/// Starts logging to stderr for the whole process.
pub fn init(format: Format, filter: &str) -> Result<Handle, Error> {
    let terminal = std::io::stderr().is_terminal();
    let (subscriber, handle) = build(format.is_json(terminal), terminal, filter, std::io::stderr)?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    Ok(handle)
}

fn build<W>(
    json: bool,
    colour: bool,
    filter: &str,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, Handle), Error>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (by_filter, reload) = reload::Layer::new(parse(filter)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = if json {
        lines.json().flatten_event(true).with_span_list(false).boxed()
    } else {
        lines.compact().with_ansi(colour).with_target(false).boxed()
    };
    let limit = filter_fn(is_allowed).with_max_level_hint(LevelFilter::TRACE);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(limit.and(by_filter)));
    let current = Arc::new(Mutex::new(filter.trim().to_owned()));
    Ok((subscriber, Handle { filter: reload, current }))
}

/// The limit that no filter lifts.
fn is_allowed(meta: &Metadata<'_>) -> bool {
    let target = meta.target();
    if target.starts_with(OURS) {
        true
    } else {
        !target.starts_with(SILENCED) && *meta.level() <= Level::INFO
    }
}

/// A bare level speaks of our crates; others stay at WARN. Anything else is a list of directives.
fn parse(given: &str) -> Result<EnvFilter, Error> {
    let refused = |why: String| Error::Filter { given: given.to_owned(), why };
    let filter = given.trim();
    if filter.is_empty() {
        return Err(refused("it is empty".into()));
    }
    let directives = match filter.parse::<LevelFilter>() {
        Ok(level) if filter.parse::<u8>().is_err() => {
            format!("{},{OURS}={level}", level.min(LevelFilter::WARN))
        }
        _ => filter.to_owned(),
    };
    // A bare word that is no level would be read as a target and silence everything else.
    let is_level = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.parse::<LevelFilter>().is_ok()
    };
    let mut parts = directives.split(',').map(str::trim);
    let typo = parts.find(|part| !part.contains(['=', '[', ':']) && !is_level(part));
    if let Some(typo) = typo {
        return Err(refused(format!("{typo:?} is no level")));
    }
    EnvFilter::builder().parse(&directives).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
pub(crate) mod capture;

/// A subscriber that is installed nowhere, its handle, and what it writes.
#[cfg(test)]
pub(crate) fn for_tests(
    json: bool,
    filter: &str,
) -> (impl Subscriber + Send + Sync, Handle, capture::Captured) {
    let captured = capture::Captured::default();
    let writer = captured.clone();
    let (subscriber, handle) = build(json, false, filter, move || writer.clone()).unwrap();
    (subscriber, handle, captured)
}

#[cfg(test)]
mod tests {
    use super::{capture::Captured, *};

    /// Runs `say` under a subscriber of its own.
    fn capture(json: bool, filter: &str, say: impl FnOnce(&Handle, &Captured)) {
        let (subscriber, handle, captured) = for_tests(json, filter);
        tracing::subscriber::with_default(subscriber, || say(&handle, &captured));
    }

    fn speak() {
        tracing::debug!(target: "coder_k8s_engine::lease", "ours-debug");
        tracing::info!(target: "coder_k8s", "ours-info");
        tracing::debug!(target: "hyper::client", "theirs-debug");
        tracing::info!(target: "hyper::client", "theirs-info");
        tracing::warn!(target: "hyper::client", "theirs-warn");
        tracing::error!(target: "kube_client::client", "kube-client-body");
        tracing::warn!(target: "kube_client", "kube-client-body");
    }

    #[test]
    fn filters_choose_within_the_limit() {
        let table = [
            ("info", vec!["ours-info", "theirs-warn"]),
            ("INFO", vec!["ours-info", "theirs-warn"]),
            ("debug", vec!["ours-debug", "ours-info", "theirs-warn"]),
            ("error", vec![]),
            ("off", vec![]),
            ("trace", vec!["ours-debug", "ours-info", "theirs-warn"]),
            ("info,hyper=trace", vec!["ours-info", "theirs-info", "theirs-warn"]),
            ("trace,kube_client=trace", vec!["ours-debug", "ours-info", "theirs-info", "theirs-warn"]),
            ("warn,coder_k8s_engine::lease=debug", vec!["ours-debug", "theirs-warn"]),
            ("kube_client=error", vec![]),
        ];
        let words =
            ["ours-debug", "ours-info", "theirs-debug", "theirs-info", "theirs-warn", "kube-client-body"];
        for (filter, expected) in table {
            capture(false, filter, |_, captured| {
                speak();
                let text = captured.take();
                let heard: Vec<_> = words.into_iter().filter(|word| text.contains(word)).collect();
                assert_eq!(heard, expected, "{filter}");
            });
        }
    }

    #[test]
    fn the_filter_changes_while_running() {
        capture(false, "info", |handle, captured| {
            speak();
            assert!(!captured.take().contains("ours-debug"));
            handle.set(" debug ").unwrap();
            assert_eq!(handle.current(), "debug");
            speak();
            let text = captured.take();
            assert!(text.contains("ours-debug") && !text.contains("kube-client-body"), "{text}");
            handle.set("nonsense").unwrap_err();
            assert_eq!(handle.current(), "debug");
            speak();
            assert!(captured.take().contains("ours-debug"), "a refused filter changes nothing");
        });
    }

    #[test]
    fn a_wrong_filter_is_refused_with_a_sentence() {
        for filter in ["", "  ", "inof", "3", "info,foo", "coder_k8s=loud", "info,,debug", "[{"] {
            let error = parse(filter).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{filter:?} is not a log filter: ")), "{error}");
            assert!(error.contains("use one of off, error, warn"), "{error}");
        }
    }

    #[test]
    fn a_line_for_people() {
        capture(false, "info", |_, captured| {
            tracing::info!(target: "coder_k8s", attempt = 3, "created the service");
            let line = captured.take();
            assert!(line.contains(" INFO created the service attempt=3\n"), "{line:?}");
            assert!(line.starts_with("20") && !line.contains('\u{1b}'), "{line:?}");
        });
    }

    #[test]
    fn a_line_for_machines() {
        capture(true, "info", |_, captured| {
            let span = tracing::info_span!(target: "coder_k8s", "reconcile", object = "a/b");
            span.in_scope(|| tracing::info!(target: "coder_k8s", attempt = 3, "created the service"));
            let line: serde_json::Value = serde_json::from_str(&captured.take()).unwrap();
            assert_eq!(line["level"], "INFO");
            assert_eq!(line["message"], "created the service");
            assert_eq!(line["attempt"], 3);
            assert_eq!(line["span"]["object"], "a/b");
            assert!(line.get("spans").is_none() && line.get("fields").is_none());
            line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().expect("RFC 3339");
        });
    }

    #[test]
    fn auto_follows_the_terminal() {
        assert!(Format::Auto.is_json(false) && !Format::Auto.is_json(true));
        assert!(Format::Json.is_json(true) && !Format::Human.is_json(false));
        for name in Format::NAMES {
            assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
        }
        let error = "xml".parse::<Format>().unwrap_err().to_string();
        assert_eq!(error, "\"xml\" is not a log format: use auto, human or json");
    }
}
