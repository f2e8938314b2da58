//! The value of one variable of the pods, as the kubelet computes it: `env` before `envFrom`, and `$(NAME)` stands for an
//! entry before this one.
//!
//! An [`Expansion`] first says which entries take part. The caller reads what they refer to, and each entry is then computed
//! once, front to back. Everything that takes part has one budget of bytes, so that entries which double each other cost no
//! more than that.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource};
use secrecy::{ExposeSecret, SecretString};

use crate::intervals::MAX_EXPANDED_BYTES;

/// The entries that a variable is made of hold more than [`MAX_EXPANDED_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// A part of the value of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValuePart<'a> {
    Text(&'a str),
    /// The value of the variable of this name.
    Variable(&'a str),
}

/// The parts of a value, as Kubernetes reads it: `$(NAME)` refers to a variable, and `$$` is a dollar sign.
fn value_parts(value: &str) -> Vec<ValuePart<'_>> {
    // Where a reference can end. Without it every `$(` that nothing closes would be a search to the end.
    let last_close = value.rfind(')').unwrap_or(0);
    let (mut all, mut rest) = (Vec::new(), value);
    while let Some(dollar) = rest.find('$') {
        let (before, operator) = rest.split_at(dollar);
        let is_closed = value.len() - operator.len() < last_close;
        let name = operator.strip_prefix("$(").filter(|_| is_closed).and_then(|name| name.split_once(')'));
        let (text, end) = match name {
            Some(_) => (before, ""),
            None => rest.split_at(dollar + 1),
        };
        all.extend((!text.is_empty()).then_some(ValuePart::Text(text)));
        rest = if let Some((name, after)) = name {
            all.push(ValuePart::Variable(name));
            after
        } else {
            end.strip_prefix('$').unwrap_or(end)
        };
    }
    all.extend((!rest.is_empty()).then_some(ValuePart::Text(rest)));
    all
}

/// A variable that is being computed. Holds the values of the entries that take part, and prints none of them.
pub struct Expansion<'a> {
    variable: &'a str,
    env: &'a [EnvVar],
    positions: BTreeMap<&'a str, Vec<usize>>,
    /// Positions of the entries that take part.
    entries: BTreeSet<usize>,
    /// Variables that only `envFrom` can set.
    elsewhere: BTreeSet<&'a str>,
    /// Values of entries. An entry that takes part and has none does not exist.
    values: BTreeMap<usize, SecretString>,
    from_elsewhere: BTreeMap<&'a str, SecretString>,
    bytes_left: usize,
}

impl<'a> Expansion<'a> {
    /// Finds the entries that take part in the value of a variable.
    pub fn of(env: &'a [EnvVar], variable: &'a str) -> Result<Self, TooLarge> {
        let mut positions: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (position, entry) in env.iter().enumerate() {
            positions.entry(&entry.name).or_default().push(position);
        }
        let mut found = Self {
            variable,
            env,
            positions,
            entries: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            values: BTreeMap::new(),
            from_elsewhere: BTreeMap::new(),
            bytes_left: MAX_EXPANDED_BYTES,
        };
        found.find_entries()?;
        Ok(found)
    }

    fn find_entries(&mut self) -> Result<(), TooLarge> {
        let mut queue = vec![(self.variable, self.env.len())];
        let mut bytes = 0;
        while let Some((name, before)) = queue.pop() {
            let Some(position) = self.position(name, before) else {
                self.elsewhere.insert(name);
                continue;
            };
            if !self.entries.insert(position) {
                continue;
            }
            let Some(text) = self.env.get(position).and_then(literal) else { continue };
            bytes += text.len();
            if bytes > MAX_EXPANDED_BYTES {
                return Err(TooLarge);
            }
            queue.extend(value_parts(text).into_iter().filter_map(|part| match part {
                ValuePart::Variable(name) => Some((name, position)),
                ValuePart::Text(_) => None,
            }));
        }
        Ok(())
    }

    /// The last of the first `before` entries that has this name.
    fn position(&self, name: &str, before: usize) -> Option<usize> {
        let all = self.positions.get(name)?;
        all.get(all.partition_point(|position| *position < before).checked_sub(1)?).copied()
    }

