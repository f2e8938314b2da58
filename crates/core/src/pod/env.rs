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
}
