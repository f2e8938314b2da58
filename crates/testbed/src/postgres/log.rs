//! Log of the server: connections and statements.

use std::path::Path;

/// User and database in front of each line. Lines without them come from the server itself.
pub(super) const PREFIX: &str = "%q<%u@%d> ";

/// The content of the log file.
pub(super) struct Log(String);

impl Log {
    pub(super) fn read(path: &Path) -> Self {
        Self(String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned())
    }

    /// Number of accepted connections of a role.
    pub(super) fn connections(&self, role: &str) -> usize {
        self.lines(role).filter(|line| line.starts_with("LOG:  connection authorized:")).count()
    }

    /// Statements of a role, in order.
    pub(super) fn statements(&self, role: &str) -> Vec<String> {
        self.lines(role).filter_map(|entry| statement(&entry)).collect()
    }

    /// Entries of a role. A statement of several lines is one entry.
    fn lines(&self, role: &str) -> impl Iterator<Item = String> {
        let mark = format!("<{role}@");
        let mut entries: Vec<String> = Vec::new();
        let mut ours = false;
        for line in self.0.lines() {
            match line.strip_prefix('\t') {
                Some(rest) if ours => {
                    if let Some(entry) = entries.last_mut() {
                        entry.push('\n');
                        entry.push_str(rest);
                    }
                }
                Some(_) => {}
                None => {
                    ours = line.starts_with(&mark);
                    let entry = line.split_once("> ").filter(|_| ours);
                    entries.extend(entry.map(|(_, entry)| entry.to_owned()));
                }
            }
        }
        entries.into_iter()
    }
}

/// The statement of an entry, sent alone or as a prepared one.
fn statement(entry: &str) -> Option<String> {
    let said = entry.strip_prefix("LOG:  ")?;
    if let Some(text) = said.strip_prefix("statement: ") {
        return Some(text.to_owned());
    }
    said.strip_prefix("execute ").and_then(|text| text.split_once(": ")).map(|(_, text)| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_statements_of_one_role_are_told_from_others() {
        let log = Log("LOG:  database system is ready\n\
             <a@x> LOG:  connection authorized: user=a database=x\n\
             <b@x> LOG:  connection authorized: user=b database=x\n\
             <a@x> LOG:  statement: BEGIN\n\
             <a@x> LOG:  execute s0: SELECT 1,\n\
             \t  2\n\
             <a@x> DETAIL:  parameters: $1 = '1'\n\
             <b@x> LOG:  statement: SELECT\n\
             \t9\n"
            .to_owned());
        assert_eq!(log.connections("a"), 1);
        assert_eq!(log.statements("a"), ["BEGIN", "SELECT 1,\n  2"]);
        assert_eq!(log.statements("b"), ["SELECT\n9"]);
        assert_eq!(log.connections("c"), 0);
    }
}
