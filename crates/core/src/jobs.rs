//! Finds pending jobs that no connected daemon can run, because none has the tags for them.
//!
//! Computed from the jobs and daemons of one organization, because coderd does not answer this: its queue positions count
//! the whole deployment, and its list of workers includes dead ones.
//!
//! Both lists come from a server that may be hostile. Equal sets of tags are compared once, and the comparisons of one
//! verdict are bounded: past the bound, the verdict is that nothing is known.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{Reason, condition::condition_type};
use jiff::Timestamp;

use crate::{
    condition::{ConditionStatus, Conditions},
    daemon_listing::{DaemonListing, DaemonTags, PendingJob},
    intervals::{JOB_PENDING, MAX_JOB_QUEUES, MAX_TAG_COMPARISONS, MAX_TAG_SETS_IN_MESSAGE, MAX_TAGS_LENGTH},
    provisioner::keys::Blocker,
};

/// The tags as coderd stores those of a daemon with a key: without empty ones, and with its own `scope` and `owner`.
pub fn normal(tags: &DaemonTags) -> DaemonTags {
    let given = tags.iter().filter(|(_, value)| !value.is_empty());
    let mut all: DaemonTags = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    all.extend(untagged());
    all
}

/// What coderd stores for a job or daemon without tags.
fn untagged() -> DaemonTags {
    [("scope", "organization"), ("owner", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Whether a daemon with these tags may run a job with those, both as coderd stores them. A job without tags runs only on
/// daemons without tags. Otherwise the daemon needs every tag of the job and may have more.
pub fn can_run(job: &DaemonTags, daemon: &DaemonTags) -> bool {
    if *job == untagged() {
        return job == daemon;
    }
    job.iter().all(|(name, value)| daemon.get(name) == Some(value))
}

/// An organization that has been polled.
#[derive(Clone, Copy, Debug)]
pub struct ListedOrganization<'a> {
    /// UUID of the organization.
    pub id: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The last listing of coderd.
    pub listing: &'a DaemonListing,
}

/// A CoderProvisioner, as far as it could run jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedPool {
    /// Its name.
    pub name: String,
    /// UUID of its organization.
    pub organization: String,
    /// `spec.tags`.
    pub tags: DaemonTags,
    /// Whether no pod is desired.
    pub is_scaled_to_zero: bool,
    /// Whether it follows its queue, and daemons of it are starting.
    pub is_growing: bool,
}

/// Whether every pending job can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobsVerdict {
    /// No pool exists, so that coderd is not polled.
    NotRequested,
    /// Not polled yet in this process. Keeps the previous condition.
    NotPolledYet,
    /// Every pending job has a daemon that can run it.
    Runnable,
    /// Some have none; the message.
    Stuck(String),
    /// The last poll failed.
    Unknown(Blocker),
}

impl JobsVerdict {
    /// Sets the condition `JobsRunnable`.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>) {
        let type_ = condition_type::JOBS_RUNNABLE;
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
pub fn judge(organizations: &[ListedOrganization<'_>], pools: &[TaggedPool], now: Timestamp) -> JobsVerdict {
    let mut sentences = BTreeSet::new();
    let mut unknown = None;
    for organization in organizations {
        match &organization.listing.jobs {
            Some(jobs) if !organization.listing.outdated => {
                let mut left = MAX_TAG_COMPARISONS;
                let stuck = stuck(jobs, organization.listing, now, &mut left);
                // A daemon that starts for a job is about to run it.
                let growing =
                    pools.iter().filter(|pool| pool.is_growing && pool.organization == organization.id);
                let growing: BTreeSet<_> = growing.map(|pool| normal(&pool.tags)).collect();
                let waiting = stuck
                    .into_iter()
                    .filter(|tags| !growing.iter().any(|daemon| can_run_within(tags, daemon, &mut left)));
                // One more than are named, so that it is said that there are more.
                let named: Vec<_> = waiting.take(MAX_TAG_SETS_IN_MESSAGE + 1).collect();
                sentences.extend(named.into_iter().map(|tags| sentence(tags, organization, pools)));
                unknown = unknown.or_else(|| (left == 0).then(|| too_many(organization.name)));
            }
            _ => unknown = unknown.or_else(|| organization.listing.blocker.clone()),
        }
    }
    let more = sentences.len() > MAX_TAG_SETS_IN_MESSAGE;
    if !sentences.is_empty() {
        let mut text = sentences.into_iter().take(MAX_TAG_SETS_IN_MESSAGE).collect::<Vec<_>>().join("; ");
        if more {
            text.push_str("; and jobs with other tags");
        }
        return JobsVerdict::Stuck(text);
    }
    unknown.map_or(JobsVerdict::Runnable, JobsVerdict::Unknown)
}

/// The tags of jobs that are pending for too long and that no connected daemon can run, as far as `left` comparisons reach.
fn stuck<'a>(
    jobs: &'a [PendingJob],
    listing: &DaemonListing,
    now: Timestamp,
    left: &mut usize,
) -> BTreeSet<&'a DaemonTags> {
    let waits = |job: &&PendingJob| job.since.is_none_or(|since| now.duration_since(since) > JOB_PENDING);
    let waiting: BTreeSet<_> = jobs.iter().filter(waits).map(|job| &job.tags).collect();
    let alive: BTreeSet<_> = listing.daemons.iter().map(|daemon| &daemon.tags).collect();
    let mut stuck = BTreeSet::new();
    for job in waiting {
        // A daemon with exactly these tags can run the job, and is the only one that can run a job without tags.
        if alive.contains(job) {
            continue;
        }
        let somebody = *job != untagged() && alive.iter().any(|daemon| can_run_within(job, daemon, left));
        if *left == 0 {
            break;
        }
        if !somebody {
            stuck.insert(job);
        }
    }
    stuck
}

