//! What operators asked of the API server, from its audit log.

use coder_k8s_testbed::{AuditEvent, Cluster};

/// The requests of the operators with these user names, oldest first. A watch counts once it has ended.
pub fn requests(cluster: &Cluster, of: impl Fn(&str) -> bool) -> Vec<AuditEvent> {
    let ours = |event: &AuditEvent| event.impersonated.as_deref().is_some_and(&of);
    cluster.audit_where(|event| ours(event) && event.stage != "ResponseStarted").unwrap()
}

/// The writes among them, those of the lease left out.
pub fn writes(events: &[AuditEvent]) -> Vec<&AuditEvent> {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    events.iter().filter(|event| writes.contains(&&*event.verb) && event.resource != "leases").collect()
}

/// The writes of the status of pools among some requests.
pub fn status_writes(events: &[AuditEvent]) -> Vec<&AuditEvent> {
    let ours = |event: &&AuditEvent| event.resource == "coderprovisioners" && event.subresource == "status";
    writes(events).into_iter().filter(ours).collect()
}

/// All but the lease and the watches.
pub fn besides(all: &[AuditEvent]) -> Vec<&AuditEvent> {
    all.iter().filter(|event| event.resource != "leases" && event.verb != "watch").collect()
}

/// Requests as lines to read.
pub fn listed<'a>(events: impl IntoIterator<Item = &'a AuditEvent>) -> Vec<String> {
    let line = |event: &AuditEvent| {
        let AuditEvent { verb, resource, subresource, name, code, .. } = event;
        let slash = if subresource.is_empty() { "" } else { "/" };
        format!("{verb} {resource}{slash}{subresource} {name} {code}")
    };
    events.into_iter().map(line).collect()
}
