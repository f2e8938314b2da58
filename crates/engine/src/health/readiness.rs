//! Whether the process is ready, as a list of named gates that all have to pass. A gate is passed or failed
//! by whoever owns it, or computed when somebody asks.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The gates of the process. Clones share them. Without any gate it is not ready: nothing has started yet.
#[derive(Clone)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<Named>>>,
    /// Counts the changes of gates, for those who wait for one.
    changes: watch::Sender<u64>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { checks: Arc::default(), changes: watch::Sender::new(0) }
    }
}

#[derive(Clone)]
struct Named {
    name: String,
    ask: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// One condition of readiness, in the hands of its owner.
#[derive(Clone, Debug)]
pub struct ReadyCheck {
    failing: Arc<Mutex<Option<String>>>,
    refused: Arc<AtomicBool>,
    changes: watch::Sender<u64>,
}

/// What [`Readiness::report`] found.
pub(super) struct Report {
    pub(super) ready: bool,
    pub(super) text: String,
}

impl Readiness {
    /// A registry without gates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate that fails with "not started" until its owner says otherwise.
    pub fn ready_check(&self, name: impl Into<String>) -> ReadyCheck {
        let check = ReadyCheck {
            failing: Arc::new(Mutex::new(Some("not started".into()))),
            refused: Arc::default(),
            changes: self.changes.clone(),
        };
        let asked = check.clone();
        self.check(name, move || asked.failing.lock().clone().map_or(Ok(()), Err));
        check
    }

    /// Adds a gate that is computed each time; it must answer at once.
    pub fn check(
        &self,
        name: impl Into<String>,
        ask: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.checks.lock().push(Named { name: name.into(), ask: Arc::new(ask) });
    }

    /// Counts the changes of gates: take it, look at the gates, and wait for it to move on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether every gate passes.
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    pub(super) fn report(&self) -> Report {
        // A check may be slow or look at us: the lock is not held while asking.
        let checks = self.checks.lock().clone();
        let mut report = Report { ready: !checks.is_empty(), text: String::new() };
        for Named { name, ask } in checks {
            // invariant: writing to a String does not fail.
            let _ = match ask() {
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
    /// The condition holds.
    pub fn pass(&self) {
        self.refused.store(false, Ordering::SeqCst);
        *self.failing.lock() = None;
        self.changed();
    }

    /// The condition does not hold.
    pub fn fail(&self, why: impl Into<String>) {
        *self.failing.lock() = Some(why.into());
        self.changed();
    }

    /// Says why the condition does not hold yet. A condition that held once is not taken back by this.
    pub fn note(&self, why: &str) {
        if let Some(known) = &mut *self.failing.lock() {
            why.clone_into(known);
        }
        self.changed();
    }

    /// Says that the condition cannot hold before somebody grants a right. Others need not wait for it.
    pub fn refuse(&self, why: &str) {
        self.refused.store(true, Ordering::SeqCst);
        self.note(why);
    }

    /// Whether there is nothing to wait for: the condition holds, or only a right can help it.
    pub fn settled(&self) -> bool {
        self.passed() || self.refused.load(Ordering::SeqCst)
    }

    /// Whether the condition holds.
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
    fn it_is_ready_when_every_gate_passes() {
        let readiness = Readiness::new();
        assert!(!readiness.is_ready(), "nothing has started");
        let planes = readiness.ready_check("watch codercontrolplanes");
        let secrets = readiness.ready_check("watch secrets");
        let alive = Arc::new(AtomicBool::new(true));
        let asked = alive.clone();
        readiness.check("lease loop", move || {
            if asked.load(Ordering::SeqCst) { Ok(()) } else { Err("no sign of life for 12 s".into()) }
        });
        planes.pass();
        assert_eq!(
            readiness.report().text,
            "[+] watch codercontrolplanes ok\n[-] watch secrets: not started\n[+] lease loop ok\nnot ready\n"
        );
        secrets.pass();
        assert_eq!(
            readiness.report().text,
            "[+] watch codercontrolplanes ok\n[+] watch secrets ok\n[+] lease loop ok\nok\n"
        );
        secrets.fail("not synced yet");
        assert!(readiness.report().text.contains("[-] watch secrets: not synced yet\n"));
        secrets.pass();
        alive.store(false, Ordering::SeqCst);
        assert!(!readiness.is_ready());
    }
}
