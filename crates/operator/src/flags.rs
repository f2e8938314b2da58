//! The flags of the controller as data, for the Helm chart, whose values are named after them.

use clap::CommandFactory;

use crate::cli::Args;

/// Flags that the pod sets by itself: where it runs, and what it may watch.
const SET_BY_THE_POD: [&str; 4] = ["kubeconfig", "identity", "leader-elect-namespace", "watch-namespaces"];

/// A flag of `coder-k8s controller`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name without dashes in front, for example `lease-duration`.
    pub name: String,
    /// Default as it is written on a command line. Empty if there is none.
    pub default: String,
}

impl Flag {
    /// Name of its value in the chart, for example `leaseDuration`.
    pub fn value_name(&self) -> String {
        let mut words = self.name.split('-');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |name, word| {
            let (initial, rest) = word.split_at(1.min(word.len()));
            name + &initial.to_uppercase() + rest
        })
    }
}

/// The flags that `--help` shows, in its order, without those that the pod of the operator sets by itself.
pub fn of_controller() -> Vec<Flag> {
    let command = Args::command();
    let Some(controller) = command.find_subcommand("controller") else { return Vec::new() };
    let ours = controller.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags = ours.filter_map(|arg| {
        let name = arg.get_long()?.to_owned();
        let defaults = arg.get_default_values().iter();
        let default = defaults.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",");
        Some(Flag { name, default })
    });
    flags.filter(|flag| !SET_BY_THE_POD.contains(&&*flag.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_defaults_and_the_names_of_values() {
        let flags = of_controller();
        let found = |name: &str| flags.iter().find(|flag| flag.name == name).unwrap();
        assert_eq!(found("lease-duration").default, "15s");
        assert_eq!(found("leader-elect").default, "true");
        assert_eq!(found("allowed-coder-urls").default, "");
        assert_eq!(found("allowed-coder-urls").value_name(), "allowedCoderUrls");
        let all: Vec<_> = flags.iter().map(|flag| flag.name.as_str()).collect();
        for pods_own in SET_BY_THE_POD.iter().chain(&["help", "verify-interval"]) {
            assert!(!all.contains(pods_own), "{pods_own}");
        }
    }
}
