//! `cargo xtask`: checks that the machine has what a chore needs, and then runs the chore.
//!
//! The chores take minutes to compile. This program has no dependencies and compiles in a second, so that a missing Go
//! or Postgres is reported, with the line that installs it, before anything else is built. A C compiler needs no check: without one
//! not even this program is linked.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

/// Chores that run a database server.
const WITH_POSTGRES: [&str; 5] = ["test", "e2e", "soak", "sweep", "release-check"];
/// Chores that need nothing but the programs of the cluster, which Go builds once.
const WITH_CLUSTER: [&str; 3] = ["testbed", "kills", "upgrade"];
/// Debian installs each release of Postgres in a directory of its own that is not in `PATH`.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The package managers that install Postgres, each with its command.
const MANAGERS: [(&str, &str); 6] = [
    ("apt-get", "apt-get install postgresql"),
    ("dnf", "dnf install postgresql-server"),
    ("zypper", "zypper install postgresql-server"),
    ("pacman", "pacman -S postgresql"),
    ("apk", "apk add postgresql"),
    ("brew", "brew install postgresql"),
];

/// What this program knows of the machine.
struct Machine {
    path: OsString,
    debian: PathBuf,
    is_root: bool,
    /// Whether the programs of the cluster are there, or may be.
    has_cluster: bool,
}

/// What is to be done before the chore.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Go,
    /// Install Postgres, which takes no more than asking for it by name.
    InstallPostgres,
    Stop(String),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let chore = args.first().and_then(|chore| chore.to_str()).unwrap_or_default();
    let machine = Machine::this();
    let stop = match machine.verdict(chore) {
        Verdict::Go => None,
        Verdict::Stop(why) => Some(why),
        Verdict::InstallPostgres => install_postgres(&machine).err(),
    };
    let why = stop.unwrap_or_else(|| {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["run", "--package", "xtask", "--"]).args(&args);
        format!("cannot run cargo: {}", command.exec())
    });
    say(&format!("error: {why}"));
    ExitCode::FAILURE
}

impl Machine {
    fn this() -> Self {
        let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = var("CODER_K8S_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("coder-k8s")))
            .or_else(|| var("HOME").map(|dir| dir.join(".cache/coder-k8s")));
        let built = cache.is_some_and(|cache| cache.join("testbed").is_dir());
        Self {
            path: env::var_os("PATH").unwrap_or_default(),
            debian: DEBIAN.into(),
            is_root: fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0),
            has_cluster: built || var("KUBEBUILDER_ASSETS").is_some(),
        }
    }

    /// Whether the chore can run.
    fn verdict(&self, chore: &str) -> Verdict {
        let postgres = WITH_POSTGRES.contains(&chore);
        // The tests with Postgres also take the tables of coderd from its Go module.
        let go = postgres || WITH_CLUSTER.contains(&chore) && !self.has_cluster;
        if go && !self.has("go") {
            let why = "this needs Go 1.26 or later, and there is no `go` on PATH: install it from https://go.dev/dl";
            return Verdict::Stop(why.to_owned());
        }
        if !postgres || self.has_postgres() {
            return Verdict::Go;
        }
        if self.is_root && self.has("apt-get") {
            return Verdict::InstallPostgres;
        }
        Verdict::Stop(self.no_postgres())
    }

    fn no_postgres(&self) -> String {
        let missing = "this needs Postgres 13 or later, and there is none";
        let known = MANAGERS.iter().find(|(manager, _)| self.has(manager));
        match known {
            None => format!("{missing}: put `initdb` and `postgres` on PATH"),
            Some((manager, line)) => {
                let sudo = if self.is_root || *manager == "brew" { "" } else { "sudo " };
                format!("{missing}. Install it with:\n\n    {sudo}{line}\n")
            }
        }
    }

    fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        env::split_paths(&self.path)
    }

    fn has(&self, program: &str) -> bool {
        self.dirs().any(|dir| dir.join(program).is_file())
    }

    /// Both programs in one directory, as the tests look for them.
    fn has_postgres(&self) -> bool {
        let releases = fs::read_dir(&self.debian).into_iter().flatten().flatten();
        let releases = releases.map(|release| release.path().join("bin"));
        self.dirs()
            .chain(releases)
            .any(|dir| ["initdb", "postgres"].iter().all(|one| dir.join(one).is_file()))
    }
}

fn install_postgres(machine: &Machine) -> Result<(), String> {
    say("installing Postgres (apt-get install postgresql)");
    apt_get(&["update", "--quiet"])?;
    apt_get(&["install", "--yes", "--quiet", "--no-install-recommends", "postgresql"])?;
    if machine.has_postgres() { Ok(()) } else { Err(machine.no_postgres()) }
}

fn apt_get<S: AsRef<OsStr>>(args: &[S]) -> Result<(), String> {
    let status = Command::new("apt-get").args(args).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get failed ({status}), and this needs Postgres 13 or later")),
        Err(error) => Err(format!("cannot run apt-get: {error}")),
    }
}

/// One line for the person who waits.
#[expect(clippy::print_stderr, reason = "a chore talks to a terminal")]
fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A machine with these programs on its `PATH`, in a directory that is removed at the end.
    struct Bench {
        dir: PathBuf,
        machine: Machine,
    }

    impl Bench {
        fn new(name: &str, programs: &[&str]) -> Self {
            let dir = env::temp_dir().join(format!("xtask-preflight-{name}-{}", std::process::id()));
            let bin = dir.join("bin");
            place(&bin, programs);
            let debian = dir.join("debian");
            let machine = Machine { path: bin.into(), debian, is_root: false, has_cluster: false };
            Self { dir, machine }
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn place(dir: &Path, programs: &[&str]) {
        fs::create_dir_all(dir).expect("a directory");
        for program in programs {
            fs::write(dir.join(program), "").expect("a file");
        }
    }

    fn stopped(machine: &Machine, chore: &str) -> String {
        match machine.verdict(chore) {
            Verdict::Stop(why) => why,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_is_missing_is_named_with_the_line_that_installs_it() {
        let mut bench = Bench::new("missing", &["apt-get"]);
        assert!(stopped(&bench.machine, "test").contains("there is no `go` on PATH"));
        place(&bench.dir.join("bin"), &["go"]);
        assert!(stopped(&bench.machine, "test").contains("\n    sudo apt-get install postgresql\n"));
        bench.machine.is_root = true;
        assert_eq!(bench.machine.verdict("e2e"), Verdict::InstallPostgres);
        place(&bench.dir.join("debian/17/bin"), &["initdb", "postgres"]);
        assert_eq!(bench.machine.verdict("test"), Verdict::Go);
    }

    #[test]
    fn other_systems_have_other_lines() {
        let bench = Bench::new("systems", &["go", "dnf", "postgres"]);
        assert!(stopped(&bench.machine, "soak").contains("sudo dnf install postgresql-server"));
        let bare = Bench::new("bare", &["go"]);
        assert!(stopped(&bare.machine, "test").ends_with("put `initdb` and `postgres` on PATH"));
    }

    #[test]
    fn a_chore_that_needs_nothing_always_runs() {
        let mut bench = Bench::new("nothing", &[]);
        for chore in ["", "--help", "check", "generate", "no-such-chore"] {
            assert_eq!(bench.machine.verdict(chore), Verdict::Go, "{chore}");
        }
        assert!(stopped(&bench.machine, "testbed").contains("`go`"));
        bench.machine.has_cluster = true;
        assert_eq!(bench.machine.verdict("testbed"), Verdict::Go);
    }
}
