//! The page of the commands and their flags, from the command line of the operator.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::cell;

/// The page, as Markdown, without the mark of generated files.
pub(crate) fn page() -> String {
    let mut page = "# Commands and flags\n\n\
        ```sh not-run=\"prints what this page says\"\ncoder-k8s controller --help\n```\n\n\
        Every flag has an environment variable: `--health-addr` is `CODER_K8S_HEALTH_ADDR`. Where it is called otherwise, \
        the table says so. A flag takes precedence over its variable.\n\n\
        Without a command the program runs the controller, as the Go operator does with `--app=all` and \
        `--app=controller`, which are accepted as well. Its other modes, `--app=aggregated-apiserver` and `--app=mcp-http`, \
        are refused with a sentence.\n"
        .to_owned();
    let command = coder_k8s::command();
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        section(&mut page, command);
    }
    page
}

fn section(page: &mut String, command: &Command) {
    let name = command.get_name();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## coder-k8s {name}\n\n{about}.\n");
    if name == "dev" {
        page.push_str("\nNot in the released image.\n");
    }
    let args: Vec<&Arg> =
        command.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())).collect();
    if args.is_empty() {
        return;
    }
    page.push_str("\n| Flag | Default | Meaning |\n|---|---|---|\n");
    for arg in args {
        let default = default(arg).map(|value| format!("`{value}`")).unwrap_or_default();
        let _ = writeln!(page, "| {} | {default} | {} |", flag(arg), cell(&meaning(arg)));
    }
}

fn flag(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map(clap::builder::Str::as_str).unwrap_or_default();
    match arg.get_long() {
        Some(long) if arg.get_action().takes_values() => format!("`--{long}` *{value}*"),
        Some(long) => format!("`--{long}`"),
        None => format!("*{value}*"),
    }
}

fn default(arg: &Arg) -> Option<String> {
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    (!values.is_empty() && arg.get_action().takes_values()).then(|| values.join(","))
}

/// The variable of a flag, if it does not follow from the name of the flag.
fn variable(arg: &Arg) -> Option<String> {
    let variable = arg.get_env()?.to_string_lossy().into_owned();
    let expected = format!("CODER_K8S_{}", arg.get_long()?.to_uppercase().replace('-', "_"));
    (variable != expected).then_some(variable)
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    let mut text = format!("{}.", help.trim_end_matches('.'));
    if arg.get_action().takes_values() && (1..9).contains(&values.len()) {
        let _ = write!(text, " One of {}.", values.join(", "));
    }
    if let Some(variable) = variable(arg) {
        let _ = write!(text, " Variable `{variable}`.");
    }
    if arg.is_hide_set() {
        text.push_str(" Hidden from `--help`.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_the_controller_is_on_the_page() {
        let page = page();
        let command = coder_k8s::command();
        let controller = command.find_subcommand("controller").unwrap();
        for arg in controller.get_arguments().filter_map(Arg::get_long).filter(|name| *name != "help") {
            assert!(page.contains(&format!("`--{arg}`")), "{arg}");
        }
        assert!(page.contains("\n| `--lease-duration` *TIME* | `15s` | How long"), "{page}");
        assert!(page.contains(" Variable `CODER_K8S_DEV_TIMEOUT`."), "{page}");
    }
}
