//! Checks of the identity of a server, its organizations, and the daemons and jobs in them.

use std::sync::Arc;

use coder_k8s_coderd::{DaemonFilter, JobFilter, JobStatus};
use uuid::Uuid;

use super::{Bench, Check, Finding, Needs, ensure, member, refused, text, unique};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("a server that serves says so", Needs::Any, serves),
        Check::new("a server tells its version and deployment to anybody", Needs::Any, tells_who_it_is),
        Check::new("the default organization has four names", Needs::Any, default_organization),
        Check::new("an organization that is not there is not found", Needs::Any, unknown_organization),
        Check::new("daemons and jobs are listed in every build", Needs::Any, lists_work),
        Check::new("a member does not see daemons and jobs", Needs::Any, hides_work),
        Check::new("an AGPL build lacks the enterprise routes", Needs::Agpl, agpl_lacks_routes),
    ]
}

async fn serves(bench: Arc<Bench>) -> Finding {
    bench.nobody.healthz().await.map_err(text)
}

async fn tells_who_it_is(bench: Arc<Bench>) -> Finding {
    let info = bench.nobody.build_info().await.map_err(text)?;
    ensure(info.version.starts_with('v'), "a version with a leading v")?;
    ensure(Uuid::parse_str(&info.deployment_id).is_ok(), "a deployment id that is a uuid")?;
    ensure(!info.workspace_proxy, "not a workspace proxy")
}

async fn default_organization(bench: Arc<Bench>) -> Finding {
    let all = bench.owner.organizations().await.map_err(text)?;
    let expected = all.iter().find(|found| found.is_default).ok_or("no default organization is listed")?;
    let nil = Uuid::nil().to_string();
    for name in ["default", nil.as_str(), &expected.id, &expected.name] {
        let found = bench.owner.organization(name).await.map_err(text)?;
        ensure(found == *expected, name)?;
    }
    Ok(())
}

async fn unknown_organization(bench: Arc<Bench>) -> Finding {
    for name in [unique("org"), Uuid::new_v4().to_string(), "a/b c?d#e%".to_owned()] {
        refused(bench.owner.organization(&name).await, "NotFound")?;
        refused(bench.owner.provisioner_daemons(&name, DaemonFilter::default()).await, "NotFound")?;
    }
    Ok(())
}

async fn lists_work(bench: Arc<Bench>) -> Finding {
    let alive = bench.owner.provisioner_daemons("default", DaemonFilter::default()).await.map_err(text)?;
    let all =
        bench.owner.provisioner_daemons("default", DaemonFilter { offline: true }).await.map_err(text)?;
    ensure(alive.len() <= all.len(), "no fewer daemons with the offline ones")?;
    let jobs = bench.owner.provisioner_jobs("default", JobFilter::default()).await.map_err(text)?;
    let waiting = JobFilter { pending_only: true };
    let pending = bench.owner.provisioner_jobs("default", waiting).await.map_err(text)?;
    ensure(pending.iter().all(|job| job.status == JobStatus::Pending), "only pending jobs")?;
    ensure(pending.len() <= jobs.len(), "no more pending jobs than jobs")
}

async fn hides_work(bench: Arc<Bench>) -> Finding {
    let member = member(&bench).await?;
    refused(member.provisioner_daemons("default", DaemonFilter::default()).await, "NotFound")?;
    refused(member.provisioner_jobs("default", JobFilter::default()).await, "NotFound")
}

async fn agpl_lacks_routes(bench: Arc<Bench>) -> Finding {
    let Bench { owner, nobody, .. } = &*bench;
    refused(nobody.entitlements().await, "NotSupported")?;
    refused(owner.licenses().await, "NotSupported")?;
    refused(owner.add_license(&"not-a-license".into()).await, "NotSupported")?;
    refused(owner.delete_license(1).await, "NotSupported")?;
    refused(owner.provisioner_keys("default").await, "NotSupported")?;
    refused(owner.delete_provisioner_key("default", "x").await, "NotSupported")?;
    refused(nobody.provisioner_key_details(&"x".repeat(43).into()).await, "NotSupported")?;
    refused(owner.proxies().await, "NotSupported")
}
