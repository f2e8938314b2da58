//! Databases with the migrations of the pinned release of coderd, up to any of them.
//!
//! Each state is created once a process and copied for each test. coderd itself does not run, so what it writes at
//! its start, such as the deployment id, is missing.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use tokio::sync::{Mutex, OnceCell};

use super::{Database, Error, Template, shared};
use crate::binaries::{coder_migrations, coder_module};

static TEMPLATES: Mutex<BTreeMap<u32, Template<'static>>> = Mutex::const_new(BTreeMap::new());

/// A database of the shared server with coderd's migrations up to this one; None: all of the pinned release.
///
/// # Panics
/// When it cannot be had; the message says why.
#[expect(clippy::panic, reason = "its callers are tests, which cannot go on without it")]
pub async fn migrated(up_to: Option<u32>) -> Database<'static> {
    match copy(up_to).await {
        Ok(database) => database,
        Err(error) => panic!("no database of coderd: {}", super::with_sources(&error)),
    }
}

async fn copy(up_to: Option<u32>) -> Result<Database<'static>, Error> {
    // Asking Go for the directory takes seconds, so the files are read once.
    static FILES: OnceCell<Vec<(u32, PathBuf)>> = OnceCell::const_new();
    let all = FILES.get_or_try_init(find).await.map_err(Error::io("find coderd's migrations"))?;
    let mut templates = TEMPLATES.lock().await;
    let last = all.last().map(|(number, _)| *number).unwrap_or_default();
    let wanted = up_to.unwrap_or(last);
    if let Some(template) = templates.get(&wanted) {
        return template.database().await;
    }
    let (done, base) = match templates.range(..wanted).next_back() {
        Some((done, template)) => (*done, template.database().await?),
        None => (0, shared().await.database().await?),
    };
    apply(&base, all.iter().filter(|(number, _)| (done + 1..=wanted).contains(number))).await?;
    let template = base.into_template();
    let database = template.database().await;
    templates.insert(wanted, template);
    database
}

async fn find() -> io::Result<Vec<(u32, PathBuf)>> {
    let files = || coder_module().and_then(|module| coder_migrations(&module)).map_err(io::Error::other);
    tokio::task::spawn_blocking(files).await?
}

async fn apply(base: &Database<'_>, files: impl Iterator<Item = &(u32, PathBuf)>) -> Result<(), Error> {
    let client = base.connect().await?;
    let failed = Error::sql("apply coderd's migrations");
    let run = async {
        let table = "CREATE TABLE IF NOT EXISTS schema_migrations (version bigint PRIMARY KEY, dirty boolean NOT NULL)";
        client.batch_execute(table).await?;
        for (number, path) in files {
            let sql = std::fs::read_to_string(path).unwrap_or_default();
            client
                .batch_execute(&sql)
                .await
                .inspect_err(|_| tracing::error!(number, "a migration failed"))?;
            let version = format!(
                "DELETE FROM schema_migrations; INSERT INTO schema_migrations VALUES ({number}, false)"
            );
            client.batch_execute(&version).await?;
        }
        Ok(())
    };
    run.await.map_err(failed)
}
