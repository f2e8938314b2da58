//! Jobs that nobody can run: they wait, and no daemon that is alive has the tags for them.
//!
//! coderd's own queue positions count the whole deployment and its list of workers holds dead ones, so that both are
//! computed here, from the jobs and daemons of one organization.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{Reason, condition::kind};
use jiff::{SignedDuration, Timestamp};

use crate::{
    condition::{ConditionStatus, Conditions},
    daemon_listing::{DaemonListing, Job, Tags},
    provisioner::keys::Blocker,
};

/// How long a job waits before it is worth a word: a daemon may be about to take it.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// The most sets of tags that are named.
const NAMED: usize = 5;
/// The most characters that are shown of one set of tags.
const SHOWN: usize = 200;
/// The most sets of tags of one organization that are counted apart.
const COUNTED: usize = 20;

/// The tags as coderd stores those of a daemon with a key: empty ones dropped, `scope` and `owner` its own.
pub fn normal(tags: &Tags) -> Tags {
    let given = tags.iter().filter(|(_, value)| !value.is_empty());
    let mut all: Tags = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    all.extend(untagged());
    all
}

/// The tags of what has none.
fn untagged() -> Tags {
    [("scope", "organization"), ("owner", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Whether a daemon with these tags may run a job with those, both as coderd stores them. What is untagged runs only on
/// what is untagged; else the daemon needs every tag of the job and may have more.
pub fn can_run(job: &Tags, daemon: &Tags) -> bool {
    if *job == untagged() {
        return job == daemon;
    }
    job.iter().all(|(name, value)| daemon.get(name) == Some(value))
}

/// An organization that has been asked.
#[derive(Clone, Copy, Debug)]
pub struct Organization<'a> {
    /// Its UUID.
    pub id: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The last listing of coderd.
    pub listing: &'a DaemonListing,
}

/// A pool of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// UUID of its organization.
    pub organization: String,
    /// Its tags, as its spec has them.
    pub tags: Tags,
    /// Whether it is to have no pods.
    pub is_scaled_to_zero: bool,
}

/// Whether jobs can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jobs {
    /// No pool exists, so that coderd is not asked.
    NotRequested,
    /// Not polled yet in this process. Keeps the previous condition.
    NotPolledYet,
    /// All that wait can run.
    Runnable,
    /// Some can not.
    Stuck(String),
    /// It could not be asked.
    Unknown(Blocker),
}

impl Jobs {
    /// Says it.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>) {
        let type_ = kind::JOBS_RUNNABLE;
        match self {
            Self::NotRequested => conditions.clear(type_),
            Self::NotPolledYet => {}
            Self::Runnable => {
                conditions.set(
                    type_,
                    true,
                    Reason::Runnable,
                    "every job that waits has a daemon that could run it",
                );
            }
            Self::Stuck(message) => conditions.set(type_, false, Reason::NoDaemonMatches, message.clone()),
            Self::Unknown(blocker) => {
                conditions.set(type_, ConditionStatus::Unknown, blocker.reason, blocker.message.clone());
            }
        }
    }
}

/// Whether all jobs of these organizations can run.
pub fn judge(organizations: &[Organization<'_>], pools: &[Pool], now: Timestamp) -> Jobs {
    let mut sentences = BTreeSet::new();
    let mut unknown = None;
    for organization in organizations {
        match &organization.listing.jobs {
            Some(jobs) if !organization.listing.outdated => {
                let stuck = stuck(jobs, organization.listing, now);
                sentences.extend(stuck.into_iter().map(|tags| sentence(tags, organization, pools)));
            }
            _ => unknown = unknown.or_else(|| organization.listing.blocker.clone()),
        }
    }
    let more = sentences.len() > NAMED;
    if !sentences.is_empty() {
        let mut text = sentences.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
        if more {
            text.push_str("; and jobs with other tags");
        }
        return Jobs::Stuck(text);
    }
    unknown.map_or(Jobs::Runnable, Jobs::Unknown)
}

/// The tags of jobs that wait too long and that nobody who is alive can run.
fn stuck<'a>(jobs: &'a [Job], listing: &DaemonListing, now: Timestamp) -> BTreeSet<&'a Tags> {
    let waits = |job: &&Job| job.since.is_none_or(|since| now.duration_since(since) > PATIENCE);
    let nobody = |job: &&Job| !listing.daemons.iter().any(|daemon| can_run(&job.tags, &daemon.tags));
    jobs.iter().filter(waits).filter(nobody).map(|job| &job.tags).collect()
}

fn sentence(tags: &Tags, organization: &Organization<'_>, pools: &[Pool]) -> String {
    let Organization { id, name, listing: _ } = organization;
    let called = match shown(tags) {
        None => "without tags".to_owned(),
        Some(tags) => format!("with the tags {tags}"),
    };
    let what = format!("jobs {called} in organization {name} wait for a daemon");
    if tags.get("scope").is_some_and(|scope| scope == "user") {
        return format!("{what}: only a daemon that their owner runs may take them");
    }
    let matching = pools.iter().filter(|pool| pool.organization == *id && can_run(tags, &normal(&pool.tags)));
    let mut matching: Vec<_> = matching.collect();
    matching.sort_by_key(|pool| (pool.is_scaled_to_zero, &pool.name));
    match (matching.first(), shown(tags)) {
        (Some(Pool { name, is_scaled_to_zero: true, .. }), _) => {
            format!("{what}: CoderProvisioner {name} would run them, but is scaled to zero")
        }
        (Some(Pool { name, .. }), _) => {
            format!("{what}: CoderProvisioner {name} would run them, but no daemon of it is connected")
        }
        (None, None) => format!("{what}: a CoderProvisioner without tags would run them"),
        (None, Some(tags)) => format!("{what}: a CoderProvisioner with tags {tags} would run them"),
    }
}

/// Tags for people, without what coderd adds; none: there are no others.
fn shown(tags: &Tags) -> Option<String> {
    let own = tags.iter().filter(|(name, value)| match name.as_str() {
        "scope" => *value != "organization",
        "owner" => !value.is_empty(),
        _ => true,
    });
    let text = own.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => Some(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Some(text).filter(|text| !text.is_empty()),
    }
}

/// How many jobs with the same tags wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Their tags, `none`, or `other` for all sets of tags that are too many to be counted apart.
    pub tags: String,
    /// How many.
    pub pending: usize,
    /// Since when the first of them waits.
    pub since: Option<Timestamp>,
}

/// The queues of an organization, the longest first.
pub fn queues(jobs: &[Job]) -> Vec<Queue> {
    let mut by_tags: BTreeMap<String, Queue> = BTreeMap::new();
    for job in jobs {
        let tags = shown(&job.tags).unwrap_or_else(|| "none".to_owned());
        let queue = by_tags.entry(tags.clone()).or_insert(Queue { tags, pending: 0, since: None });
        queue.add(1, job.since);
    }
    let mut all: Vec<_> = by_tags.into_values().collect();
    all.sort_by(|one, two| two.pending.cmp(&one.pending).then_with(|| one.tags.cmp(&two.tags)));
    let rest = all.split_off(all.len().min(COUNTED));
    let mut other = Queue { tags: "other".to_owned(), pending: 0, since: None };
    for queue in &rest {
        other.add(queue.pending, queue.since);
    }
    all.extend(Some(other).filter(|other| other.pending > 0));
    all
}

impl Queue {
    fn add(&mut self, pending: usize, since: Option<Timestamp>) {
        self.pending += pending;
        self.since = [self.since, since].into_iter().flatten().min();
    }
}

#[cfg(test)]
mod tests;
