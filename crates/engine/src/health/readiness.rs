//! Readiness of the process: a list of named checks that must all pass. A check is either set by its owner, through a
//! [`ReadyCheck`], or computed for each report.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The checks of the process. Clones share them. A process without checks is not ready: nothing has started yet.
#[derive(Clone)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<NamedCheck>>>,
    /// The number of changes of any check, for waiting for the next one.
    changes: watch::Sender<u64>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { checks: Arc::default(), changes: watch::Sender::new(0) }
    }
}

#[derive(Clone)]
struct NamedCheck {
    name: String,
    evaluate: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// One check of readiness, set by its owner. Clones share one state.
#[derive(Clone, Debug)]
pub struct ReadyCheck {
    /// Why the check fails; `None` if it passes.
    failing: Arc<Mutex<Option<String>>>,
    forbidden: Arc<AtomicBool>,
    changes: watch::Sender<u64>,
}

/// What [`Readiness::report`] found.
pub(super) struct Report {
    pub(super) ready: bool,
    pub(super) text: String,
}

impl Readiness {
    /// Creates a list without checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check that fails with "not started" until its owner sets it.
    pub fn ready_check(&self, name: impl Into<String>) -> ReadyCheck {
        let check = ReadyCheck {
            failing: Arc::new(Mutex::new(Some("not started".into()))),
            forbidden: Arc::default(),
            changes: self.changes.clone(),
        };
        let state = check.failing.clone();
        self.check(name, move || state.lock().clone().map_or(Ok(()), Err));
        check
    }

    /// Adds a check that is computed for each report. `evaluate` must not block.
    pub fn check(
        &self,
        name: impl Into<String>,
        evaluate: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.checks.lock().push(NamedCheck { name: name.into(), evaluate: Arc::new(evaluate) });
    }

    /// Changes whenever a check is set. Subscribe first, then evaluate the checks, then wait for a change: so none is
    /// missed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether there are checks and all of them pass.
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    pub(super) fn report(&self) -> Report {
        // Not locked during the evaluation, which may itself use the list.
        let checks = self.checks.lock().clone();
        let mut report = Report { ready: !checks.is_empty(), text: String::new() };
        for NamedCheck { name, evaluate } in checks {
            // invariant: writing to a String does not fail.
            let _ = match evaluate() {
                Ok(()) => writeln!(report.text, "[+] {name} ok"),
                Err(why) => {
                    report.ready = false;
                    writeln!(report.text, "[-] {name}: {why}")
                }
            };
        }
        report.text.push_str(if report.ready { "ok\n" } else { "not ready\n" });
        report
    }
}

impl ReadyCheck {
    /// The check passes.
    pub fn pass(&self) {
        self.forbidden.store(false, Ordering::SeqCst);
        *self.failing.lock() = None;
        self.changed();
    }

    /// The check fails.
    pub fn fail(&self, why: impl Into<String>) {
        *self.failing.lock() = Some(why.into());
        self.changed();
    }

    /// Sets why the check does not pass yet. A check that has passed is not changed: a watch that was synced once and is
    /// interrupted still has its cache.
    pub fn note(&self, why: &str) {
        if let Some(known) = &mut *self.failing.lock() {
            why.clone_into(known);
        }
        self.changed();
    }

    /// As [`note`](Self::note), for a check that cannot pass until a permission is granted. The rest of the process need
    /// not wait for it.
    pub fn forbidden(&self, why: &str) {
        self.forbidden.store(true, Ordering::SeqCst);
        self.note(why);
    }

    /// Whether there is nothing to wait for: the check passed, or only a permission can make it pass.
    pub fn settled(&self) -> bool {
        self.passed() || self.forbidden.load(Ordering::SeqCst)
    }

    /// Whether the check passes now.
    pub fn passed(&self) -> bool {
        self.failing.lock().is_none()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_ready_when_every_check_passes() {
        let readiness = Readiness::new();
        assert!(!readiness.is_ready(), "nothing has started");
        let widgets = readiness.ready_check("watch widgets");
        let secrets = readiness.ready_check("watch secrets");
        let alive = Arc::new(AtomicBool::new(true));
        let state = alive.clone();
        readiness.check("lease loop", move || {
            if state.load(Ordering::SeqCst) { Ok(()) } else { Err("no sign of life for 12 s".into()) }
        });
        widgets.pass();
        assert_eq!(
            readiness.report().text,
            "[+] watch widgets ok\n[-] watch secrets: not started\n[+] lease loop ok\nnot ready\n"
        );
        secrets.pass();
        assert_eq!(
            readiness.report().text,
            "[+] watch widgets ok\n[+] watch secrets ok\n[+] lease loop ok\nok\n"
        );
        secrets.fail("not synced yet");
        assert!(readiness.report().text.contains("[-] watch secrets: not synced yet\n"));
        secrets.pass();
        alive.store(false, Ordering::SeqCst);
        assert!(!readiness.is_ready());
    }
}
