//! Least privilege, measured: what the operator is granted, against what it did in all tests.
//!
//! Every cluster of the tests leaves its audit log in a folder of its program. The operators of the tests are users of
//! their own there, by impersonation, with exactly the rights of the manifests.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Result, anyhow};
use coder_k8s::permissions::{Granted, granted};
use serde::Deserialize;

/// Names a folder for the audit logs (`audit::KEPT_LOGS` of the testbed).
pub(crate) const AUDIT_LOGS: &str = "CODER_K8S_AUDIT_LOGS";
/// What the user names of operators in tests begin with.
const OPERATORS: &str = "operator-";

/// Group, resource with subresource, and verb.
pub(crate) type Use = (String, String, String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    impersonated_user: Option<User>,
    object_ref: Option<Object>,
    #[serde(default)]
    response_status: Response,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    resource: String,
    subresource: String,
    api_group: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    code: u16,
}

/// What operators did, from the logs in a folder.
pub(crate) fn used(folder: &Path) -> Result<BTreeSet<Use>> {
    let mut used = BTreeSet::new();
    for log in fs::read_dir(folder)? {
        for line in BufReader::new(File::open(log?.path())?).lines() {
            // The last line of a server that was killed may be cut.
            used.extend(serde_json::from_str(&line?).ok().into_iter().flat_map(uses));
        }
    }
    Ok(used)
}

/// What a request used. An apply that creates needs the right to create as well; one that is forbidden used nothing.
fn uses(line: Line) -> Vec<Use> {
    let Line { verb, impersonated_user, object_ref, response_status: Response { code } } = line;
    let Some(Object { resource, subresource, api_group }) = object_ref else { return Vec::new() };
    if !impersonated_user.is_some_and(|user| user.username.starts_with(OPERATORS)) || code == 403 {
        return Vec::new();
    }
    let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
    let creates = (verb == "patch" && code == 201).then(|| "create".to_owned());
    [verb].into_iter().chain(creates).map(|verb| (api_group.clone(), resource.clone(), verb)).collect()
}

/// Says what is granted, used and never used. Fails for what is never used without a reason.
pub(crate) fn judge(used: &BTreeSet<Use>) -> (String, Result<()>) {
    let all = granted();
    let is_used = |right: &&Granted| {
        used.contains(&(right.group.to_owned(), right.resource.to_owned(), right.verb.to_owned()))
    };
    let (done, never): (Vec<_>, Vec<_>) = all.iter().partition(is_used);
    let (justified, idle): (Vec<_>, Vec<_>) = never.into_iter().partition(|right| right.justified.is_some());
    let named: Vec<_> =
        idle.iter().map(|Granted { resource, verb, .. }| format!("{verb} {resource}")).collect();
    let told = format!(
        "rights: {} granted, {} used, {} never used and justified, {} never used: {named:?}",
        all.len(),
        done.len(),
        justified.len(),
        idle.len()
    );
    let verdict = if named.is_empty() {
        Ok(())
    } else {
        Err(anyhow!(
            "rights that no test used: take them away, or say why in permissions.rs: {}",
            named.join(", ")
        ))
    };
    (told, verdict)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use coder_k8s::permissions::granted;

    use super::{judge, uses};

    fn line(user: &str, verb: &str, code: u16) -> String {
        format!(
            r#"{{"verb":"{verb}","user":{{"username":"admin"}},"impersonatedUser":{{"username":"{user}"}},
            "objectRef":{{"resource":"deployments","apiGroup":"apps","subresource":""}},"responseStatus":{{"code":{code}}}}}"#
        )
    }

    #[test]
    fn an_apply_that_creates_uses_both_rights_and_one_that_is_forbidden_none() {
        let verbs = |user, verb, code| {
            let used = uses(serde_json::from_str(&line(user, verb, code)).unwrap());
            used.into_iter().map(|(_, _, verb)| verb).collect::<Vec<_>>()
        };
        assert_eq!(verbs("operator-1", "patch", 201), ["patch", "create"]);
        assert_eq!(verbs("operator-1", "patch", 200), ["patch"]);
        assert_eq!(verbs("operator-1", "patch", 403), [""; 0]);
        assert_eq!(verbs("somebody", "patch", 200), [""; 0]);
    }

    #[test]
    fn what_is_never_used_needs_a_reason() {
        let all: BTreeSet<_> = granted()
            .into_iter()
            .filter(|right| right.justified.is_none())
            .map(|right| (right.group.to_owned(), right.resource.to_owned(), right.verb.to_owned()))
            .collect();
        assert!(judge(&all).1.is_ok());
        let but_one = all.iter().skip(1).cloned().collect();
        let (told, verdict) = judge(&but_one);
        assert!(told.contains("1 never used: [") && verdict.is_err(), "{told}");
    }
}
