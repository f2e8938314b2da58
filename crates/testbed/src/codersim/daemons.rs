//! Provisioner daemons and jobs: read-only, in every build.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    message::{Asked, Reply},
    state::{Daemon, Job, State},
};

/// Time after its last heartbeat after which a daemon counts as offline.
const STALE: SignedDuration = SignedDuration::from_secs(90);
const DEFAULT_LIMIT: usize = 50;
const JOB_STATUS: [&str; 7] =
    ["pending", "running", "succeeded", "canceling", "canceled", "failed", "unknown"];

impl State {
    pub(super) fn get_daemons(&mut self, asked: &Asked, org: &str) -> Result<Reply, Reply> {
        let organization = self.reader(asked, org)?;
        asked.only_params(&["limit", "ids", "tags", "offline", "status", "max_age"])?;
        let statuses = words(asked, "status");
        if let Some(odd) = statuses.iter().find(|word| !["idle", "busy", "offline"].contains(word)) {
            return Err(bad_enum("daemon", odd));
        }
        self.beat();
        let now = self.now();
        let offline = asked.param("offline") == Some("true") || statuses.contains(&"offline");
        let (ids, tags) = (ids(asked)?, tag_filter(asked)?);
        let wanted = |daemon: &&Daemon| {
            daemon.organization == organization
                && (offline || is_alive(daemon, now))
                && (statuses.is_empty() || statuses.contains(&status(daemon, now)))
                && (ids.is_empty() || ids.contains(&daemon.id.as_str()))
                && tags.iter().all(|tag| daemon.tags.get(tag.0) == Some(tag.1))
        };
        let mut found: Vec<_> = self.daemons.iter().filter(wanted).collect();
        found.sort_by_key(|daemon| std::cmp::Reverse(daemon.created_at));
        let shown: Vec<_> =
            found.iter().take(limit(asked)?).map(|daemon| self.show_daemon(daemon, now)).collect();
        Ok(Reply::json(200, shown.into()))
    }

    pub(super) fn get_jobs(&mut self, asked: &Asked, org: &str) -> Result<Reply, Reply> {
        let organization = self.reader(asked, org)?;
        asked.only_params(&["limit", "status", "ids", "tags", "initiator"])?;
        let statuses = words(asked, "status");
        if let Some(odd) = statuses.iter().find(|word| !JOB_STATUS.contains(word)) {
            return Err(bad_enum("job", odd));
        }
        let (ids, tags) = (ids(asked)?, tag_filter(asked)?);
        let wanted = |job: &&Job| {
            job.organization == organization
                && (statuses.is_empty() || statuses.contains(&job.status.as_str()))
                && (ids.is_empty() || ids.contains(&job.id.as_str()))
                && tags.iter().all(|tag| job.tags.get(tag.0) == Some(tag.1))
        };
        let mut found: Vec<_> = self.jobs.iter().filter(wanted).collect();
        found.sort_by_key(|job| std::cmp::Reverse(job.created_at));
        // As in coderd, the queue position counts the jobs of the whole deployment.
        let queue = self.jobs.iter().filter(|job| job.status == "pending").count();
        let shown = found.iter().take(limit(asked)?).map(|job| show_job(job, queue));
        Ok(Reply::json(200, shown.collect()))
    }

    /// The organization, if the caller may list its daemons.
    fn reader(&mut self, asked: &Asked, org: &str) -> Result<String, Reply> {
        let roles = ["owner", "organization-admin", "organization-template-admin"];
        let allowed = self.authenticate(asked)?.has(&roles);
        let found = self.organization(org).filter(|_| allowed).ok_or_else(Reply::not_found)?;
        Ok(found.id)
    }

    fn show_daemon(&self, daemon: &Daemon, now: Timestamp) -> Value {
        let mut shown = show_with_key(daemon);
        let key = self.keys.iter().find(|key| key.id == daemon.key_id).map(|key| key.name.as_str());
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("key_name".to_owned(), key.into());
            fields.insert("status".to_owned(), status(daemon, now).into());
        }
        shown
    }
}

