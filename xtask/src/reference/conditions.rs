//! The pages of condition types and of reasons, from their tables in the crate `api`.

use std::fmt::Write as _;

use coder_k8s_api::{
    CoderKind, Reason,
    condition::{ConditionType, TYPES},
    reason::Advice,
};

use super::cell;

/// The page of the condition types, as Markdown, without the mark of generated files.
pub(crate) fn types() -> String {
    let mut page = "# Conditions\n\n\
        ```sh not-run=\"an example with a placeholder\"\nkubectl describe ccp NAME\n```\n\n\
        shows the conditions of an object. Each has a status (`True`, `False` or `Unknown`), a [reason](reasons.md) and a \
        message that names what is affected and what to do.\n\n\
        `Unknown` means that the operator could not verify the condition, for example because coderd does not answer. It is \
        never reported as an error by itself.\n\n\
        `Ready`, `Reconciling` and `Stalled` follow kstatus, so that Flux and `kubectl wait` understand them. Argo CD needs a \
        [health check](../how-to/gitops.md#how-do-i-give-argo-cd-a-health-check). The others say which part is meant.\n\n\
        A condition is True only for the spec and the Secrets that it was verified with. After an edit it is `Unknown` or \
        `False` until it is verified again.\n\n\
        | Condition | Kinds | Good | Meaning of True |\n|---|---|---|---|\n"
        .to_owned();
    for ConditionType { name, on, good, sentence } in TYPES {
        let names = || on.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
        let kinds = if *on == CoderKind::ALL { "every kind".to_owned() } else { names() };
        let _ = writeln!(page, "| `{name}` | {kinds} | {good} | {} |", cell(sentence));
    }
    page
}

/// The page of the reasons, as Markdown, without the mark of generated files.
pub(crate) fn reasons() -> String {
    let mut page = "# Reasons: what they mean, what to look at, what to do\n\n\
        The column STATUS of `kubectl get` shows a reason. So do conditions, events, the log and metrics. Find it here.\n\n\
        The message beside the reason names the object that is affected: `kubectl describe` shows it.\n\n\
        `NAME` and `NAMESPACE` in a command are those of your object.\n"
        .to_owned();
    let mut chapters = Reason::CHAPTERS.iter().peekable();
    for reason in Reason::ALL {
        if let Some((_, title)) = chapters.next_if(|(first, _)| first == reason) {
            let _ = write!(page, "\n## {title}\n");
        }
        let _ = write!(page, "\n### {reason}\n\n{}\n", reason.sentence());
        let _ = match reason.advice() {
            Advice::Nothing => Ok(()),
            Advice::Wait(text) => write!(page, "\n**Wait.** {text}\n"),
            Advice::Act { look, act } => write!(page, "\n**Look at:** {look}\n\n**Do:** {act}\n"),
        };
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_heading_and_every_chapter_begins() {
        let page = reasons();
        for reason in Reason::ALL {
            assert!(page.contains(&format!("\n### {reason}\n")), "{reason}");
        }
        for (_, title) in Reason::CHAPTERS {
            assert!(page.contains(&format!("\n## {title}\n")), "{title}");
        }
    }
}
