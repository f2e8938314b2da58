//! Logging: structured lines on stderr, for people or as JSON, with a filter that can be changed at run time.
//!
//! No filter lifts two limits. Everything from kube is dropped, because kube logs the whole body of a response that it
//! cannot decode, which may be a Secret. Other crates that are not part of this workspace log at INFO and above only,
//! because their finer levels show requests and headers.

use std::{
    fmt,
    io::{self, IsTerminal},
    str::FromStr,
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{Event, Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, Registry,
    field::MakeExt,
    filter::{FilterExt, ParseError, Targets, filter_fn},
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter,
        format::{Writer, debug_fn},
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt,
    registry::{LookupSpan, Scope},
    reload,
    util::SubscriberInitExt,
};

/// Prefix of the targets of kube's crates, which never log.
const KUBE: &str = "kube_";

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// [`Human`](Self::Human) on a terminal, otherwise [`Json`](Self::Json).
    #[default]
    Auto,
    /// Time, level, the object that it is about, and a sentence with fields, in one line of text.
    Human,
    /// One JSON object for each line.
    Json,
}

impl Format {
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

/// Why logging cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not the name of a [`Format`].
    #[error("{0:?} is not a log format: use auto, human or json")]
    Format(String),
    /// The text is neither a level nor a list of directives.
    #[error(
        "{given:?} is not a log filter: {why}; use one of off, error, warn, info, debug, trace, \
         or directives as in `info,coder_k8s_engine::lease=debug`"
    )]
    Filter {
        /// The refused text.
        given: String,
        /// The part that is wrong.
        why: String,
    },
    /// The process already has a logger.
    #[error("logging is set up already")]
    Twice,
    /// The logger was dropped.
    #[error("logging has ended")]
    Ended,
}

/// Changes the filter of the running process.
#[derive(Clone)]
pub struct Handle {
    filter: reload::Handle<Targets, Registry>,
    current: Arc<Mutex<String>>,
}

impl Handle {
    /// Sets the filter. An invalid one is refused and changes nothing.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let parsed = parse(filter)?;
        let mut current = self.current.lock();
        self.filter.reload(parsed).map_err(|_| Error::Ended)?;
        filter.trim().clone_into(&mut current);
        Ok(())
    }

    /// The current filter as it was given, without surrounding blanks.
    pub fn current(&self) -> String {
        self.current.lock().clone()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("current", &self.current()).finish_non_exhaustive()
    }
}

/// Starts logging to stderr for the whole process. Fails if it is called twice.
pub fn init(format: Format, filter: &str) -> Result<Handle, Error> {
    let terminal = std::io::stderr().is_terminal();
    let (subscriber, handle) = build(format.is_json(terminal), terminal, filter, std::io::stderr)?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    Ok(handle)
}

/// As [`init`], for a person, with each line passed to `write` instead of stderr. `write` must not log.
pub fn init_to(
    filter: &str,
    colour: bool,
    write: impl Fn(&[u8]) + Clone + Send + Sync + 'static,
) -> Result<Handle, Error> {
    struct Lines<F>(F);

    impl<F: Fn(&[u8])> io::Write for Lines<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            (self.0)(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let (subscriber, handle) = build(false, colour, filter, move || Lines(write.clone()))?;
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
        lines.with_ansi(colour).fmt_fields(fields()).event_format(Sentence).boxed()
    };
    let limit = filter_fn(is_allowed).with_max_level_hint(LevelFilter::TRACE);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(limit.and(by_filter)));
    let current = Arc::new(Mutex::new(filter.trim().to_owned()));
    Ok((subscriber, Handle { filter: reload, current }))
}

/// Fields as a person reads them. The object of a reconcile is a value that needs no name.
fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(|writer, field, value| match field.name() {
        "message" | OBJECT => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={value:?}"),
    })
    .delimited(" ")
}

/// The field of a span with the object that it is about.
const OBJECT: &str = "object";

/// A line for a person: time, level, the object that it is about, and the sentence with its fields.
struct Sentence;

impl<S, N> FormatEvent<S, N> for Sentence
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        SystemTime.format_time(&mut writer)?;
        let level = *event.metadata().level();
        let colour = match level {
            Level::ERROR => "31",
            Level::WARN => "33",
            Level::INFO => "32",
            _ => "34",
        };
        if writer.has_ansi_escapes() {
            write!(writer, " \u{1b}[{colour}m{level:>5}\u{1b}[0m ")?;
        } else {
            write!(writer, " {level:>5} ")?;
        }
        for span in ctx.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(object) =
                span.extensions().get::<FormattedFields<N>>().filter(|fields| !fields.is_empty())
            {
                write!(writer, "{object}: ")?;
            }
        }
        ctx.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The limits that no filter lifts.
fn is_allowed(meta: &Metadata<'_>) -> bool {
    let target = meta.target();
    if target.starts_with(crate::PREFIX) {
        true
    } else {
        !target.starts_with(KUBE) && *meta.level() <= Level::INFO
    }
}

/// Parses a filter. A bare level applies to the crates of this workspace, while others stay at WARN. Anything else is a
/// list of directives `target=level`. Directives about spans and fields are refused: they need regular expressions, which are
/// a large part of a small program.
fn parse(given: &str) -> Result<Targets, Error> {
    let refused = |why: String| Error::Filter { given: given.to_owned(), why };
    let filter = given.trim();
    if filter.is_empty() {
        return Err(refused("it is empty".into()));
    }
    let directives = match filter.parse::<LevelFilter>() {
        Ok(level) if filter.parse::<u8>().is_err() => {
            format!("{},{}={level}", level.min(LevelFilter::WARN), crate::PREFIX)
        }
        _ => filter.to_owned(),
    };
    // `tracing` takes a misspelt level for a target, which silences everything else.
    let is_level = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.parse::<LevelFilter>().is_ok()
    };
    let parts = || directives.split(',').map(str::trim);
    if let Some(span) = parts().find(|part| part.contains(['[', '{'])) {
        return Err(refused(format!("{span:?} names a span or a field")));
    }
    if let Some(typo) = parts().find(|part| !part.contains(['=', ':']) && !is_level(part)) {
        return Err(refused(format!("{typo:?} is not a level")));
    }
    directives.parse().map_err(|error: ParseError| refused(error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests;