/// A daemon in the list of keys, where coderd leaves some fields out.
pub(super) fn show_with_key(daemon: &Daemon) -> Value {
    json!({
        "id": daemon.id, "organization_id": daemon.organization, "key_id": daemon.key_id,
        "created_at": daemon.created_at.to_string(), "last_seen_at": daemon.last_seen_at.to_string(),
        "name": daemon.name, "version": daemon.version, "api_version": daemon.api_version, "provisioners": ["terraform"],
        "tags": daemon.tags, "key_name": null, "status": null, "current_job": null, "previous_job": null,
    })
}

fn show_job(job: &Job, queue: usize) -> Value {
    let mut shown = json!({
        "id": job.id, "created_at": job.created_at.to_string(), "status": job.status, "file_id": job.id,
        "tags": job.tags, "queue_position": 0, "queue_size": queue, "organization_id": job.organization,
        "initiator_id": job.id, "input": {}, "type": "workspace_build",
        "metadata": { "template_version_name": "", "template_id": job.id, "template_name": "t",
            "template_display_name": "", "template_icon": "" },
        "logs_overflowed": false,
    });
    if let (Some(worker), Some(fields)) = (&job.worker_id, shown.as_object_mut()) {
        fields.insert("worker_id".to_owned(), worker.as_str().into());
    }
    shown
}

fn is_alive(daemon: &Daemon, now: Timestamp) -> bool {
    now.duration_since(daemon.last_seen_at) <= STALE
}

/// A dead daemon with an unfinished job is still busy, as in coderd.
fn status(daemon: &Daemon, now: Timestamp) -> &'static str {
    match (daemon.busy, is_alive(daemon, now)) {
        (true, _) => "busy",
        (false, true) => "idle",
        (false, false) => "offline",
    }
}

/// Stored tags always contain scope and owner. Empty values are dropped.
pub(super) fn normal_tags(tags: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> =
        tags.iter().filter(|tag| !tag.1.is_empty()).map(|tag| (tag.0.clone(), tag.1.clone())).collect();
    all.insert("scope".to_owned(), "organization".to_owned());
    all.insert("owner".to_owned(), String::new());
    all
}

fn words<'a>(asked: &'a Asked, name: &str) -> Vec<&'a str> {
    asked.param(name).unwrap_or_default().split(',').filter(|word| !word.is_empty()).collect()
}

fn ids(asked: &Asked) -> Result<Vec<&str>, Reply> {
    let all = words(asked, "ids");
    match all.iter().find(|text| Uuid::parse_str(text).is_err()) {
        None => Ok(all),
        Some(odd) => {
            let length = odd.len();
            let detail = format!("Query param \"ids\" has invalid values: invalid UUID length: {length}");
            Err(bad_param("ids", &detail))
        }
    }
}

fn tag_filter(asked: &Asked) -> Result<BTreeMap<String, String>, Reply> {
    let Some(text) = asked.param("tags") else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text).map_err(|_| {
        let first = text.chars().next().unwrap_or_default();
        let detail = format!(
            "Query param \"tags\" must be a valid JSON object: invalid character '{first}' looking for beginning of value"
        );
        bad_param("tags", &detail)
    })
}

fn limit(asked: &Asked) -> Result<usize, Reply> {
    let Some(text) = asked.param("limit") else { return Ok(DEFAULT_LIMIT) };
    let refused = |why: &str| {
        let detail = format!("Query param \"limit\" must be a valid 32-bit positive integer: {why}");
        bad_param("limit", &detail)
    };
    let number: i32 =
        text.parse().map_err(|_| refused(&format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?;
    let limit = usize::try_from(number).map_err(|_| refused("value is negative"))?;
    Ok(if limit == 0 { usize::MAX } else { limit })
}

fn bad_param(name: &str, detail: &str) -> Reply {
    Reply::error(400, "Invalid query parameters.").validation(name, detail)
}

/// coderd does not validate enum values before they reach the database, whose error it quotes.
fn bad_enum(kind: &str, value: &str) -> Reply {
    Reply::error(500, &format!("Internal error fetching provisioner {kind}s.")).detail(&format!(
        "fetch object: pq: invalid input value for enum provisioner_{kind}_status: {value:?}"
    ))
}
