//! Traces from the job list of a real coderd.
//!
//! The file is the answer of coderd as it is: an array of provisioner jobs. Of each, `created_at`, `started_at`,
//! `completed_at` and `tags` count. A build takes as long as it took: from its start to its completion. There is a pool for
//! each set of tags; the jobs of users (`scope: user`), those that never ran, and those with rare tags are left out.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use coder_k8s_core::daemon_listing::DaemonTags;
use jiff::{Timestamp, tz::TimeZone};
use serde::Deserialize;

use crate::{
    Millis,
    trace::{DAY, Trace, TraceJob, TracePool, reference_fleet},
};

/// How to get a file, for `--help`.
pub const HELP: &str = "\
A file with the jobs of a real coderd, of one organization:

  curl -fsS -H \"Coder-Session-Token: $TOKEN\" \\
    \"$CODER_URL/api/v2/organizations/$ORGANIZATION/provisionerjobs?limit=0&status=succeeded,failed,canceled\" > jobs.json
  cargo xtask simulate --trace jobs.json --users 800

The token belongs to a user who may list the jobs: an owner, or an admin or template admin of the organization. The file
is the array that coderd answers with. Of each job the simulation reads

  created_at, started_at, completed_at   times in RFC 3339; a job without one of them is left out
  tags                                   an object of strings, as coderd stores it

and nothing else, so that everything else can be removed before the file is handed on.";

/// The most sets of tags that get a pool. coderd has few; a file may have any number.
const MAX_POOLS: usize = 20;

#[derive(Deserialize)]
struct ImportedJob {
    created_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
    #[serde(default)]
    tags: DaemonTags,
}

/// Reads a file. The reference fleet of so many users is shared by the pools according to their work.
pub fn read(file: &Path, users: u32) -> Result<Trace> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    parse(&name, &text, users).with_context(|| format!("{} is no list of jobs", file.display()))
}

/// Reads the text of a file.
pub fn parse(name: &str, text: &str, users: u32) -> Result<Trace> {
    let imported: Vec<ImportedJob> = serde_json::from_str(text)?;
    let complete = imported.into_iter().filter_map(|job| {
        let ImportedJob { created_at, started_at, completed_at, tags } = job;
        let is_of_user = tags.get("scope").is_some_and(|scope| scope == "user");
        Some((created_at?, completed_at?.duration_since(started_at?), tags)).filter(|_| !is_of_user)
    });
    let complete: Vec<_> = complete.collect();
    let first = complete.iter().map(|(created, _, _)| *created).min();
    let first = first.context("no job in it has created_at, started_at and completed_at")?;
    let begins = TimeZone::UTC.to_datetime(first).date().to_zoned(TimeZone::UTC)?.timestamp();

    let mut work: BTreeMap<&DaemonTags, Millis> = BTreeMap::new();
    for (_, took, tags) in &complete {
        *work.entry(tags).or_default() += millis(*took).max(1);
    }
    let mut most: Vec<_> = work.into_iter().collect();
    most.sort_by_key(|(tags, work)| (-*work, *tags));
    most.truncate(MAX_POOLS);
    let total: Millis = most.iter().map(|(_, work)| work).sum();
    ensure!(total > 0, "its jobs took no time");
    let reference = Millis::from(reference_fleet(users));
    let pools = most.iter().enumerate().map(|(index, (tags, work))| TracePool {
        name: format!("pool-{index}"),
        tags: (*tags).clone(),
        reference: u32::try_from((reference * *work / total).max(1)).unwrap_or(u32::MAX),
    });
    let pools: Vec<_> = pools.collect();
    let jobs = complete.iter().filter_map(|(created, took, tags)| {
        let pool = pools.iter().position(|pool| pool.tags == *tags)?;
        Some(TraceJob { at: millis(created.duration_since(begins)), takes: millis(*took).max(1), pool })
    });
    let mut jobs: Vec<_> = jobs.collect();
    jobs.sort_unstable();
    let length = jobs.last().map_or(0, |job| job.at) / DAY * DAY + DAY;
    Ok(Trace { name: name.to_owned(), jobs, pools, faults: Vec::new(), length, begins })
}

fn millis(time: jiff::SignedDuration) -> Millis {
    // Longer than a year is a mistake of a clock.
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX).clamp(0, 366 * DAY)
}
