//! The command line of `coder-k8s`: parses the arguments and runs the command.
//!
//! Without a subcommand it runs the controller, as the Go operator does with `--app=controller` and `--app=all`. So the
//! Deployment of the Go operator can start this program with its arguments unchanged.

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use secrecy::SecretString;

use crate::{
    controller,
    manifests::{self, Install},
    print::{Format, objects, print},
    version::VERSION,
};

/// Runs Coder on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "coder-k8s", version = VERSION.as_str(), about, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    controller: controller::Options,

    #[command(flatten)]
    go_flags: GoFlags,
}

/// Flags of the Go operator. Only `--app` has an effect.
#[derive(Debug, clap::Args)]
struct GoFlags {
    /// Mode; `all` and `controller` run the controller
    #[arg(long, hide = true)]
    app: Option<String>,
    #[arg(long, hide = true)]
    coder_url: Option<String>,
    #[arg(long, hide = true, value_parser = |text: &str| Ok::<_, std::convert::Infallible>(SecretString::from(text)))]
    coder_session_token: Option<SecretString>,
    #[arg(long, hide = true)]
    coder_namespace: Option<String>,
    #[arg(long, hide = true)]
    coder_request_timeout: Option<String>,
}

impl GoFlags {
    /// Fails for a mode that this release does not have. Returns the flags that have no effect.
    fn check(&self) -> Result<Vec<&'static str>> {
        match self.app.as_deref() {
            None | Some("all" | "controller") => {}
            Some(mode @ ("aggregated-apiserver" | "mcp-http")) => {
                bail!(
                    "--app={mode} does not exist in this release; use --app=controller, or leave the flag out"
                )
            }
            Some(other) => {
                bail!("--app={other} is unknown; use --app=controller, or leave the flag out")
            }
        }
        let idle = [
            ("--coder-url", self.coder_url.is_some()),
            ("--coder-session-token", self.coder_session_token.is_some()),
            ("--coder-namespace", self.coder_namespace.is_some()),
            ("--coder-request-timeout", self.coder_request_timeout.is_some()),
        ];
        Ok(idle.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect())
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator against a cluster
    Controller(Box<controller::Options>),
    /// Print the CRDs, for `coder-k8s crds | kubectl apply --server-side -f -`
    Crds {
        /// Output format
        #[arg(long, value_enum, default_value_t, env = "CODER_K8S_FORMAT")]
        format: Format,
    },
    /// Print the manifests that install the operator: Namespace, ServiceAccount, RBAC, NetworkPolicy and Deployment
    Manifests {
        /// Output format
        #[arg(long, value_enum, default_value_t, env = "CODER_K8S_FORMAT")]
        format: Format,
        #[command(flatten)]
        install: Install,
    },
    /// Run a local cluster with the operator and the samples until Ctrl-C
    #[cfg(feature = "dev")]
    Dev(crate::dev::Options),
    /// Print the version, and the commit that was built
    Version,
    /// Print a completion script, for example for `source <(coder-k8s completions bash)`
    Completions {
        /// Shell that the script is for
        shell: Shell,
    },
}

/// Runs the command, or the controller if there is none.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        None => {
            let idle = args.go_flags.check()?;
            controller::run(args.controller, &idle)
        }
        Some(Command::Controller(options)) => controller::run(*options, &[]),
        Some(Command::Crds { format }) => print(&objects(format, &coder_k8s_api::crds_json())?),
        Some(Command::Manifests { format, install }) => {
            print(&objects(format, &manifests::objects(&install)?)?)
        }
        #[cfg(feature = "dev")]
        Some(Command::Dev(options)) => crate::dev::run(&options),
        Some(Command::Version) => print(&format!("coder-k8s {}\n", *VERSION)),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "coder-k8s", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Args {
        Args::try_parse_from([&["coder-k8s"], args].concat()).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_arguments_of_the_go_operator_start_the_controller() {
        for args in [&[][..], &["--app=all"], &["--app=controller"], &["--app", "all", "--health-addr=:9000"]]
        {
            let args = parse(args);
            assert!(args.command.is_none());
            assert_eq!(args.go_flags.check().unwrap(), Vec::<&str>::new());
        }
        assert!(matches!(parse(&["controller"]).command, Some(Command::Controller(_))));
    }

    #[test]
    fn modes_that_do_not_exist_are_rejected_with_a_sentence() {
        let refusal = |mode: &str| parse(&[mode]).go_flags.check().unwrap_err().to_string();
        assert!(refusal("--app=mcp-http").contains("does not exist in this release"));
        assert!(refusal("--app=aggregated-apiserver").contains("does not exist in this release"));
        assert!(refusal("--app=banana").contains("is unknown"));
    }

    #[test]
    fn flags_of_the_go_operator_without_effect_are_named() {
        let args = parse(&["--app=all", "--coder-request-timeout=30s"]);
        assert_eq!(args.go_flags.check().unwrap(), ["--coder-request-timeout"]);
    }

    #[test]
    fn every_flag_of_the_controller_has_a_variable_and_shows_its_default() {
        let command = Args::command();
        let controller = command.find_subcommand("controller").unwrap();
        for arg in
            controller.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
        {
            let flag = arg.get_long().unwrap();
            let variable = arg
                .get_env()
                .unwrap_or_else(|| panic!("--{flag} has no variable"))
                .to_string_lossy()
                .into_owned();
            assert_eq!(variable, format!("CODER_K8S_{}", flag.to_uppercase().replace('-', "_")));
            let optional = [
                "kubeconfig",
                "watch-namespaces",
                "allowed-coder-urls",
                "allowed-address-ranges",
                "leader-elect-namespace",
                "identity",
            ];
            assert!(
                optional.contains(&flag) || !arg.get_default_values().is_empty(),
                "--{flag} shows no default"
            );
        }
    }
}
