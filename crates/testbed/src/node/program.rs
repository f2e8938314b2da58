//! Programs that run in place of images. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;

/// A program that runs in place of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    args: Vec<String>,
    /// Whether containers without a command are left to the rules of the node.
    commands_only: bool,
}

impl Program {
    /// The program at this path, without arguments.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), args: Vec::new(), commands_only: false }
    }

    /// Arguments of the entry point of the image, before those of the container.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// The image of Coder, whose entry point is `/opt/coder server`.
    pub fn coder(path: impl Into<PathBuf>) -> Self {
        Self::new(path).args(&["server"])
    }

    /// Runs only containers that have a command. Those that would run the entry point of the image stay simulated: with
    /// Coder's image that is coderd, while daemons and proxies run.
    #[must_use]
    pub fn commands_only(mut self) -> Self {
        self.commands_only = true;
        self
    }

    /// Program and arguments of a container. A `command` replaces the entry point; if its first word has the file
    /// name of this program, it means this program wherever the image has it.
    pub(super) fn command_line(&self, container: &Container) -> (PathBuf, Vec<String>) {
        let own = container.args.clone().unwrap_or_default();
        let Some((first, rest)) = container.command.as_deref().and_then(<[_]>::split_first) else {
            return (self.path.clone(), [self.args.clone(), own].concat());
        };
        let same = Path::new(first).file_name() == self.path.file_name();
        let path = if same { self.path.clone() } else { PathBuf::from(first) };
        (path, [rest.to_vec(), own].concat())
    }
}

/// Programs by image.
#[derive(Debug, Default)]
pub(super) struct Programs(BTreeMap<String, Program>);

impl Programs {
    pub(super) fn add(&mut self, image: &str, program: Program) {
        self.0.insert(image.to_owned(), program);
    }

    pub(super) fn of(&self, container: &Container) -> Option<&Program> {
        let found = self.0.get(container.image.as_deref()?)?;
        (!found.commands_only || container.command.is_some()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(container: Value) -> String {
        let container = serde_json::from_value(container).unwrap();
        let (path, args) = Program::coder("/cache/coder").command_line(&container);
        [vec![path.display().to_string()], args].concat().join(" ")
    }

    #[test]
    fn a_command_replaces_that_of_the_image_and_arguments_follow_it() {
        assert_eq!(line(json!({"name": "c"})), "/cache/coder server");
        assert_eq!(line(json!({"name": "c", "args": ["--x"]})), "/cache/coder server --x");
        let daemon = json!({"name": "c", "command": ["/opt/coder", "provisionerd"], "args": ["start"]});
        assert_eq!(line(daemon), "/cache/coder provisionerd start");
        assert_eq!(line(json!({"name": "c", "command": ["/bin/sh", "-c", "x"]})), "/bin/sh -c x");
    }

    #[test]
    fn an_image_is_meant_as_it_is_written() {
        let mut programs = Programs::default();
        programs.add("coder:v2", Program::new("/bin/true"));
        let of = |image: &str| {
            programs.of(&Container { image: Some(image.into()), ..Container::default() }).is_some()
        };
        assert!(of("coder:v2") && !of("coder:v2.1") && !of("coder"));
    }

    #[test]
    fn a_program_for_commands_only_leaves_the_entry_point_of_the_image_alone() {
        let mut programs = Programs::default();
        programs.add("coder:v2", Program::coder("/cache/coder").commands_only());
        let runs = |command: Option<Vec<String>>| {
            let container = Container { image: Some("coder:v2".into()), command, ..Container::default() };
            programs.of(&container).is_some()
        };
        assert!(!runs(None) && runs(Some(vec!["coder".into()])));
    }
}
