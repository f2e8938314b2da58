//! The environment of the main container.

use k8s_openapi::api::core::v1::EnvVar;

/// The operator's entries with the user's: one of the same name takes the place of the operator's, because what refers
/// to it with `$(NAME)` must come later; others follow.
pub fn merged(own: Vec<EnvVar>, users: &[EnvVar]) -> Vec<EnvVar> {
    let mut all = own;
    for entry in users {
        match all.iter_mut().find(|other| other.name == entry.name) {
            Some(place) => *place = entry.clone(),
            None => all.push(entry.clone()),
        }
    }
    all
}

/// The user's entry of a name.
pub fn find<'a>(users: &'a [EnvVar], name: &str) -> Option<&'a EnvVar> {
    users.iter().find(|entry| entry.name == name)
}

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Itself.
    Text(String),
    /// The value of a variable, as `$(NAME)`.
    Variable(String),
}

/// The parts of a value, as Kubernetes reads it: `$(NAME)` is a variable and `$$` a dollar sign.
pub fn parts(value: &str) -> Vec<Part> {
    let (mut all, mut text, mut rest) = (Vec::new(), String::new(), value);
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        rest = if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            after
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|name| name.split_once(')')) {
            if !text.is_empty() {
                all.push(Part::Text(std::mem::take(&mut text)));
            }
            all.push(Part::Variable(name.to_owned()));
            after
        } else {
            text.push('$');
            after
        };
    }
    text.push_str(rest);
    if !text.is_empty() {
        all.push(Part::Text(text));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::variable;

    #[test]
    fn a_users_entry_takes_the_place_of_the_operators() {
        let own = vec![variable("A", "1"), variable("B", "$(A)")];
        let all = merged(own, &[variable("C", "3"), variable("A", "mine")]);
        assert_eq!(all, [variable("A", "mine"), variable("B", "$(A)"), variable("C", "3")]);
    }
    #[test]
    fn a_value_is_read_as_kubernetes_reads_it() {
        let text = |text: &str| Part::Text(text.to_owned());
        let variable = |name: &str| Part::Variable(name.to_owned());
        for (value, expected) in [
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("a$(B)c", vec![text("a"), variable("B"), text("c")]),
            ("$(A)$(B)", vec![variable("A"), variable("B")]),
            ("$$(A)", vec![text("$(A)")]),
            ("$$$(A)", vec![text("$"), variable("A")]),
            ("100$ and $(open", vec![text("100$ and $(open")]),
            ("end$", vec![text("end$")]),
        ] {
            assert_eq!(parts(value), expected, "{value}");
        }
    }
}