    /// The entries whose value the caller has to read, with their positions.
    pub fn references(&self) -> impl Iterator<Item = (usize, &'a EnvVar, &'a EnvVarSource)> {
        let entries = self.entries.iter().filter_map(|position| Some((*position, self.env.get(*position)?)));
        entries.filter_map(|(position, entry)| Some((position, entry, entry.value_from.as_ref()?)))
    }

    /// The variables to look for in `envFrom`.
    pub fn elsewhere(&self) -> &BTreeSet<&'a str> {
        &self.elsewhere
    }

    /// Takes the value of an entry of [`Self::references`].
    pub fn give_reference(&mut self, position: usize, value: &str) -> Result<(), TooLarge> {
        self.spend(value.len())?;
        self.values.insert(position, value.into());
        Ok(())
    }

    /// Takes the value of a variable of [`Self::elsewhere`].
    pub fn give_elsewhere(&mut self, variable: &'a str, value: &str) -> Result<(), TooLarge> {
        self.spend(value.len())?;
        self.from_elsewhere.insert(variable, value.into());
        Ok(())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(TooLarge)?;
        Ok(())
    }

    /// Computes the value. None: nothing sets the variable.
    pub fn value(mut self) -> Result<Option<SecretString>, TooLarge> {
        for position in std::mem::take(&mut self.entries) {
            if let Some(text) = self.env.get(position).and_then(literal) {
                let value = self.expand(text, position)?;
                self.spend(value.len())?;
                self.values.insert(position, value.into());
            }
        }
        Ok(self.value_before(self.variable, self.env.len()).cloned())
    }

    fn value_before(&self, name: &str, before: usize) -> Option<&SecretString> {
        match self.position(name, before) {
            Some(position) => self.values.get(&position),
            None => self.from_elsewhere.get(name),
        }
    }

    /// Expands the text of the entry at this position. An unknown name stays as it is written.
    fn expand(&self, text: &str, position: usize) -> Result<String, TooLarge> {
        let mut value = String::new();
        for part in value_parts(text) {
            match part {
                ValuePart::Text(text) => value.push_str(text),
                ValuePart::Variable(name) => match self.value_before(name, position) {
                    Some(found) => value.push_str(found.expose_secret()),
                    None => value.extend(["$(", name, ")"]),
                },
            }
            if value.len() > self.bytes_left {
                return Err(TooLarge);
            }
        }
        Ok(value)
    }
}

