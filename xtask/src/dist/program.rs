//! The released program: static, stripped, without what only developers use.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::source::{Source, output};
use crate::run::{cargo, must, root, target};

/// How the program is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// As it is released: optimized as a whole, which takes ten minutes on two cores.
    #[default]
    Release,
    /// For trying out the artefacts: barely optimized.
    Quick,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }
}

/// The target of this machine, which must have the GNU C library: it can be linked statically and resolves names by hosts
/// file and DNS without any other file.
pub(crate) fn host() -> Result<String> {
    let about = output(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), &["-vV"])?;
    let host =
        about.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not tell its host")?;
    if !host.ends_with("-unknown-linux-gnu") {
        bail!("the release is built on Linux with glibc, and this is {host}; pack a program with --binary");
    }
    Ok(host.to_owned())
}

/// Builds it and returns where it is.
pub(crate) fn build(source: &Source, profile: Profile) -> Result<PathBuf> {
    let (host, target) = (host()?, target()?);
    let mut command = cargo(&["build", "--locked", "--package", "coder-k8s", "--bin", "coder-k8s"]);
    // `dev` and the hooks of tests are a feature, and on by default.
    command.args(["--no-default-features", "--target", &host, "--profile", profile.name()]);
    let flags = flags(&[(cargo_home()?, "cargo"), (root(), "coder-k8s"), (target.clone(), "target")]);
    command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    command.env("CODER_K8S_COMMIT", &source.commit).env("SOURCE_DATE_EPOCH", source.epoch.to_string());
    must(command)?;
    Ok(target.join(host).join(profile.name()).join("coder-k8s"))
}

/// Flags for the target alone: programs that run during the build stay as they are, because `--target` is given.
fn flags(folders: &[(PathBuf, &str)]) -> Vec<String> {
    // No folder of this machine gets into the messages of the program. The last that fits wins.
    let renamed =
        folders.iter().map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    // Relocations take half a megabyte otherwise, all of which the start reads. Functions that compile to the same code, as many
    // generic ones do, are kept once.
    let fixed = [
        "-Ctarget-feature=+crt-static",
        "-Clink-arg=-Wl,-z,pack-relative-relocs",
        "-Clink-arg=-Wl,--icf=all",
    ];
    fixed.map(str::to_owned).into_iter().chain(renamed).collect()
}

fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}