/// [`can_run`], which takes the tags that it may have to compare from `left`. True, to end a search, if none are left.
pub(crate) fn can_run_within(job: &DaemonTags, daemon: &DaemonTags, left: &mut usize) -> bool {
    // The first tag that the daemon lacks ends the comparison.
    *left = left.saturating_sub(job.len().min(daemon.len()) + 1);
    *left == 0 || can_run(job, daemon)
}

fn too_many(organization: &str) -> Blocker {
    let message = format!(
        "the jobs and daemons in organization {organization} have too many different tags to be compared"
    );
    Blocker::new(Reason::ListIncomplete, message)
}

fn sentence(tags: &DaemonTags, organization: &ListedOrganization<'_>, pools: &[TaggedPool]) -> String {
    let ListedOrganization { id, name, listing: _ } = organization;
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
        (Some(TaggedPool { name, is_scaled_to_zero: true, .. }), _) => {
            format!("{what}: CoderProvisioner {name} would run them, but is scaled to zero")
        }
        (Some(TaggedPool { name, .. }), _) => {
            format!("{what}: CoderProvisioner {name} would run them, but no daemon of it is connected")
        }
        (None, None) => format!("{what}: a CoderProvisioner without tags would run them"),
        (None, Some(tags)) => format!("{what}: a CoderProvisioner with tags {tags} would run them"),
    }
}

/// DaemonTags for people, without those that coderd adds. None: there are no others.
fn shown(tags: &DaemonTags) -> Option<String> {
    let own = tags.iter().filter(|(name, value)| match name.as_str() {
        "scope" => *value != "organization",
        "owner" => !value.is_empty(),
        _ => true,
    });
    let text = own.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    match text.char_indices().nth(MAX_TAGS_LENGTH) {
        Some((end, _)) => Some(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Some(text).filter(|text| !text.is_empty()),
    }
}

/// The pending jobs with the same tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagQueue {
    /// Their tags, `none`, or `other` for all sets of tags that are too many to be counted apart.
    pub tags: String,
    /// Number of jobs.
    pub pending: usize,
    /// When the first of them was created.
    pub since: Option<Timestamp>,
}

/// The queues of an organization, the longest first.
pub fn queues(jobs: &[PendingJob]) -> Vec<TagQueue> {
    let mut by_tags: BTreeMap<String, TagQueue> = BTreeMap::new();
    for job in jobs {
        let tags = shown(&job.tags).unwrap_or_else(|| "none".to_owned());
        let queue = by_tags.entry(tags.clone()).or_insert(TagQueue { tags, pending: 0, since: None });
        queue.add(1, job.since);
    }
    let mut all: Vec<_> = by_tags.into_values().collect();
    all.sort_by(|one, two| two.pending.cmp(&one.pending).then_with(|| one.tags.cmp(&two.tags)));
    let rest = all.split_off(all.len().min(MAX_JOB_QUEUES));
    let mut other = TagQueue { tags: "other".to_owned(), pending: 0, since: None };
    for queue in &rest {
        other.add(queue.pending, queue.since);
    }
    all.extend(Some(other).filter(|other| other.pending > 0));
    all
}

impl TagQueue {
    fn add(&mut self, pending: usize, since: Option<Timestamp>) {
        self.pending += pending;
        self.since = [self.since, since].into_iter().flatten().min();
    }
}

#[cfg(test)]
mod tests;