/// The text of an entry that refers to no source. Kubernetes takes an entry without any value for an empty one.
fn literal(entry: &EnvVar) -> Option<&str> {
    entry.value_from.is_none().then(|| entry.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::*;

    fn env(entries: Value) -> Vec<EnvVar> {
        serde_json::from_value(entries).unwrap()
    }

    fn value(entries: &[EnvVar], variable: &str) -> Result<Option<String>, TooLarge> {
        let value = Expansion::of(entries, variable)?.value()?;
        Ok(value.map(|value| value.expose_secret().to_owned()))
    }

    #[test]
    fn a_value_is_read_as_kubernetes_reads_it() {
        use ValuePart::{Text, Variable};
        for (value, expected) in [
            ("", vec![]),
            ("plain", vec![Text("plain")]),
            ("a$(B)c", vec![Text("a"), Variable("B"), Text("c")]),
            ("$(A)$(B)", vec![Variable("A"), Variable("B")]),
            ("$()", vec![Variable("")]),
            ("$($(A)", vec![Variable("$(A")]),
            ("$$(A)", vec![Text("$"), Text("(A)")]),
            ("$$$(A)", vec![Text("$"), Variable("A")]),
            ("1$ and $(open", vec![Text("1$"), Text(" and $"), Text("(open")]),
            (")$(open", vec![Text(")$"), Text("(open")]),
            ("end$", vec![Text("end$")]),
            ("é$(é)é", vec![Text("é"), Variable("é"), Text("é")]),
        ] {
            assert_eq!(value_parts(value), expected, "{value}");
        }
    }

    #[test]
    fn only_entries_before_count_and_unknown_names_stay() {
        let entries = env(json!([
            {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)$(B)"}, {"name": "A", "value": "2"},
            {"name": "C", "value": "$$(A)-$(A)-$(B)"}, {"name": "EMPTY"}, {"name": "D", "value": "[$(EMPTY)]"},
        ]));
        for (variable, expected) in [
            ("A", Some("2")),
            ("B", Some("1$(C)$(B)")),
            ("C", Some("$(A)-2-1$(C)$(B)")),
            ("D", Some("[]")),
            ("E", None),
        ] {
            assert_eq!(value(&entries, variable).unwrap().as_deref(), expected, "{variable}");
        }
    }

    #[test]
    fn only_what_takes_part_is_read_and_it_is_read_once() {
        let secret = |name: &str| json!({"secretKeyRef": {"name": name, "key": "k"}});
        let entries = env(json!([
            {"name": "USER", "valueFrom": secret("user")}, {"name": "OTHER", "valueFrom": secret("other")},
            {"name": "URL", "value": "$(USER):$(USER)@$(HOST)/$(GONE)"},
        ]));
        let mut expansion = Expansion::of(&entries, "URL").unwrap();
        let read: Vec<_> =
            expansion.references().map(|(position, entry, _)| (position, &*entry.name)).collect();
        assert_eq!(read, [(0, "USER")]);
        assert_eq!(*expansion.elsewhere(), ["GONE", "HOST"].into());
        expansion.give_reference(0, "$(HOST)").unwrap();
        expansion.give_elsewhere("HOST", "db").unwrap();
        let value = expansion.value().unwrap().unwrap();
        assert_eq!(
            value.expose_secret(),
            "$(HOST):$(HOST)@db/$(GONE)",
            "a value that was read is not expanded"
        );
    }

    #[test]
    fn entries_that_double_each_other_are_refused_at_once() {
        let doubling = |last: usize| {
            let first = EnvVar { name: "A0".into(), value: Some("x".into()), ..EnvVar::default() };
            let rest = (1..=last).map(|index| {
                let value = Some(format!("$(A{0})$(A{0})", index - 1));
                EnvVar { name: format!("A{index}"), value, ..EnvVar::default() }
            });
            std::iter::once(first).chain(rest).collect::<Vec<_>>()
        };
        assert_eq!(value(&doubling(10), "A10").unwrap().unwrap().len(), 1024);
        assert_eq!(value(&doubling(40), "A40"), Err(TooLarge));
        // The same by values that are empty: nothing grows, and a search without a memo would not end.
        let mut empty = doubling(120);
        empty[0].value = None;
        assert_eq!(value(&empty, "A120").unwrap().as_deref(), Some(""));
    }

    #[test]
    fn the_budget_counts_all_that_takes_part_and_nothing_else() {
        let large = "x".repeat(MAX_EXPANDED_BYTES);
        let entries = env(json!([
            {"name": "LARGE", "value": large}, {"name": "MORE", "value": format!("{large}x")},
            {"name": "COPY", "value": "$(LARGE)"}, {"name": "SMALL", "value": "y"},
            {"name": "READ", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]));
        assert!(value(&entries, "LARGE").is_ok());
        assert_eq!(value(&entries, "MORE"), Err(TooLarge));
        assert_eq!(value(&entries, "COPY"), Err(TooLarge), "both are held");
        assert_eq!(value(&entries, "SMALL").unwrap().as_deref(), Some("y"));
        let mut expansion = Expansion::of(&entries, "READ").unwrap();
        assert_eq!(expansion.give_reference(4, &format!("{large}x")), Err(TooLarge));
        assert!(expansion.give_reference(4, &large).is_ok());
        assert_eq!(expansion.give_elsewhere("X", "x"), Err(TooLarge));
    }

    #[test]
    fn references_that_nothing_closes_cost_no_search_each() {
        let started = Instant::now();
        for text in ["$(".repeat(1 << 20), ")$(".repeat(1 << 19), "$".repeat(1 << 20)] {
            assert!(!value_parts(&text).is_empty());
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
