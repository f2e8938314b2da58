//! Code blocks, and what their marks ask for.

/// A fenced code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first word of the info string.
    pub language: String,
    /// The rest of the info string.
    pub marks: String,
    /// With a line break at the end.
    pub text: String,
    /// Line of the page where the block begins, counted from 1.
    pub line: usize,
}

/// A word of the info string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A word alone.
    Word(String),
    /// A word and what follows its `=`, without quotes.
    Pair(String, String),
}

/// What is to be done with commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Run by a test.
    Run,
    /// Not run, and why.
    NotRun(String),
}

/// What is to be done with YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// Manifests with kind and name. Commands find them in the file, if there is one.
    Whole {
        /// A name without a folder.
        file: Option<String>,
    },
    /// A part of a manifest of this kind.
    Part(String),
    /// No manifest, and why.
    NotChecked(String),
}

impl Block {
    pub(crate) fn new(info: &str, line: usize) -> Self {
        let (language, marks) = info.split_once(char::is_whitespace).unwrap_or((info, ""));
        Self { language: language.to_owned(), marks: marks.trim().to_owned(), text: String::new(), line }
    }

    /// What to do with a block of commands. `None` for other blocks. An error says which marks are missing or wrong.
    pub fn command(&self) -> Option<Result<Command, String>> {
        if !["sh", "bash", "shell", "console"].contains(&self.language.as_str()) {
            return None;
        }
        let wrong = "mark commands `sh run` or `sh not-run=\"reason\"`".to_owned();
        let [mark] = &self.marks()[..] else { return Some(Err(wrong)) };
        Some(match mark {
            Mark::Word(word) if word == "run" => Ok(Command::Run),
            Mark::Pair(name, reason) if name == "not-run" && !reason.is_empty() => {
                Ok(Command::NotRun(reason.clone()))
            }
            _ => Err(wrong),
        })
    }

    /// What to do with a block of YAML. `None` for other blocks. An error says which marks are wrong.
    pub fn manifest(&self) -> Option<Result<Manifest, String>> {
        if !["yaml", "yml"].contains(&self.language.as_str()) {
            return None;
        }
        Some(match &self.marks()[..] {
            [] => Ok(Manifest::Whole { file: None }),
            [Mark::Pair(name, value)] if !value.is_empty() => match name.as_str() {
                "file" => Ok(Manifest::Whole { file: Some(value.clone()) }),
                "of" => Ok(Manifest::Part(value.clone())),
                "not-checked" => Ok(Manifest::NotChecked(value.clone())),
                _ => Err(format!("`{name}` is no mark of YAML")),
            },
            _ => Err("YAML has at most one mark: `file=`, `of=` or `not-checked=`".to_owned()),
        })
    }

    /// The YAML documents of the block, without empty ones.
    pub fn documents(&self) -> Vec<String> {
        let mut documents = vec![String::new()];
        for line in self.text.lines() {
            match documents.last_mut() {
                Some(last) if line != "---" => {
                    last.push_str(line);
                    last.push('\n');
                }
                _ => documents.push(String::new()),
            }
        }
        documents.retain(|document| !document.trim().is_empty());
        documents
    }

    fn marks(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut rest = self.marks.as_str();
        while !rest.is_empty() {
            let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            if let Some(value) = after.strip_prefix("=\"") {
                let (value, after) = value.split_once('"').unwrap_or((value, ""));
                marks.push(Mark::Pair(word.to_owned(), value.to_owned()));
                rest = after.trim_start();
            } else if let Some(value) = after.strip_prefix('=') {
                let (value, after) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
                marks.push(Mark::Pair(word.to_owned(), value.to_owned()));
                rest = after.trim_start();
            } else {
                marks.push(Mark::Word(word.to_owned()));
                rest = after.trim_start();
            }
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_run_or_say_why_not() {
        let command = |info: &str| Block::new(info, 1).command();
        assert_eq!(command("sh run"), Some(Ok(Command::Run)));
        assert_eq!(
            command("sh not-run=\"needs a cloud\""),
            Some(Ok(Command::NotRun("needs a cloud".into())))
        );
        for unmarked in ["sh", "bash", "sh not-run", "sh not-run=\"\"", "sh run twice", "console maybe"] {
            assert!(command(unmarked).unwrap().is_err(), "{unmarked}");
        }
        assert_eq!(command("text"), None);
        assert_eq!(command(""), None);
    }

    #[test]
    fn yaml_is_whole_or_a_part() {
        let manifest = |info: &str| Block::new(info, 1).manifest();
        assert_eq!(manifest("yaml"), Some(Ok(Manifest::Whole { file: None })));
        assert_eq!(manifest("yaml file=a.yaml"), Some(Ok(Manifest::Whole { file: Some("a.yaml".into()) })));
        assert_eq!(manifest("yaml of=CoderProvisioner"), Some(Ok(Manifest::Part("CoderProvisioner".into()))));
        assert!(matches!(manifest("yaml not-checked=\"of Helm\""), Some(Ok(Manifest::NotChecked(_)))));
        for wrong in ["yaml run", "yaml kind=X", "yaml of=", "yaml of=A file=b"] {
            assert!(manifest(wrong).unwrap().is_err(), "{wrong}");
        }
        assert_eq!(manifest("sh run"), None);
    }

    #[test]
    fn documents_are_split_and_empty_ones_left_out() {
        let block = Block { text: "---\na: 1\n---\n\n---\nb: 2\n".into(), ..Block::new("yaml", 1) };
        assert_eq!(block.documents(), ["a: 1\n", "b: 2\n"]);
    }
}
