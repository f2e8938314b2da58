//! Rules about how containers behave. Pure.

/// Selects containers. A field that is not set matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Only pods of this namespace.
    pub namespace: Option<String>,
    /// Only containers whose image contains this text.
    pub image: Option<String>,
}

impl Rule {
    /// Matches every container of a namespace.
    pub fn namespace(namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), image: None }
    }

    /// Restricts the rule to containers whose image contains this text.
    #[must_use]
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.image = Some(image.into());
        self
    }

    fn covers(&self, namespace: &str, image: &str) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.image.as_ref().is_none_or(|wanted| image.contains(wanted.as_str()))
    }
}

/// How a container behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// It runs and is ready. An init container has completed.
    #[default]
    Ready,
    /// It runs and is not ready.
    Unready,
    /// Its image cannot be pulled.
    ImagePullBackOff,
    /// It exits with an error at every start.
    CrashLoop,
}

/// Rules in the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<(Rule, Behaviour)>);

impl Rules {
    pub(super) fn add(&mut self, rule: Rule, behaviour: Behaviour) {
        self.0.retain(|(earlier, _)| *earlier != rule);
        self.0.push((rule, behaviour));
    }

    pub(super) fn behaviour(&self, namespace: &str, image: &str) -> Behaviour {
        self.0
            .iter()
            .rev()
            .find(|(rule, _)| rule.covers(namespace, image))
            .map(|(_, behaviour)| *behaviour)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_covers_a_container_decides() {
        let mut rules = Rules::default();
        assert_eq!(rules.behaviour("a", "coder:v2"), Behaviour::Ready);
        rules.add(Rule::namespace("a"), Behaviour::Unready);
        rules.add(Rule::default().image("coder"), Behaviour::CrashLoop);
        assert_eq!(rules.behaviour("a", "coder:v2"), Behaviour::CrashLoop);
        assert_eq!(rules.behaviour("a", "nginx"), Behaviour::Unready);
        assert_eq!(rules.behaviour("b", "nginx"), Behaviour::Ready);
        rules.add(Rule::namespace("a"), Behaviour::Ready);
        assert_eq!(rules.behaviour("a", "coder:v2"), Behaviour::Ready);
        assert_eq!(rules.behaviour("b", "coder:v2"), Behaviour::CrashLoop);
    }
}
